"""Memory that runs out: nothing is lost, nothing is held, and `microbatch="auto"` finds what fits."""

import gc
import re
import warnings
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import product
from typing import Any

import pytest
import torch
from kit import small
from kit.sampled import each
from kit.small import data, difference
from torch import Tensor, nn

import headrace as hr

BATCH = 8
X, Y = DATA = data(40)  # five batches

ERRORS: dict[str, Callable[[], BaseException]] = {
    "of torch": lambda: torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."),
    "of Python": lambda: MemoryError("3 GiB"),
    "of the allocator": lambda: RuntimeError(
        "[enforce fail at alloc_cpu.cpp:127] data. DefaultCPUAllocator: can't allocate memory: you tried to get 9 B."
    ),
}
PLACES = ["forward", "backward", "optimizer"]


class InBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, fail: Callable[[], None]) -> Tensor:
        ctx.fail = fail
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        ctx.fail()
        return gradient, None


class Hungry(nn.Module):
    """Raises where it is told; in the forward and backward pass only if it is given more rows than `fits`.

    `held` refers to what it has computed last.
    """

    def __init__(self, error: str, place: str, fits: int = 0, first: int = 1, plain: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        parts = [nn.Linear(6, 8), nn.Tanh()] if plain else [nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(0.4)]
        self.inner, self.last = nn.Sequential(*parts), nn.Linear(8, 3)
        self.error, self.place, self.fits, self.first = ERRORS[error], place, fits, first
        self.passes, self.sizes = 0, list[int]()
        self.held: list[weakref.ref[Tensor]] = []

    def forward(self, x: Tensor) -> Any:
        if not self.training:
            return self.last(self.inner(x))
        self.passes += 1
        hidden = self.inner(x)
        self.held = [weakref.ref(hidden)]
        if self.passes >= self.first and len(x) > self.fits:
            if self.place == "forward":
                raise self.error()
            if self.place == "backward":
                hidden = InBackward.apply(hidden, self.fail)  # type: ignore[no-untyped-call]
        self.sizes.append(len(x))
        return self.last(hidden)

    def fail(self) -> None:
        self.sizes.pop()
        raise self.error()


def never(error: str = "of torch", **options: Any) -> hr.Trainer:
    return make(Hungry(error, "never", **options))


def make(model: Hungry, half: bool = False, **options: Any) -> hr.Trainer:
    """A trainer, whose optimizer runs out of memory in a step if the model says so; then `half` an update is made."""
    trainer = small.trainer(model, **{"optimizer": small.adam, "batch_size": BATCH, **options})
    optimizer, calls = trainer.optimizer, list[int]()
    plain = optimizer.step

    def step(*arguments: Any, **keywords: Any) -> Any:
        calls.append(1)
        if len(calls) == model.first:
            if half:
                optimizer.param_groups[0]["params"][0].data.mul_(0.5)
            raise model.error()
        return plain(*arguments, **keywords)

    if model.place == "optimizer":
        optimizer.step = step  # type: ignore[method-assign]
    return trainer


def state(trainer: hr.Trainer) -> Any:
    """Weights, buffers, optimizer, and the generator that dropout draws from."""
    return small.state([trainer, torch.get_rng_state()])


def same(a: Any, b: Any) -> None:
    assert not (where := difference(a, b)), where


@contextmanager
def told(match: str, wanted: bool = True) -> Iterator[None]:
    """This is warned of, or nothing is; what else is warned of does not matter."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
    assert any(re.search(match, str(warning.message)) for warning in caught) == wanted


def quiet(trainer: hr.Trainer, **options: Any) -> hr.History:
    torch.manual_seed(5)
    return small.fit(trainer, DATA, **{"epochs": 1, **options})


def after(steps: int) -> hr.Trainer:
    """A trainer after so many updates."""
    trainer = never()
    torch.manual_seed(5)
    if steps:
        quiet(trainer, epochs=None, steps=steps)
    return trainer


def whole(out: Tensor, y: Tensor) -> Tensor:
    """Nothing is known of it, so that it needs the whole batch."""
    return nn.functional.cross_entropy(out, y)


# --- nothing is lost ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "place", "first", "auto"),
    [*each(ERRORS, PLACES, [3, 1], [False, True]), *product(["of torch"], PLACES, [3], [False, True])],
)
def test_a_step_that_the_memory_does_not_hold_leaves_everything_as_it_was(
    error: str, place: str, first: int, auto: bool
) -> None:
    """Weights, buffers, the optimizer, and the random numbers; `auto`: also where the batch cannot be split."""
    options: dict[str, Any] = {"loss": whole, "microbatch": "auto"} if auto else {}
    expected = state(after(first - 1))
    broken = make(Hungry(error, place, first=first), **options)
    with pytest.raises(hr.OutOfMemoryError) as caught:
        quiet(broken)
    assert isinstance(caught.value, MemoryError)
    text = str(caught.value)
    assert f"step {first} (rate 0.02, 8 rows" in text
    assert str(ERRORS[error]()).splitlines()[0][:40] in text
    if place != "optimizer":
        assert "weights are as they were" in text
        assert "8 rows at once" in text
        assert ("microbatch=4" in text and "'auto'" in text) == (not auto)
    same(state(broken), expected)


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("first", [1, 3])
@pytest.mark.parametrize("auto", [False, True])
def test_what_is_said_of_the_weights_after_an_optimizer_ran_out_of_memory_is_true(
    first: int, half: bool, auto: bool
) -> None:
    """It is no reason for smaller microbatches."""
    trainer = make(model := Hungry("of torch", "optimizer", first=first), half, microbatch="auto" if auto else None)
    with pytest.raises(hr.OutOfMemoryError, match="while the optimizer stepped") as caught:
        quiet(trainer)
    assert bool(difference(trainer.model, after(first - 1).model)) == half
    torn = "half an update: go on from the last checkpoint" in str(caught.value)
    assert ("weights are as they were" in str(caught.value)) != torn
    assert torn or not half
    assert model.sizes == [8] * first


@pytest.mark.parametrize("auto", [False, True])
@pytest.mark.parametrize("place", ["forward", "backward"])
@pytest.mark.parametrize("error", ERRORS)
def test_what_was_computed_is_let_go_while_the_error_is_still_held(error: str, place: str, auto: bool) -> None:
    model = Hungry(error, place, first=3, plain=True)
    trainer = make(model, microbatch="auto" if auto else None)
    gc.disable()
    try:
        with told("memory ran out", auto):
            quiet(trainer)
    except hr.OutOfMemoryError as caught:
        held = caught
    finally:
        gc.enable()
    assert [ref() for ref in model.held] == [None]
    assert held.__context__ is None
    assert held.__cause__ is None


def test_errors_of_another_kind_are_what_they_were_and_hold_what_was_computed() -> None:
    """The control: the reference is one that would live."""
    model = Hungry("of torch", "forward", first=3)
    model.error = lambda: RuntimeError("size mismatch")
    with pytest.raises(RuntimeError, match="size mismatch") as caught:
        quiet(make(model, microbatch="auto"))
    assert model.sizes == [8, 8]
    assert model.held[0]() is not None
    del caught


# --- what fits ------------------------------------------------------------------------------------------------


FITS = {7: [4, 4], 4: [4, 4], 3: [2] * 4, 1: [1] * 8, 8: [8]}
"""How many rows the memory holds, and which microbatches they are made to."""


@pytest.mark.parametrize(("error", "place", "fits"), each(ERRORS, ["forward", "backward"], FITS))
def test_microbatches_are_halved_until_they_fit_and_stay_so(error: str, place: str, fits: int) -> None:
    found, expected = make(model := Hungry(error, place, fits, plain=True), microbatch="auto"), never(plain=True)
    with told("memory ran out", fits < BATCH):
        rows = quiet(found).rows
    assert model.sizes == FITS[fits] * 5
    assert quiet(expected).last["train/loss"] == pytest.approx(rows[-1]["train/loss"], abs=1e-6)
    torch.testing.assert_close(found.model.state_dict(), expected.model.state_dict(), rtol=0, atol=2e-5)


@pytest.mark.parametrize("place", ["forward", "backward"])
def test_a_step_that_is_tried_again_draws_the_same_numbers_and_counts_its_rows_once(place: str) -> None:
    """What is left is what the smaller microbatch would have left by itself."""
    found = make(Hungry("of torch", place, 4), microbatch="auto")
    with pytest.warns(UserWarning, match="with microbatches its statistics"):
        expected = make(Hungry("of torch", "never"), microbatch=4)
    states = []
    for trainer in (found, expected):
        with told("memory ran out", trainer is found):
            quiet(trainer)
        states.append(state(trainer))
    same(*states)


@pytest.mark.parametrize("microbatch", ["auto", None, 4, 1])
def test_a_row_that_does_not_fit_ends_the_training(microbatch: Any) -> None:
    trainer = make(Hungry("of torch", "forward", plain=True), microbatch=microbatch)
    before = small.state(trainer)
    with told("memory ran out", microbatch == "auto"), pytest.raises(hr.OutOfMemoryError) as caught:
        quiet(trainer)
    rows = 1 if microbatch == "auto" else microbatch or BATCH
    assert f"the memory does not hold {rows} rows at once" in str(caught.value)
    assert ("Nothing smaller than a row" in str(caught.value)) == (rows == 1)
    same(trainer, before)


def test_a_loss_that_needs_the_whole_batch_is_not_split() -> None:
    with pytest.raises(hr.ConfigError, match="RowMean"):
        make(Hungry("of torch", "forward", 4), loss=whole, microbatch=4)
    model = Hungry("of torch", "forward", 4)
    with pytest.raises(hr.OutOfMemoryError):
        quiet(make(model, loss=whole, microbatch="auto"))
    assert model.passes == 1
    with told("memory ran out"):
        quiet(make(Hungry("of torch", "forward", 4, plain=True), loss=hr.RowMean(whole), microbatch="auto"))
