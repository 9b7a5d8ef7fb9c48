"""Finders suggest a rate and a batch size that suit, and leave everything as it was, however they end."""

import os
import random
import signal
import threading
from collections.abc import Callable
from functools import partial
from types import MethodType
from typing import Any

import numpy as np
import pytest
import torch
from kit.small import Clock, same, state
from kit.small import trainer as small_trainer
from kit.trainees import Noise, Rows, seed
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import headrace as hr

Finder = Callable[[hr.Trainer, Any], Any]
LR: Finder = partial(hr.Trainer.find_lr, steps=24)
SIZE: Finder = partial(hr.Trainer.find_batch_size, seconds=0.001)
FINDERS = pytest.mark.parametrize("find", [LR, SIZE], ids=["lr", "size"])


class Net(nn.Module):
    """Everything that a model may keep: batch statistics, a buffer that is not saved, a count, a list, a generator."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(Noise(), nn.Linear(5, 8), nn.BatchNorm1d(8), nn.Dropout(0.2), nn.Linear(8, 2))
        self.register_buffer("seen", torch.zeros(()), persistent=False)
        self.calls, self.sizes, self.own = 0, list[int](), torch.Generator().manual_seed(3)
        self.fail: Callable[[Net], None] = lambda net: None

    def forward(self: Any, x: Tensor) -> Any:
        self.calls, self.seen = self.calls + 1, self.seen + len(x)
        self.sizes.append(len(x))
        self.fail(self)
        return self.layers(x) + 0.01 * torch.randn((), generator=self.own)


def trainer(kind: type[hr.Trainer] = hr.Trainer, **options: Any) -> hr.Trainer:
    seed()
    net = Net()
    groups: list[Any] = [
        {"params": list(net.layers[1].parameters())},
        {"params": list(net.layers[2:].parameters()), "lr": 0.05},
    ]
    given = {"batch_size": 4, "clip_norm": 1.0, "schedule": hr.Cosine(0.1), "metrics": "accuracy"}
    return small_trainer(net, kind, **{"optimizer": torch.optim.AdamW(groups, lr=0.01), **given, **options})


def simple(model: nn.Module, **options: Any) -> hr.Trainer:
    return small_trainer(model, **{"optimizer": partial(torch.optim.SGD, lr=0.1), "batch_size": 4, **options})


def everything(trainer: hr.Trainer, source: hr.Source | None = None) -> Any:
    net = trainer.model
    return state(
        [
            *(trainer, net.seen, net.calls, net.sizes, net.own.get_state()),
            [module.training for module in net.modules()],
            [p.grad for p in net.parameters()],
            [random.getstate(), list(np.random.get_state()), torch.get_rng_state()],
            [id(trainer.history), *trainer.history.rows],
            [trainer.batch_size, id(trainer.schedule), trainer.metrics.names, trainer.updates.count],
            None if source is None else source.state_dict(),
        ]
    )


def used() -> tuple[hr.Trainer, hr.Reader]:
    """A trainer, and a source in the middle of an epoch."""
    subject = trainer()
    subject.fit(Rows(), Rows(12), epochs=1, progress=False)
    subject.model.layers[1].weight.grad = torch.full((8, 5), 0.5)
    subject.model.layers[0].eval()
    reader = hr.Reader(Rows(), "full", 0)
    reader.next_batch(7)
    return subject, reader


@FINDERS
@pytest.mark.parametrize("how", ["well", "error", "Ctrl-C"])
def test_everything_is_as_it_was_however_it_ends(find: Finder, how: str) -> None:
    subject, reader = used()
    net, errors = subject.model, {"error": RuntimeError, "Ctrl-C": KeyboardInterrupt}

    def fail(net: Net) -> None:
        if net.calls == fatal and how == "error":
            raise RuntimeError("it broke")
        if net.calls == fatal and how == "Ctrl-C":
            os.kill(os.getpid(), signal.SIGINT)

    fatal, net.fail = net.calls + 9, fail
    before = everything(subject, reader)
    if how == "well":
        find(subject, reader)
    else:
        with pytest.raises(errors[how]):
            find(subject, reader)
    assert same(everything(subject, reader), before)
    how = "well"
    subject.fit(Rows(), epochs=1, progress=False)
    assert not same(everything(subject, reader), before), "this test can tell"


def test_a_loader_reads_afterwards_what_it_would_have_read() -> None:
    def batches(find: bool) -> list[Tensor]:
        torch.manual_seed(0)
        data = TensorDataset(torch.randn(40, 5), torch.arange(40) % 2)
        loader = DataLoader(data, 8, shuffle=True, generator=torch.Generator().manual_seed(1))
        if find:
            LR(trainer(batch_size=None), loader)
        return [y for _, y in loader]

    assert same(batches(find=True), batches(find=False))


class Ends(hr.Source):
    """A stream that nobody can go back in."""

    streams = (hr.Stream("x", (5,)), hr.Stream("y", (), "int64"))
    given, endless = 0, True

    def next_batch(self, size: int, shard: hr.Shard = hr.Shard()) -> hr.Batch:
        self.given += size
        return hr.Batch({"x": torch.randn(size, 5), "y": torch.ones(size).long()}, size)


@FINDERS
def test_a_source_without_state_is_told_of(find: Finder) -> None:
    source = Ends()
    with pytest.warns(UserWarning, match="Ends has no state_dict: what is read now is not read again"):
        partial(find, **({"largest": 8} if find is SIZE else {}))(trainer(), source)
    assert source.given > 0


class Averaging(torch.optim.SGD):
    """Keeps what torch's own copy of an optimizer leaves out, and shows which parameters its steps have moved."""

    def __init__(self, parameters: Any, lr: float) -> None:
        super().__init__(parameters, lr=lr, momentum=0.9)
        self.slow = {p: p.detach().clone() for group in self.param_groups for p in group["params"]}

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        super().step()
        for p, slow in self.slow.items():
            p.data.lerp_(slow, 0.5)


@FINDERS
def test_a_copy_has_the_optimizers_state_and_parts_and_the_hooks_of_parameters(find: Finder) -> None:
    model: Any = nn.Sequential(nn.Linear(5, 4), nn.Linear(4, 2))
    hooked: list[int] = []
    model[0].weight.register_hook(lambda gradient: hooked.append(1))
    model[0].bias.register_post_accumulate_grad_hook(lambda parameter: hooked.append(2))
    optimizer = Averaging(model.parameters(), lr=0.1)
    steps = hr.Schedule(lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 1))
    subject = simple(model, optimizer=optimizer, schedule=steps)
    subject.fit(Rows(), epochs=1, progress=False)  # torch's schedulers wrap the optimizer's step
    before = state([subject, *optimizer.slow.values()])
    hooked.clear()
    find(subject, Rows())
    assert {*hooked} == {1, 2}
    assert same([state(subject), *optimizer.slow.values()], before)


@FINDERS
def test_several_optimizers_and_what_a_subclass_keeps_are_copied_together(find: Finder) -> None:
    class Own(hr.Trainer):
        calls: Any
        head: Any

        def train_step(self, batch: hr.Batch) -> hr.Outcome:
            self.calls.append(self.head is self.model["b"])
            return super().train_step(batch)

    model = nn.ModuleDict({"a": nn.Linear(5, 2), "b": nn.Linear(5, 2)})
    model.forward = MethodType(lambda self, x: {key: self[key](x) for key in "ab"}, model)
    optimizers: Any = {key: torch.optim.Adam(model[key].parameters(), lr=0.1) for key in "ab"}
    optimizers["b"] = optimizers["b"], "2 steps"
    subject = Own(model, {key: hr.CrossEntropy(output=key) for key in "ab"}, optimizers, batch_size=4)
    subject.head, subject.calls = model["b"], list[bool]()
    before = state(model)
    find(subject, Rows())
    assert subject.calls == []
    assert same(model, before)
    subject.fit(Rows(), epochs=1, progress=False)
    assert subject.calls
    assert all(subject.calls)


@FINDERS
def test_what_cannot_be_copied_is_refused(find: Finder) -> None:
    model = nn.Linear(5, 2)

    def penalised(outputs: Tensor, y: Tensor) -> Tensor:
        return nn.functional.cross_entropy(outputs, y) + 1e-3 * model.weight.square().sum()

    with pytest.raises(hr.ConfigError, match=r"used the model itself, by its name"):
        find(simple(model, loss=penalised), Rows())
    subject = trainer()
    subject.model.lock = threading.Lock()
    with pytest.raises(hr.ConfigError, match=r"train a copy .* cannot be copied: TypeError: cannot pickle '_thread"):
        find(subject, Rows())

    def on_worker() -> str:
        with pytest.raises(hr.ConfigError) as refused:
            find(trainer(), Rows())
        return str(refused.value)

    assert "or more than one process: 2." in hr.launch(on_worker, workers=2)


# --- the rate ----------------------------------------------------------------------------------------------


def quadratic(*, curvature: float = 1.0, **options: Any) -> tuple[hr.Trainer, tuple[Tensor, Tensor]]:
    """One weight, plain gradient descent: it comes apart where rate times curvature is above 2."""
    model = nn.Linear(1, 1, bias=False)
    nn.init.constant_(model.weight, 3.0)
    x = torch.full((64, 1), (curvature / 2) ** 0.5)
    return simple(model, loss=hr.MSE(), **{"batch_size": 64, **options}), (x, torch.zeros(64, 1))


@pytest.mark.parametrize("curvature", [0.1, 1.0, 100.0])
def test_the_suggestion_is_where_plain_descent_still_comes_down(curvature: float) -> None:
    subject, data = quadratic(curvature=curvature)
    found = subject.find_lr(data, highest=1e4)
    assert found.suggestion is not None
    assert 0.05 / curvature < found.suggestion < 2 / curvature
    assert 2 / curvature < max(found.losses) < 2000 / curvature, "it has stopped when the training came apart"
    assert "it diverged at" in found.how


def test_groups_keep_their_ratios() -> None:
    seen = []

    class Watching(hr.Trainer):
        def train_step(self, batch: hr.Batch) -> hr.Outcome:
            seen.append([float(group["lr"]) for group in self.optimizer.param_groups])
            return super().train_step(batch)

    found = trainer(Watching, clip_norm=None).find_lr(Rows(), lowest=1e-6, highest=1e-3, steps=13)
    assert [first for first, _ in seen] == pytest.approx([*found.losses])
    assert [*found.losses] == pytest.approx(np.geomspace(1e-6, 1e-3, 13))
    assert all(second == pytest.approx(5 * first) for first, second in seen)


def test_a_loss_that_does_not_fall_suggests_nothing() -> None:
    model = nn.Linear(5, 2)
    nn.init.zeros_(model.weight)
    data = torch.randn(64, 5), torch.randint(0, 2, (64,))
    found = simple(model, batch_size=16).find_lr(data, lowest=1e-12, highest=1e-9)
    assert found.suggestion is None
    assert "does not fall" in found.how


@pytest.mark.parametrize("options", [{}, {"nonfinite": "skip"}], ids=["stop", "skip"])
def test_a_loss_that_is_not_finite_from_the_start_is_an_error(options: dict[str, Any]) -> None:
    subject, (x, y) = quadratic(**options)
    before = state(subject)
    with pytest.raises(hr.NonFiniteError, match=r"not finite after 0 updates, at a rate of 1e-07.*NaN in the data"):
        subject.find_lr((x * torch.nan, y))
    assert same(subject, before)
    assert subject.skipped == 0


# --- the batch size ----------------------------------------------------------------------------------------


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("headrace.train.find.time", clock)
    return clock


class Timed(nn.Module):
    """Takes time for each call and each row, and runs out of memory, as it says, with more rows than fit."""

    def __init__(self, clock: Clock, fits: int = 10**6, call_s: float = 0.003, row_s: float = 0.0) -> None:
        super().__init__()
        self.layer, self.clock, self.fits, self.call_s, self.row_s = nn.Linear(5, 2), clock, fits, call_s, row_s

    def forward(self, x: Tensor) -> Any:
        if len(x) > self.fits:
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes.")
        self.clock.passes(self.call_s + len(x) * self.row_s)
        return self.layer(x)


def sizes(model: nn.Module, rows: int, **options: Any) -> tuple[list[int], str, int]:
    """Which sizes are tried, why no more are, and the suggestion."""
    found = simple(model).find_batch_size(Rows(rows), **{"seconds": 0.001, **options})
    return [*found.speeds], found.how, found.suggestion


@pytest.mark.parametrize("microbatch", [None, "auto"])
def test_it_ends_where_memory_runs_out(microbatch: Any, clock: Clock) -> None:
    subject = simple(Timed(clock, 50), microbatch=microbatch)
    found = subject.find_batch_size(Rows(400), seconds=0.001, smallest=4)
    assert ([*found.speeds], found.how) == ([4, 8, 16, 32], "memory ran out with 64 rows")
    assert found.suggestion == 32, "with twice the rows it is twice as fast"
    assert (subject.updates.adapts, subject.updates.microbatch) == (microbatch == "auto", None)
    with pytest.raises(hr.OutOfMemoryError, match="does not hold 8 rows"):
        sizes(Timed(clock, 5), 400)


def test_it_ends_with_the_data_with_what_is_asked_for_and_when_more_rows_are_no_faster(clock: Clock) -> None:
    assert sizes(Timed(clock), 70, smallest=16) == ([16, 32, 64], "there are 70 rows", 64)
    asked = sizes(Timed(clock), 400, smallest=4, largest=15)
    assert asked == ([4, 8], "15 rows are the most that was asked for", 8)
    slow = Timed(clock, call_s=0.0, row_s=2e-4)
    found = simple(slow).find_batch_size(Rows(4000), seconds=0.02, smallest=16)
    assert (found.how, found.suggestion) == ("two sizes in a row were no faster", 16)
    assert found.speeds == pytest.approx({16: 5000, 32: 5000, 64: 5000})
