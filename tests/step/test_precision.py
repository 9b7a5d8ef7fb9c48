"""Half precision, compilation and deterministic algorithms: the same training, and nothing of them left behind."""

import shutil
from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
import torch
from kit.sampled import sampled
from kit.small import data, same
from kit.small import trainer as small_trainer
from torch import Tensor, nn

import headrace as hr

X, Y = DATA = data(256)


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3))


def make(model: nn.Module | None = None, **options: Any) -> hr.Trainer:
    return small_trainer(network() if model is None else model, **{"batch_size": 32} | options)


class Dtypes(nn.Module):
    """Writes down the dtype of what passes."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: set[torch.dtype] = set()

    def forward(self, x: Tensor) -> Tensor:
        self.seen.add(x.dtype)
        return x


HALF = {"bf16": torch.bfloat16, "fp16": torch.float16}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("precision", "options"),
    sampled(
        product(HALF, [{}, {"microbatch": 10}, {"clip_norm": 1.0}, {"arena": False}]),
        keep=[("bf16", {}), ("fp16", {"clip_norm": 1.0})],
        of=3,
    ),
    ids=str,
)
def test_half_precision_trains_and_keeps_the_weights_in_full(precision: str, options: dict[str, Any]) -> None:
    watch = Dtypes()
    model = nn.Sequential(*network(), watch)
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
    assert watch.seen == {HALF[precision]}


def moved(**options: Any) -> Tensor:
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


def test_fp16_survives_a_batch_without_any_weight() -> None:
    y = Y.clone()
    y[32:64] = -100
    trainer = make(loss=nn.CrossEntropyLoss(), precision="fp16", order="none")
    history = trainer.fit((X, y), epochs=3, progress=False)
    assert history["train/loss"][-1] < history["train/loss"][0]


class Wrapped(nn.Module):
    """A model of the user's own."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("c++") is None, reason="torch compiles for a CPU with a C++ compiler")
@pytest.mark.filterwarnings("ignore:.torch.jit.script_method. is deprecated:DeprecationWarning")  # torch's own
@pytest.mark.parametrize("wrap", sampled([nn.Sequential, Wrapped], keep=[Wrapped], of=2))
def test_a_compiled_model_trains_as_the_plain_one(wrap: Callable[[nn.Module], nn.Module]) -> None:
    from torch._dynamo.utils import counters

    torch._dynamo.reset()
    counters.clear()
    compiled, plain = make(wrap(network()), compile=True), make(wrap(network()))
    for trainer in (compiled, plain):
        history = trainer.fit(DATA, epochs=3, progress=False)
    assert history["train/loss"][-1] < history["train/loss"][0]
    torch.testing.assert_close(compiled.model.state_dict(), plain.model.state_dict(), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(compiled.predict(X), plain.predict(X), rtol=1e-4, atol=1e-5)
    assert list(compiled.model.state_dict()) == list(plain.model.state_dict())
    assert 1 <= counters["stats"]["unique_graphs"] <= 6  # compiled indeed, and not anew for every batch


def flags() -> tuple[bool, bool, bool]:
    return (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
        torch.backends.cudnn.benchmark,
    )


@pytest.mark.parametrize(
    ("wanted", "before", "end"),
    sampled(
        product([True, False], [(False, False), (True, True), (True, False)], ["end", "break", "error"]),
        keep=[(True, (False, False), "error"), (True, (True, True), "break"), (False, (True, False), "end")],
        of=4,
    ),
    ids=str,
)
def test_deterministic_algorithms_are_on_while_training_and_as_before_afterwards(
    wanted: bool, before: tuple[bool, bool], end: str
) -> None:
    trainer = make(deterministic=wanted)

    def train() -> None:
        for info in trainer.steps(DATA, epochs=1):
            assert flags()[:2] == ((True, False) if wanted else before)
            if info.step == 2 and end == "break":
                break
            if info.step == 2 and end == "error":
                trainer.model[0].weight.data = torch.zeros(1)

    untouched = flags()
    torch.use_deterministic_algorithms(before[0], warn_only=before[1])
    try:
        held = flags()
        if end == "error":
            with pytest.raises(hr.ModelError, match=r"0\.weight"):
                train()
        else:
            train()
        assert flags() == held
    finally:
        torch.use_deterministic_algorithms(untouched[0], warn_only=untouched[1])
