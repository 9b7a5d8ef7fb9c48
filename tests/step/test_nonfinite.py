"""Numbers that are not finite, wherever they come from: nothing of them stays, in memory or in a run."""

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
from kit.in_run import in_run
from kit.sampled import sampled
from kit.small import data, difference
from torch import Tensor, nn

import headrace as hr
from headrace.step.guard import DeviceGuard
from headrace.store.checkpoints import Store

ROWS, BATCH = 40, 8  # five batches
X, Y = data(ROWS)
BAD = 20  # the row that does it, of the third batch
NAN, INF = float("nan"), float("inf")


class Mean(nn.Module):
    """Notes running means of what passes, in each of the ways in which a module may change a buffer."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how
        self.register_buffer("seen", torch.zeros(6))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            new = 0.9 * self.seen + 0.1 * x.detach().square().mean(dim=0)
            if self.how == "in place":
                self.seen.copy_(new)
            elif self.how == "exchanged":
                self.seen = new
            else:
                self.seen.data.copy_(new)
        return x


class Network(nn.Module):
    """A buffer that overflows by a value whose square is too large, while loss and gradients stay finite."""

    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.norm, self.layers = norm, nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Dropout(0.2), nn.Linear(8, 3))

    def forward(self, x: Tensor) -> Tensor:
        self.norm(x)
        return self.layers(torch.tanh(x))


def overflowing(x: Tensor) -> None:
    x[BAD, 1] = 1e25


def spoilt(x: Tensor) -> None:
    x[BAD, 1] = NAN


def endless(x: Tensor) -> None:
    x[BAD, 1] = -INF


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
    "a NaN in the data": {"change": spoilt, "told": "'cross_entropy' is nan"},
    "an infinity in the data": {"change": endless, "told": "'norm.running_|'cross_entropy' is"},
    "the loss": {"loss": divided, "target": 3, "told": "loss term '.*' is inf"},
    "the gradient alone": {"loss": root, "target": 3, "told": "the gradient of 'layers.* is not finite"},
    **{
        name: {"change": overflowing, "norm": norm, "told": "the buffer 'norm.*' is not finite"}
        for name, norm in NORMS.items()
    },
}


class Setting:
    """A trainer and data with one bad row, and the same without it."""

    def __init__(self, cause: str, on_device: bool = False, **options: Any) -> None:
        self.given = CAUSES[cause]
        x, y = X.clone(), Y.clone()
        self.good = (X, Y)
        self.given.get("change", lambda x: None)(x)
        y[BAD] = self.given.get("target", int(y[BAD]))
        self.bad, self.on_device, self.options = (x, y), on_device, options

    def trainer(self, **options: Any) -> hr.Trainer:
        model = Network(self.given.get("norm", NORMS["batch norm"])())
        optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
        options = {"batch_size": BATCH, "order": "none", "device": "cpu"} | self.options | options
        trainer = hr.Trainer(model, self.given.get("loss", hr.CrossEntropy()), optimizer, **options)
        if self.on_device:
            trainer.updates.guard = DeviceGuard(torch.device("cpu"), skip=options.get("nonfinite") == "skip")
        return trainer


GUARDS = [False, True]
"""On the host, or on a device."""


def quiet(trainer: hr.Trainer, data: Any, seed: int | None = 5, **options: Any) -> hr.History:
    if seed is not None:
        torch.manual_seed(seed)
    return trainer.fit(data, progress=False, **{"epochs": 1} | options)


@pytest.mark.parametrize(
    ("cause", "on_device"),
    sampled(product(CAUSES, GUARDS), keep=[("the gradient alone", True), ("batch norm", False)], of=4),
)
def test_stopping_leaves_weights_buffers_and_optimizer_as_they_were_before_the_step(
    cause: str, on_device: bool
) -> None:
    setting = Setting(cause, on_device)
    stopped, before = setting.trainer(), setting.trainer()
    with pytest.raises(hr.NonFiniteError, match=rf"^step 3 .*(8 rows|{setting.given['told']})") as caught:
        quiet(stopped, setting.bad)
    assert on_device or re.search(setting.given["told"], str(caught.value))
    quiet(before, setting.good, steps=2)
    assert not difference(stopped, before)
    assert all(bool(value.isfinite().all()) for value in stopped.model.state_dict().values())
    for trainer in (stopped, before):
        quiet(trainer, setting.good, seed=6)
    assert not difference(stopped, before)


@pytest.mark.parametrize(
    ("cause", "microbatch", "on_device"),
    sampled(
        [each for each in product(CAUSES, (None, 2), GUARDS) if not (each[1] and "loss" in CAUSES[each[0]])],
        keep=[("the gradient alone", None, True), ("batch norm", 2, False), ("batch norm", None, True)],
        of=5,
    ),
)
def test_skipping_goes_on_as_if_the_batch_had_never_been(cause: str, microbatch: int | None, on_device: bool) -> None:
    setting = Setting(cause, on_device, nonfinite="skip", microbatch=microbatch)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="the model has")
        skipping, without = setting.trainer(), setting.trainer()
    for trainer in (skipping, without):  # so that no random numbers are drawn
        trainer.model.layers[2].p = 0.0
    history = quiet(skipping, setting.bad)
    kept = [row for row in range(ROWS) if not 16 <= row < 24]
    expected = quiet(without, (X[kept], Y[kept]))
    assert not difference(skipping, without)
    assert (skipping.skipped, without.skipped) == (1, 0)
    assert (history.last["step"], expected.last["step"]) == (5, 4)
    assert math.isclose(history.last["train/loss"], expected.last["train/loss"], rel_tol=1e-6)


def test_the_raw_loop_is_ruined_by_a_buffer_that_overflows() -> None:
    """The control: the loss and the gradients of that step are finite indeed."""
    setting = Setting("batch norm")
    model, (x, y) = setting.trainer().model, setting.bad
    loss = F.cross_entropy(model(x[16:24]), y[16:24])
    loss.backward()
    assert loss.isfinite()
    assert all(bool(p.grad.isfinite().all()) for p in model.layers.parameters())
    assert not model.norm.running_var.isfinite().all()


# --- in a run -------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("cause", "on_device"),
    sampled(product(CAUSES, GUARDS), keep=[("batch norm", True), ("a NaN in the data", False)], of=6),
)
def test_the_last_finite_checkpoint_stays_and_the_run_goes_on_from_it(
    cause: str, on_device: bool, tmp_path: Path
) -> None:
    setting = Setting(cause, on_device)
    with pytest.raises(hr.NonFiniteError):
        quiet(setting.trainer(), setting.bad, run=hr.Run(tmp_path, every="1 step"))
    store = Store(tmp_path / "checkpoints", None)
    assert store.steps() == [0, 1, 2]
    before = [store.verify(step) for step in store.steps()]
    with pytest.raises(hr.NonFiniteError, match=r"^step 3 "):
        quiet(setting.trainer(), setting.bad, run=hr.Run(tmp_path, every="1 step"))
    assert [store.verify(step) for step in store.steps()] == before
    assert all(
        bool(v.isfinite().all()) for v in store.load(2).tensors["model.safetensors"].values() if v.is_floating_point()
    )
    resumed, whole = setting.trainer(), setting.trainer()
    good: dict[str, Any] = {"seed": None, "run": hr.Run(tmp_path, every="1 step")}
    with pytest.raises(hr.SourceError, match="fingerprint"):  # data that were corrected are other data
        quiet(setting.trainer(), setting.good, **good)
    assert quiet(resumed, setting.good, **in_run(override=True, **good)).last["step"] == 5
    quiet(whole, setting.good)
    assert not difference(resumed, whole)
    assert "ended by NonFiniteError: step 3" in (tmp_path / "log.txt").read_text()


@pytest.mark.parametrize("cause", sampled(CAUSES, keep=["a NaN in the data"], of=5))
def test_a_run_that_has_stopped_goes_on_by_skipping_if_one_insists(cause: str, tmp_path: Path) -> None:
    setting = Setting(cause)
    with pytest.raises(hr.NonFiniteError):
        quiet(setting.trainer(), setting.bad, run=tmp_path)
    with pytest.raises(hr.CheckpointError, match="nonfinite: 'stop' in the run, 'skip' now"):
        quiet(setting.trainer(nonfinite="skip"), setting.bad, run=tmp_path)
    trainer = setting.trainer(nonfinite="skip")
    assert quiet(trainer, setting.bad, run=hr.Run(tmp_path, override=True)).last["step"] == 5
    assert trainer.skipped == 1
    again = setting.trainer(nonfinite="skip")
    assert quiet(again, setting.bad, run=tmp_path, epochs=2).last["step"] == 10
    assert again.skipped == 2


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

    def forward(self, x: Tensor) -> Tensor:
        if self.how == "filled anew":
            self.mask.copy_(self.made())
        elif self.how == "exchanged" or self.mask is None:
            self.mask = self.made()
        scores = (x.unsqueeze(2) * x.unsqueeze(1) + self.mask).softmax(dim=2)
        return self.layer(self.norm((scores @ x.unsqueeze(2)).squeeze(2)))


@pytest.mark.parametrize(
    ("how", "on_device"),
    sampled(
        product(["fixed", "filled anew", "exchanged", "not saved", "made when needed"], GUARDS),
        keep=[("filled anew", True), ("exchanged", False)],
        of=4,
    ),
)
def test_a_mask_of_infinities_is_nothing_to_stop_for(how: str, on_device: bool, tmp_path: Path) -> None:
    def trainer() -> hr.Trainer:
        model = Masked(how)
        made = hr.Trainer(model, hr.CrossEntropy(), torch.optim.Adam(model.parameters(), lr=0.02), batch_size=BATCH)
        if on_device:
            made.updates.guard = DeviceGuard(torch.device("cpu"))
        return made

    for info in trainer().steps((X, Y), run=tmp_path, epochs=2):
        if info.step == 3:
            break
    resumed, whole = trainer(), trainer()
    assert quiet(resumed, (X, Y), run=tmp_path, epochs=2).last["step"] == 10
    assert resumed.skipped == 0
    quiet(whole, (X, Y), epochs=2)
    assert not difference(resumed, whole)
    assert bool((resumed.model.mask == -INF).any())


@pytest.mark.parametrize("how", ["fixed", "filled anew", "exchanged"])
def test_a_mask_of_infinities_hides_nothing(how: str) -> None:
    x = X.clone()
    x[BAD, 1] = NAN
    model = Masked(how)
    trainer = hr.Trainer(
        model, hr.CrossEntropy(), torch.optim.Adam(model.parameters(), lr=0.02), batch_size=BATCH, order="none"
    )
    with pytest.raises(hr.NonFiniteError, match=r"^step 3 "):
        quiet(trainer, (x, Y))
    assert model.norm.running_mean.isfinite().all()


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
