"""Half precision, compilation and deterministic algorithms: the same training, and nothing of them left behind."""

import shutil
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from kit.sampled import each
from kit.small import Parts, data, momentum, same
from kit.small import trainer as small_trainer
from torch import Tensor, nn

import headrace as hr

X, Y = DATA = data(256)


def network() -> Any:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3))


def make(model: nn.Module | None = None, **options: Any) -> hr.Trainer:
    return small_trainer(network() if model is None else model, **{"batch_size": 32} | options)


HALF = {"bf16": torch.bfloat16, "fp16": torch.float16}


@pytest.mark.parametrize(
    ("precision", "options"), each(HALF, [{}, {"microbatch": 10}, {"clip_norm": 1.0}, {"arena": False}]), ids=str
)
def test_half_precision_trains_and_keeps_the_weights_in_full(precision: str, options: dict[str, Any]) -> None:
    seen: Any = set[torch.dtype]()
    model = nn.Sequential(*network(), Parts(lambda self, x: (seen.add(x.dtype), x)[1]))
    trainer = make(model, precision=precision, metrics=["accuracy"], **options)
    history = trainer.fit(DATA, DATA, epochs=8, progress=False)
    assert history["train/loss"][-1] < 0.5 * history["train/loss"][0]
    assert history.last["val/accuracy"] > 0.9
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    assert {v.dtype for s in trainer.optimizer.state.values() for v in s.values()} == {torch.float32}
    full = make(network())
    full.fit(DATA, epochs=8, progress=False)
    assert trainer.validate(DATA)["val/loss"] == pytest.approx(full.validate(DATA)["val/loss"], rel=0.1)
    trainer.predict(X)
    assert seen == {HALF[precision]}


def moved(**options: Any) -> Any:
    """How far one update of gradients around 1e-6 moves a weight."""
    model = network()
    tiny = 1e-6 * hr.CrossEntropy()
    trainer = hr.Trainer(model, tiny, torch.optim.SGD(model.parameters(), lr=1e6), batch_size=256, **options)
    trainer.fit(DATA, epochs=1, progress=False)
    return model[0].weight.detach() - network()[0].weight.detach()


def test_small_gradients_survive_fp16_because_they_are_scaled() -> None:
    expected = moved()
    assert float((moved(precision="fp16") - expected).norm() / expected.norm()) < 0.1
    model = network()  # the control: without the scale they vanish
    with torch.autocast("cpu", torch.float16):
        out = model(X)
    (1e-6 * nn.functional.cross_entropy(out.float(), Y)).backward()
    assert float(model[0].weight.grad.norm()) < 0.5 * float(expected.norm()) / 1e6


def test_fp16_is_clipped_without_its_scale() -> None:
    trainer = make(precision="fp16", clip_norm=0.1, order="none")
    trainer.fit(DATA, epochs=2, progress=False)
    model, scaler = network(), torch.amp.GradScaler("cpu")  # the loop by hand
    optimizer = momentum(model)
    for x, y in 2 * [*zip(X.split(32), Y.split(32), strict=True)]:
        with torch.autocast("cpu", torch.float16):
            out = model(x)
        optimizer.zero_grad()
        scaler.scale(nn.functional.cross_entropy(out.float(), y)).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        scaler.step(optimizer)
        scaler.update()
    torch.testing.assert_close(trainer.model.state_dict(), model.state_dict(), rtol=1e-4, atol=1e-5)


def test_an_overflow_of_fp16_gradients_leaves_the_update_out_and_lowers_the_scale() -> None:
    model = network()
    loud = 1000.0 * hr.CrossEntropy()
    trainer = hr.Trainer(model, loud, torch.optim.SGD(model.parameters(), lr=1e-5), batch_size=32, precision="fp16")
    first = next(iter(trainer.steps(DATA)))
    assert first.step == 1
    assert same(model, network())
    history = trainer.fit(DATA, epochs=4, progress=False)
    assert history["train/loss"][-1] < history["train/loss"][0]
    assert all(bool(p.isfinite().all()) for p in model.parameters())


@pytest.mark.skipif(
    shutil.which("c++") is None or " " in torch.__file__,
    reason="torch compiles for a CPU with a C++ compiler, to which it gives its own place without quotes",
)
@pytest.mark.filterwarnings("ignore:.torch.jit.script_method. is deprecated:DeprecationWarning")  # torch's own
def test_a_compiled_model_trains_as_the_plain_one() -> None:
    from torch._dynamo.utils import counters

    torch._dynamo.reset()
    counters.clear()
    wrapped: Any = lambda: Parts(lambda self, x: self.inner(x), inner=network())  # noqa: E731
    compiled, plain = make(wrapped(), compile=True), make(wrapped())
    for trainer in (compiled, plain):
        history = trainer.fit(DATA, epochs=3, progress=False)
    assert history["train/loss"][-1] < history["train/loss"][0]
    torch.testing.assert_close(compiled.model.state_dict(), plain.model.state_dict(), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(compiled.predict(X), plain.predict(X), rtol=1e-4, atol=1e-5)
    assert list(compiled.model.state_dict()) == list(plain.model.state_dict())
    assert 1 <= counters["stats"]["unique_graphs"] <= 6  # compiled indeed, and not anew for every batch


class Puts(nn.Linear):
    """Writes by indices, of which torch says that it is not deterministic, on every device."""

    def forward(self, x: Tensor) -> Tensor:
        x = super().forward(x)
        return x + torch.zeros_like(x).put_(torch.tensor([0]), torch.tensor([0.0]))


@pytest.mark.parametrize("way", ["step", "fit"])
def test_what_is_not_deterministic_is_named(way: str) -> None:
    trainer = make(Puts(6, 3), deterministic=True)
    with pytest.raises(hr.ConfigError, match=r"deterministic=True: torch has no deterministic put_\. Replace it"):
        trainer.step(DATA) if way == "step" else trainer.fit(DATA, epochs=1, progress=False)
    assert make(Puts(6, 3)).step(DATA)["total_loss"] > 0
    assert not torch.are_deterministic_algorithms_enabled()


def flags() -> tuple[bool, bool, bool]:
    return (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
        torch.backends.cudnn.benchmark,
    )


@pytest.mark.parametrize("before", [(False, False), (True, True), (True, False)])
@pytest.mark.parametrize("wanted", [True, False])
def test_deterministic_algorithms_are_on_while_training_and_as_before_however_it_ends(
    wanted: bool, before: tuple[bool, bool]
) -> None:
    torch.use_deterministic_algorithms(before[0], warn_only=before[1])
    try:
        standing = flags()
        for end in ("end", "break", "error"):
            trainer = make(deterministic=wanted)
            with pytest.raises(hr.ModelError, match=r"0\.weight") if end == "error" else nullcontext():
                for info in trainer.steps(DATA, epochs=1):
                    assert flags()[:2] == ((True, False) if wanted else before)
                    if info.step == 2 and end == "break":
                        break
                    if info.step == 2 and end == "error":
                        trainer.model[0].weight.data = torch.zeros(1)
            assert flags() == standing
    finally:
        torch.use_deterministic_algorithms(False)
