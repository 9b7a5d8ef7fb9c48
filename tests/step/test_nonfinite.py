"""A number that is not finite never reaches weights, buffers, optimizer or a run: it ends there, or leaves a batch out.

On a CPU the host looks at every number; the guard of a GPU, which works on a CPU as well, leaves flags on the device.
"""

import math
import re
import warnings
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from kit.optimizers import FUSED
from kit.optimizers import OPTIMIZERS as PLAIN
from kit.sampled import each, sampled
from kit.small import Parts, data, difference, state, stop_and_resume
from torch import Tensor, nn

import headrace as hr
from headrace.step.guard import DeviceGuard
from headrace.store.checkpoints import Store

ROWS, BATCH = 40, 8  # five batches
X, Y = data(ROWS)
BAD = 20  # a row of the third batch
NAN, INF = float("nan"), float("inf")
OPTIMIZERS = PLAIN | FUSED
GUARDS = [False, True]
"""On the host, or on a device."""


class Mean(nn.Module):
    """Notes running means of what passes, in each of the ways in which a module may change a buffer."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how
        self.register_buffer("seen", torch.zeros(6))

    def forward(self: Any, x: Tensor) -> Tensor:
        if self.training:
            new = 0.9 * self.seen + 0.1 * x.detach().square().mean(dim=0)
            if self.how == "in place":
                self.seen.copy_(new)
            elif self.how == "exchanged":
                self.seen = new
            else:
                self.seen.data.copy_(new)
        return x


def network(norm: nn.Module) -> nn.Module:
    """A buffer that overflows by a value whose square is too large, while loss and gradients stay finite."""
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Dropout(0.2), nn.Linear(8, 3))
    return Parts(lambda self, x: (self.norm(x), self.layers(torch.tanh(x)))[1], norm=norm, layers=layers)


def root(out: Tensor, y: Tensor) -> Tensor:
    """Finite itself, but its gradient is 0 · ∞ where the target is 3."""
    loss = F.cross_entropy(out, y.clamp(max=2))
    return loss + torch.sqrt((out - out.detach()).abs().sum(dim=1) * (y == 3)).mean() if bool((y == 3).any()) else loss


def divided(out: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(out, y.clamp(max=2)) / float((y != 3).all())  # infinite where the target is 3


NORMS: dict[str, Callable[[], nn.Module]] = {
    "batch norm": lambda: nn.BatchNorm1d(6),
    "batch norm that adds up": lambda: nn.BatchNorm1d(6, momentum=None),
    "in place": lambda: Mean("in place"),
    "exchanged": lambda: Mean("exchanged"),
    "by data": lambda: Mean("by data"),
}
CAUSES: dict[str, dict[str, Any]] = {
    "a NaN in the data": {"value": NAN, "told": "'cross_entropy' is nan"},
    "an infinity in the data": {"value": -INF, "told": "'norm.running_|'cross_entropy' is"},
    "the loss": {"loss": divided, "told": "loss term '.*' is inf"},
    "the gradient alone": {"loss": root, "told": "the gradient of 'layers.* is not finite"},
    **{name: {"value": 1e25, "norm": make, "told": "the buffer 'norm.*' is not"} for name, make in NORMS.items()},
}
NOTHING = "a NaN in the data"
"""A cause whose model and loss are nothing special."""


def with_bad(cause: str, *rows: int) -> tuple[Tensor, Tensor]:
    """Data with bad rows."""
    x, y = X.clone(), Y.clone()
    if "value" in CAUSES[cause]:
        x[list(rows), 1] = CAUSES[cause]["value"]
    else:
        y[list(rows)] = 3
    return x, y


def made(cause: str = NOTHING, on_device: bool = False, optimizer: str = "adam", **options: Any) -> hr.Trainer:
    given = CAUSES[cause]
    model = options.pop("model", None) or network(given.get("norm", NORMS["batch norm"])())
    options = {"batch_size": BATCH, "order": "none", "device": "cpu", **options}
    loss = options.pop("loss", None) or given.get("loss") or hr.CrossEntropy()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="the model has")
        trainer = hr.Trainer(model, loss, OPTIMIZERS[optimizer](model.parameters()), **options)
    if on_device:
        trainer.updates.guard = DeviceGuard(torch.device("cpu"), skip=options.get("nonfinite") == "skip")
    return trainer


def fit(trainer: hr.Trainer, data: Any = (X, Y), seed: int | None = 5, **options: Any) -> hr.History:
    if seed is not None:
        torch.manual_seed(seed)
    return trainer.fit(data, progress=False, **{"epochs": 1} | options)


STOPS = ["momentum", "adamw", *FUSED]


@pytest.mark.parametrize(
    ("cause", "name", "on_device"),
    sampled(
        product(CAUSES, STOPS, GUARDS),
        keep=[
            *((NOTHING, name, True) for name in STOPS),
            *((cause, STOPS[k % 2], k % 4 > 1) for k, cause in enumerate(CAUSES)),
        ],
        of=20,
    ),
)
def test_the_run_ends_as_if_the_step_with_the_bad_row_had_never_been(cause: str, name: str, on_device: bool) -> None:
    stopped, before = made(cause, on_device, name), made(cause, optimizer=name)
    with pytest.raises(hr.NonFiniteError, match=r"^step 3 \(rate [\d.]+, 8 rows") as caught:
        fit(stopped, with_bad(cause, BAD))
    assert on_device or re.search(CAUSES[cause]["told"], str(caught.value))
    fit(before, steps=2)
    assert not difference(stopped, before)
    assert all(bool(value.isfinite().all()) for value in stopped.model.state_dict().values())
    for trainer in (stopped, before):
        fit(trainer, seed=6)
    assert not difference(stopped, before)


@pytest.mark.parametrize(
    ("cause", "name", "microbatch", "on_device"),
    sampled(
        [c for c in product(CAUSES, OPTIMIZERS, (None, 2), GUARDS) if not (c[2] and "loss" in CAUSES[c[0]])],
        keep=[
            *((NOTHING, name, None, True) for name in ["momentum", "adamw", "rprop", *FUSED]),
            *((cause, "momentum", None, k % 2 == 1) for k, cause in enumerate(CAUSES)),
            ("batch norm", "adam", 2, False),
        ],
        of=60,
    ),
    ids=str,
)
def test_skipping_goes_on_as_if_bad_batches_had_never_been(
    cause: str, name: str, microbatch: int | None, on_device: bool
) -> None:
    options: dict[str, Any] = {"nonfinite": "skip", "microbatch": microbatch}
    skipping, without = made(cause, on_device, name, **options), made(cause, on_device, name, **options)
    for trainer in (skipping, without):  # so that no random numbers are drawn
        trainer.model.layers[2].p = 0.0
    history = fit(skipping, with_bad(cause, 3, BAD), epochs=2)
    kept = [row for row in range(ROWS) if row // BATCH not in (0, 2)]
    expected = fit(without, (X[kept], Y[kept]), epochs=2)
    assert not difference(skipping, without)
    assert (skipping.skipped, without.skipped) == (4, 0)
    assert (history.last["step"], expected.last["step"]) == (10, 6)
    assert math.isclose(history.last["train/loss"], expected.last["train/loss"], rel_tol=1e-6)


def test_the_raw_loop_is_ruined_by_a_buffer_that_overflows() -> None:
    """The control: the loss and the gradients of that step are finite indeed."""
    model, (x, y) = made("batch norm").model, with_bad("batch norm", BAD)
    loss = F.cross_entropy(model(x[16:24]), y[16:24])
    loss.backward()
    assert loss.isfinite()
    assert all(bool(p.grad.isfinite().all()) for p in model.layers.parameters())
    assert not model.norm.running_var.isfinite().all()


MEDDLERS: dict[str, Callable[[Any], Any]] = {
    "replaced": lambda norm: setattr(norm, "running_mean", torch.full((6,), 2.0)),
    "other memory": lambda norm: setattr(norm.running_mean, "data", torch.full((6,), 2.0)),
    "in double": lambda norm: norm.double().float(),
    "in place": lambda norm: norm.running_mean.fill_(2.0),
    "removed": lambda norm: vars(norm)["_buffers"].update(running_mean=None, running_var=None),
    "loaded": lambda norm: norm.load_state_dict({name: value + 2 for name, value in norm.state_dict().items()}),
}


@pytest.mark.parametrize("how", MEDDLERS)
@pytest.mark.parametrize("on_device", GUARDS)
def test_whatever_is_done_to_buffers_between_two_steps_is_what_a_bad_one_goes_back_to(
    on_device: bool, how: str
) -> None:
    trainer = made(NOTHING, on_device, "fused momentum" if on_device else "momentum", nonfinite="skip")
    for _ in range(2):
        trainer.step((X[:BATCH], Y[:BATCH]))
    MEDDLERS[how](trainer.model.norm)
    for _ in range(2):
        before, tensors = state(trainer.model), [*trainer.model.buffers()]
        trainer.step((X[:BATCH] * NAN, Y[:BATCH]))
        assert not difference(trainer.model, before)
        assert all(a is b for a, b in zip(trainer.model.buffers(), tensors, strict=True))
        trainer.step((X[:BATCH], Y[:BATCH]))
        assert difference(trainer.model, before)


@pytest.mark.parametrize("how", ["replaced", "other memory", "in place"])
@pytest.mark.parametrize("on_device", GUARDS)
def test_what_a_bad_step_itself_does_to_buffers_is_undone(on_device: bool, how: str) -> None:
    trainer = made(NOTHING, on_device, "fused momentum" if on_device else "momentum", nonfinite="skip")
    trainer.model.norm.register_forward_pre_hook(lambda norm, _: [MEDDLERS[how](norm), None][1])
    for _ in range(2):
        trainer.step((X[:BATCH], Y[:BATCH]))
        before = state(trainer.model)
        trainer.step((X[:BATCH] * NAN, Y[:BATCH]))
        assert not difference(trainer.model, before)


# --- on a device ----------------------------------------------------------------------------------------------


class Watched(DeviceGuard):
    """Writes down what it has answered."""

    def sound(self, *given: Any) -> bool | Tensor:
        answer = super().sound(*given)
        vars(self).setdefault("answers", []).append(answer)
        return answer


def watched(name: str, hook: bool = False, rows: tuple[int, ...] = (BAD,)) -> tuple[hr.Trainer, list[type]]:
    trainer = made(optimizer=name, nonfinite="skip")
    trainer.updates.guard = guard = Watched(torch.device("cpu"), skip=True)
    if hook:
        trainer.optimizer.register_step_post_hook(lambda *_: None)
    fit(trainer, with_bad(NOTHING, *rows))
    assert all(bool(value.isfinite().all()) for value in trainer.model.state_dict().values())
    return trainer, list(map(type, vars(guard)["answers"]))


@pytest.mark.parametrize("name", FUSED)
def test_the_host_waits_for_no_flag_of_a_fused_optimizer_that_has_state(name: str) -> None:
    trainer, answers = watched(name)
    made_at_once = name in ("fused sgd", "fused adagrad")  # the one has no state, the other from the beginning
    assert answers == ([Tensor] if made_at_once else [bool]) + 4 * [Tensor]
    assert trainer.skipped == 1
    assert not hasattr(trainer.optimizer, "found_inf")


def test_the_host_waits_where_an_update_cannot_be_skipped_on_the_device() -> None:
    assert watched("fused momentum", rows=(3, 12))[1] == [bool, bool, bool, Tensor, Tensor]  # memory not yet written
    for name, hook in [("adamw", False), ("momentum", False), ("fused adamw", True)]:
        assert set(watched(name, hook)[1]) == {bool}


@pytest.mark.parametrize("name", ["momentum", "fused momentum"])
def test_fp16_leaves_bad_updates_out_on_a_device_as_on_the_host(name: str) -> None:
    trainers = [made(NOTHING, on_device, name, nonfinite="skip", precision="fp16") for on_device in GUARDS]
    for trainer in trainers:
        fit(trainer, with_bad(NOTHING, 3, BAD), epochs=2)
        assert trainer.skipped == 4
    assert not difference(*trainers)


def test_what_one_training_left_unsettled_is_no_concern_of_the_next() -> None:
    trainer = made(on_device=True, macrobatch=ROWS)
    for info in trainer.steps(with_bad(NOTHING, BAD)):
        if info.step == 3:
            break
    before = state(trainer.model)
    fit(trainer)
    assert difference(trainer.model, before)


# --- batches of which no row counts -----------------------------------------------------------------------------

LOSSES: dict[str, Callable[[], Any]] = {
    "cross entropy": lambda: hr.CrossEntropy(ignore_index=-1),
    "with a prior": lambda: hr.CrossEntropy(ignore_index=-1) + hr.L2Prior(0.1),
    "class weights": lambda: hr.CrossEntropy(ignore_index=-1, class_weights=[1.0, 2.0, 3.0]),
    "of torch": lambda: nn.CrossEntropyLoss(ignore_index=-1),
}


@pytest.mark.parametrize(("loss", "microbatch", "on_device"), each(LOSSES, [None, 3], GUARDS))
def test_a_batch_without_any_weight_changes_nothing(loss: str, microbatch: int | None, on_device: bool) -> None:
    def small() -> hr.Trainer:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(6, 8), *([] if microbatch else [nn.BatchNorm1d(8)]), nn.Linear(8, 3))
        return made(NOTHING, on_device, "momentum", model=model, loss=LOSSES[loss](), microbatch=microbatch)

    y, kept = Y.clone(), torch.ones(ROWS, dtype=torch.bool)
    y[BATCH : 2 * BATCH], kept[BATCH : 2 * BATCH] = -1, False
    trainer, without = small(), small()
    before: Any = None
    for info in trainer.steps((X, y), epochs=2):
        now = state(trainer.model)
        assert (info.step in (2, 7)) == (not difference(now, before))
        assert info.step not in (2, 7) or info.losses["cross_entropy"] == 0.0
        before = now
    history = fit(without, (X[kept], Y[kept]), epochs=2)
    assert not difference(trainer, without)
    assert info.history.last["train/loss/cross_entropy"] == pytest.approx(history.last["train/loss/cross_entropy"])


# --- in a run -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cause", "on_device"),
    sampled(product(CAUSES, GUARDS), keep=[("batch norm", True), ("a NaN in the data", False)], of=6),
)
def test_the_last_finite_checkpoint_stays_and_the_run_goes_on_from_it(
    cause: str, on_device: bool, tmp_path: Path
) -> None:
    bad, run = with_bad(cause, BAD), hr.Run(tmp_path, every="1 step")
    with pytest.raises(hr.NonFiniteError):
        fit(made(cause, on_device), bad, run=run)
    store = Store(tmp_path / "checkpoints", None)
    assert store.steps() == [0, 1, 2]
    before = [store.verify(step) for step in store.steps()]
    with pytest.raises(hr.NonFiniteError, match=r"^step 3 "):
        fit(made(cause, on_device), bad, run=run)
    assert [store.verify(step) for step in store.steps()] == before
    weights = store.load(2).tensors["model.safetensors"].values()
    assert all(bool(v.isfinite().all()) for v in weights if v.is_floating_point())
    with pytest.raises(hr.SourceError, match="fingerprint"):  # data that were corrected are other data
        fit(made(cause, on_device), seed=None, run=run)
    resumed, whole = made(cause, on_device), made(cause, on_device)
    assert fit(resumed, seed=None, run=hr.Run(tmp_path, every="1 step", override=True)).last["step"] == 5
    fit(whole)
    assert not difference(resumed, whole)
    assert "ended by NonFiniteError: step 3" in (tmp_path / "log.txt").read_text()


# --- infinities that belong there -----------------------------------------------------------------------------


class Masked(nn.Module):
    """Attention of a kind, with a mask of minus infinity that is there, filled anew, exchanged, or made when needed."""

    def __init__(self, how: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.how, self.layer, self.norm = how, nn.Linear(6, 3), nn.BatchNorm1d(6)
        late = how == "made when needed"
        self.register_buffer("mask", None if late else self.made(), persistent=how != "not saved" and not late)

    def made(self) -> Tensor:
        return torch.full((6, 6), -INF).triu(1)

    def forward(self: Any, x: Tensor) -> Any:
        if self.how == "filled anew":
            self.mask.copy_(self.made())
        elif self.how == "exchanged" or self.mask is None:
            self.mask = self.made()
        scores = (x.unsqueeze(2) * x.unsqueeze(1) + self.mask).softmax(dim=2)
        return self.layer(self.norm((scores @ x.unsqueeze(2)).squeeze(2)))


@pytest.mark.parametrize(
    ("how", "on_device"), each(["fixed", "filled anew", "exchanged", "not saved", "made when needed"], GUARDS)
)
def test_a_mask_of_infinities_is_nothing_to_stop_for(how: str, on_device: bool, tmp_path: Path) -> None:
    resumed = stop_and_resume(lambda: made(NOTHING, on_device, model=Masked(how)), [3, 6], tmp_path, (X, Y))
    assert resumed.skipped == 0
    assert bool((resumed.model.mask == -INF).any())


@pytest.mark.parametrize("how", ["fixed", "filled anew", "exchanged"])
def test_a_mask_of_infinities_hides_nothing(how: str) -> None:
    trainer = made(model=Masked(how))
    with pytest.raises(hr.NonFiniteError, match=r"^step 3 "):
        fit(trainer, with_bad(NOTHING, BAD))
    assert trainer.model.norm.running_mean.isfinite().all()


@pytest.mark.parametrize(
    ("x", "loss", "why"),
    [
        (float("nan"), hr.CrossEntropy(), "a loss or a gradient was not finite"),
        (1.0, hr.CrossEntropy(ignore_index=1), "no row counted"),
    ],
)
def test_a_training_that_has_learnt_nothing_says_so_at_its_end(x: float, loss: hr.Loss, why: str) -> None:
    model = nn.Linear(2, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    trainer = hr.Trainer(model, loss, optimizer, batch_size=2, nonfinite="skip", device="cpu")
    data = (torch.full((4, 2), x), torch.ones(4, dtype=torch.int64))
    with pytest.warns(UserWarning, match=f"none of the 4 updates was made, and the weights are as they were: {why}"):
        trainer.fit(data, epochs=2, progress=False)
    data[0][:2], data[1][:2] = 0.0, 0  # from here on two rows of four are sound: no word of it
    trainer.fit(data, epochs=1, progress=False)
    assert trainer.skipped == (5 if x != x else 0)
