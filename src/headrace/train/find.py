"""Suggests a learning rate or a batch size, by short trainings of a copy of the trainer."""

import copy
import math
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from ..adapters.loaders import end_workers, has_workers
from ..arena.own_optimizers import parts_of
from ..data.source import Source
from ..data.wrapped import rewound
from ..errors import ConfigError, NonFiniteError, is_out_of_memory
from ..length import as_count
from ..step import check
from ..step.arguments import groups_of, put_rate, shares_of
from ..store import rng
from ..workers.here import here
from .plan import train_source

FEWEST = 10  # updates that show anything
WARM, TIMED = 2, (3, 50)  # updates that are not timed, and those that are: at least and at most
GAIN, NEAR = 1.05, 0.95  # speed that is worth another size; share of the best speed that is as good


@dataclass(frozen=True, slots=True)
class LrFinding:
    """Losses by rate, and the rate at which the smoothed loss falls fastest (`None` if it does not fall)."""

    losses: dict[float, float] = field(repr=False)
    suggestion: float | None
    how: str


@dataclass(frozen=True, slots=True)
class BatchFinding:
    """Rows a second by batch size, and the smallest size that is about as fast as the fastest."""

    speeds: dict[int, float]
    suggestion: int
    how: str


def find_lr(trainer: Any, train: Any, *, lowest: float = 1e-7, highest: float = 10.0, steps: int = 100) -> LrFinding:
    """Trains for up to `steps` updates, while the rate rises from `lowest` to `highest` by equal factors.

    It ends as soon as the loss diverges. Groups of parameters keep their ratios; there is no schedule.
    Smith, https://arxiv.org/abs/1506.01186.
    """
    if not 0 < lowest < highest < math.inf:
        raise ConfigError(f"lowest= is above 0 and below highest=, got {lowest!r} and {highest!r}.")
    if (count := as_count(steps, FEWEST)) is None:
        raise ConfigError(f"steps= is a number of updates, at least {FEWEST}, got {steps!r}: fewer show nothing.")
    losses, diverged = dict[float, float](), False
    with _copied(trainer, train) as (tried, source):
        groups = groups_of(tried.optimizers.values())
        if not (shares := shares_of(groups)):
            raise ConfigError("the first group's rate is 0, so that others are in no proportion to it. Give it a rate.")
        with closing(tried.steps(source, steps=count, log_every=f"{count} steps")) as updates:
            for rate in map(float, np.geomspace(lowest, highest, count)):
                for group, share in zip(groups, shares, strict=True):
                    put_rate(group, rate * share)
                try:
                    if (info := next(updates, None)) is None:  # a train_step has stopped the training
                        break
                    losses[rate] = float(info.outcome.losses["total_loss"])
                except NonFiniteError:
                    losses[rate] = math.inf
                if diverged := _diverged([*losses.values()]):
                    break
    last, loss = [*losses.items()][-1]
    if not math.isfinite(loss) and len(losses) <= FEWEST:
        raise NonFiniteError(
            f"the loss is not finite after {len(losses) - 1} updates, at a rate of {last:.2g}: too few to see "
            "anything. Lower lowest=, or look for NaN in the data."
        )
    why = f"it diverged at {last:.2g}" if diverged else f"up to {last:.2g} it did not diverge"
    return _suggest({rate: loss for rate, loss in losses.items() if math.isfinite(loss)}, why)


def _diverged(losses: Sequence[float]) -> bool:
    """Whether the last loss is not finite, or a mean of five is far above the best one."""
    if not math.isfinite(losses[-1]):
        return True
    means = [float(np.mean(losses[max(0, end - 5) : end])) for end in range(1, len(losses) + 1)]
    return means[-1] > min(means) + 3 * max(abs(min(means)), 0.1 * abs(losses[0]))


def _suggest(found: Mapping[float, float], why: str) -> LrFinding:
    """The steepest descent before the lowest point, if the loss falls by more than its noise."""
    rates, losses = [*found], [*found.values()]
    half = max(1, len(losses) // 20)
    padded = np.pad(losses, half, mode="reflect", reflect_type="odd")  # so that a mean at an end is of its trend
    smoothed = np.convolve(padded, np.full(2 * half + 1, 1 / (2 * half + 1)), mode="valid")
    lowest = half + int(smoothed[half : max(half + 1, len(losses) - half)].argmin())
    noise = float(np.std(np.array(losses)[: lowest + 1] - smoothed[: lowest + 1]))
    if smoothed[half] - smoothed[lowest] <= 2 * noise:
        how = f"the loss does not fall by more than its noise between {rates[0]:.2g} and {rates[-1]:.2g}; {why}"
        return LrFinding({**found}, None, how)
    slopes = np.gradient(smoothed, np.log10(rates))
    steepest = half + int(slopes[half : lowest + 1].argmin())
    how = f"there the loss, a mean of {2 * half + 1}, falls fastest by the logarithm of the rate; {why}"
    return LrFinding({**found}, rates[steepest], how)


def find_batch_size(
    trainer: Any, train: Any, *, smallest: int = 8, largest: int | None = None, seconds: float = 0.5
) -> BatchFinding:
    """Makes a few updates with batches of `smallest` rows, of twice as many, and so on, for about `seconds` each.

    It ends with `largest`, with the rows there are, when two sizes in a row are no faster than those before, or when
    memory runs out. The rates are 0 meanwhile.
    """
    for name, value in {"smallest": smallest, "largest": largest}.items():
        check.positive(name, value, whole=True)
    check.positive("seconds", seconds)
    if largest is not None and largest < smallest:
        raise ConfigError(f"largest= is not below smallest=, got {largest} and {smallest}.")
    size, speeds, how = int(smallest), dict[int, float](), ""
    with _copied(trainer, train) as (tried, source):
        if tried.microbatch == "auto":
            tried.microbatch = None  # else it would hide that memory runs out
        if source.own_size:
            raise ConfigError(f"{source.title} has batches of its own size. Try the data that it loads, or another.")
        for group in groups_of(tried.optimizers.values()):
            put_rate(group, 0.0)
        while not how:
            try:
                speeds[size] = _speed(tried, source, size, seconds)
            except Exception as error:
                if not speeds or not any(is_out_of_memory(e) for e in (error, error.__cause__) if e is not None):
                    raise
                how = f"memory ran out with {size} rows"
            else:
                how = _why_enough(speeds, largest, source.batches(1))
            size *= 2
    return BatchFinding(speeds, next(s for s in speeds if speeds[s] >= NEAR * max(speeds.values())), how)


def _why_enough(speeds: dict[int, float], largest: int | None, rows: int | None) -> str:
    """Why the next size is not tried, if it is not."""
    following, measured = 2 * max(speeds), [*speeds.values()]
    if largest is not None and following > largest:
        return f"{largest} rows are the most that was asked for"
    if rows is not None and following > rows:
        return f"there are {rows} rows"
    if len(measured) > 2 and max(measured[-2:]) < GAIN * max(measured[:-2]):
        return "two sizes in a row were no faster"
    return ""


def _speed(trainer: Any, source: Source, size: int, seconds: float) -> float:
    """Rows a second with batches of this size."""
    trainer.batch_size, most, times = size, WARM + TIMED[1], list[tuple[float, int]]()
    with rewound(source), closing(trainer.steps(source, steps=most, log_every=f"{most} steps")) as updates:
        for info in updates:
            if trainer.device.type == "cuda":
                torch.cuda.synchronize(trainer.device)
            times.append((time.perf_counter(), info.samples))
            if len(times) >= WARM + TIMED[0] and times[-1][0] - times[WARM - 1][0] >= seconds:
                break
    (start, before), (end, after) = times[WARM - 1], times[-1]
    return (after - before) / max(end - start, 1e-9)


@contextmanager
def _copied(trainer: Any, data: Any) -> Iterator[tuple[Any, Source]]:
    """A copy of the trainer, without schedule and metrics, and the train data as a source, which augments them.

    Afterwards the random numbers of torch, NumPy and Python and the place in the data are put back.
    """
    if trainer.strategy.shards or here().count > 1:
        raise ConfigError(
            "find_lr and find_batch_size train a copy of the model in one process, and here is a sharded model, or "
            f"more than one process: {here().count}. Call them in one, without strategy=."
        )
    with ExitStack() as stack:
        if not has_workers(data):  # those that would stay are ended
            stack.callback(lambda: end_workers(data, getattr(data, "_iterator", None)))
        stack.callback(rng.restore, rng.capture(trainer.device), trainer.device)
        source = train_source(trainer, data)
        for generator in source.generators:
            stack.callback(generator.set_state, generator.get_state())
        if source.state_dict() is None:
            warnings.warn(f"{source.title} has no state_dict: what is read now is not read again.", stacklevel=4)
        stack.enter_context(rewound(source))
        tried, before = _copy(trainer), _versions(trainer)
        yield tried, source
        if _versions(trainer) != before:
            raise ConfigError(
                "find_lr and find_batch_size train a copy of the model, and a loss or a train_step has used the model "
                "itself, by its name. In a train_step use self.model; a penalty on weights can be an hr.L2Prior."
            )


def _copy(trainer: Any) -> Any:
    """A copy of a trainer, whose model, losses and optimizers belong to each other."""
    trainer.release()  # parameters and optimizers are torch's ordinary ones again
    memo: dict[int, Any] = {}
    try:
        for parameter in trainer.model.parameters():  # deepcopy leaves out attributes and hooks of a parameter
            vars(twin := copy.deepcopy(parameter, memo)).update(vars(parameter))
            for hook in (parameter._backward_hooks or {}).values():
                twin.register_hook(hook)
            for hook in (parameter._post_accumulate_grad_hooks or {}).values():
                twin.register_post_accumulate_grad_hook(hook)
        for optimizer in [part for each in trainer.optimizers.values() for part in parts_of(each)]:
            memo[id(optimizer)] = twin = object.__new__(type(optimizer))  # and of an optimizer what its class adds
            parts = {name: part for name, part in vars(optimizer).items() if name != "step"}  # a scheduler's wrapper
            vars(twin).update(copy.deepcopy(parts, memo))
        tried = copy.deepcopy(trainer, memo)
    except (TypeError, RuntimeError, NotImplementedError, AttributeError) as error:
        raise ConfigError(
            "find_lr and find_batch_size train a copy of the model, and this one cannot be copied: "
            f"{type(error).__name__}: {error}"
        ) from error
    tried.work_with(None)
    tried.schedule, tried.metrics, tried.augment = None, (), None  # the source changes the rows
    return tried


def _versions(trainer: Any) -> list[Any]:
    """What changes whenever a parameter or its gradient is written."""
    return [(p._version, id(p.grad), None if p.grad is None else p.grad._version) for p in trainer.model.parameters()]
