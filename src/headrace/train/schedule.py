"""Learning rates that move: by the progress, by lengths, and by torch's own schedulers."""

import inspect
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from numbers import Real
from typing import Any

from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from ..errors import CheckpointError, ConfigError
from ..length import Counters, Length, Points, interval
from ..step.arguments import groups_of, put_rate
from ..store.shape import COUNT, check, like, maybe
from ..watch.history import History
from ..watch.monitor import Expected, check_watched, number_of
from .curves import RateCurve, totals_of

Factor = Callable[[float], float]
Maker = Callable[[Optimizer, int | None], LRScheduler] | Callable[[Optimizer], LRScheduler]

_TAKES = (
    "schedule= takes a function of the progress (0 at the first update, 1 at the end) that gives a factor, rates by "
    "lengths, as in {0: 1e-2, '5 epochs': 1e-3}, or hr.Schedule(make), where make(optimizer) or make(optimizer, "
    "total_steps) returns a torch scheduler"
)


class Schedule:
    """A torch scheduler and when it steps.

    Args:
        make: a function of the optimizer, or of (optimizer, total_steps), that returns a scheduler; it is called with
            as many arguments as it requires
        every: after which interval the scheduler steps
        monitor: what `ReduceLROnPlateau` is given, which waits until it is measured: its patience counts measurements
    """

    def __init__(self, make: Maker, *, every: str | Length = "1 epoch", monitor: str = "val/loss") -> None:
        if not callable(make):
            raise ConfigError(f"a Schedule takes a function of (optimizer, total_steps), got a {type(make).__name__}.")
        if (kind := _class_of(make)) and _required(make) > 1:
            raise ConfigError(
                f"{kind.__name__} needs more than the optimizer. Give it to a function of the optimizer: "
                f"hr.Schedule(lambda optimizer: {kind.__name__}(optimizer, ...))."
            )
        self.make, self.every, self.monitor = make, interval(every, "every"), monitor

    def scheduler(self, optimizer: Optimizer, total: int | None) -> LRScheduler:
        """The scheduler of an optimizer in a training of so many steps."""
        arguments = (optimizer, total) if _required(self.make) > 1 else (optimizer,)
        made = _called(self.make, arguments, "made no scheduler")
        if not isinstance(made, LRScheduler):
            raise ConfigError(f"schedule= made a {type(made).__name__}. {_TAKES}.")
        return made


def _called(function: Callable[..., Any], arguments: tuple[Any, ...], failure: str) -> Any:
    """What a user's function returns. An error in it becomes one that names what `schedule=` takes."""
    try:
        return function(*arguments)
    except Exception as error:
        reason = f"{type(error).__name__}: {str(error).rstrip('.')}"
        raise ConfigError(f"schedule= {failure.format(*arguments)}: {reason}. {_TAKES}.") from error


def _required(function: Any) -> int:
    """How many arguments a function requires by position; two where Python cannot tell."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return 2
    return sum(p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) and p.default is p.empty for p in parameters)


def _class_of(function: Any) -> type[LRScheduler] | None:
    """The class of torch's schedulers that this is, or of which it is a `partial`."""
    kind = getattr(function, "func", function)
    return kind if isinstance(kind, type) and issubclass(kind, LRScheduler) else None


def check_schedule(schedule: Any) -> None:
    """Raises unless it is something that `schedule=` takes."""
    if isinstance(schedule, Mapping):
        _points_of(schedule)
        return
    kind = type(schedule) if isinstance(schedule, LRScheduler) else _class_of(schedule)
    if kind is not None:
        raise ConfigError(
            f"schedule= takes no {kind.__name__} itself, since every training begins with a new one. Pass "
            f"hr.Schedule(lambda optimizer: {kind.__name__}(optimizer, ...)), which steps after each epoch, or with "
            "every='1 step' after each update."
        )
    if schedule is not None and not isinstance(schedule, Schedule) and not callable(schedule):
        raise ConfigError(f"{_TAKES}; got a {type(schedule).__name__}.")


def interval_of(schedule: Any) -> Length | None:
    """How often a torch scheduler steps; `None` where there is none."""
    return schedule.every if isinstance(schedule, Schedule) else None


def make_rates(
    schedule: Any,
    optimizers: Sequence[Optimizer],
    limits: Sequence[Length],
    batches: int | None,
    rows: int | None = None,
) -> "Rates":
    """The rates of one training, which ends with the first of its limits.

    An epoch has so many `batches`, or `rows` of all workers, where that is known.
    """
    if schedule is None:
        return Rates(optimizers)
    if isinstance(schedule, Mapping):
        return _ByLength(schedule, optimizers)
    if isinstance(schedule, Schedule):
        return _ByTorch(schedule, optimizers, limits, batches)
    return _ByProgress(schedule, optimizers, limits, batches, rows)


def begin_anew(optimizers: Sequence[Optimizer]) -> None:
    """Sets rates to where the last training began, or keeps those that have been changed since it ended."""
    for group in groups_of(optimizers):
        group.setdefault("initial_lr", float(group["lr"]))
        if (left := group.get("last_lr")) is not None:
            if float(group["lr"]) != left:
                group["initial_lr"] = float(group["lr"])
            put_rate(group, group["initial_lr"])


def note_last(optimizers: Sequence[Optimizer]) -> None:
    """Remembers the rates at the end of a training: the next one sees by them whether others have been set."""
    for group in groups_of(optimizers):
        group["last_lr"] = float(group["lr"])


class Rates:
    """What moves the rates of a training; this one moves nothing."""

    moves = False
    """Whether `before` does anything."""
    asks = False
    """Whether it calls a function of the user's."""

    def __init__(self, optimizers: Sequence[Optimizer]) -> None:
        self._optimizers, self._groups = optimizers, groups_of(optimizers)

    def check(self, expected: Expected) -> None:
        """Raises on rates that follow a number which will not be measured."""

    def before(self, counters: Counters) -> None:
        """Sets the rates of the next update."""

    def after(self, counters: Counters, history: History) -> None:
        """An update has been made, and what was due after it has been measured."""

    def state_dict(self) -> list[Any]:
        return []

    def load_state_dict(self, state: list[Any]) -> None:
        pass

    def rebase(self) -> None:
        """Sets the rates that the user has set, in place of those of the training that is resumed."""
        for group in self._groups:
            put_rate(group, group.get("initial_lr", float(group["lr"])))


class _ByLength(Rates):
    """The rate of the first group, from each point of the training on; others keep their ratio to it."""

    moves = True

    def __init__(self, given: Mapping[Any, float], optimizers: Sequence[Optimizer]) -> None:
        super().__init__(optimizers)
        self._points = _points_of(given)
        for group in self._groups:
            group.setdefault("initial_lr", float(group["lr"]))
        if not self._groups[0]["initial_lr"]:
            raise ConfigError(
                "schedule= gives the rate of the optimizer's first group, to which others keep their ratio, and that "
                "group has the rate 0. Make the optimizer with a rate above 0."
            )

    def before(self, counters: Counters) -> None:
        rate, groups = self._points.at(counters), groups_of(self._optimizers)
        first = groups[0]["initial_lr"]
        for group in groups:  # perhaps more than at the beginning
            put_rate(group, rate * (group.setdefault("initial_lr", float(group["lr"])) / first))


def _points_of(given: Mapping[Any, float]) -> Points[float]:
    rates: dict[Any, float] = {}
    for key, rate in given.items():
        if isinstance(rate, bool) or not isinstance(rate, Real) or not 0 <= float(rate) < math.inf:
            raise ConfigError(f"schedule= gives rates that are not negative, got {rate!r} for {key!r}.")
        rates[key] = float(rate)
    return Points(rates, "schedule", "{0: 1e-2, '5 epochs': 1e-3}")


class _ByProgress(Rates):
    """The first rate times a factor, anew for every update."""

    moves = True

    def __init__(
        self,
        factor: Factor,
        optimizers: Sequence[Optimizer],
        limits: Sequence[Length],
        batches: int | None,
        rows: int | None,
    ) -> None:
        super().__init__(optimizers)
        self._factor = factor
        self.asks = not isinstance(factor, RateCurve)
        self._limits = [limit for limit in limits if limit.unit != "minutes"]
        if not self._limits:
            raise ConfigError("a schedule by progress needs a limit in epochs, steps or samples: minutes vary.")
        self._batches, self._rows = batches, rows
        self._before: int | None = batches  # how many batches an epoch had when the training was saved
        self._shift = 0  # how many more of the epoch's batches have been used than were counted
        self._begun = 0  # how many rows had been used when the epoch began
        self._counted: list[dict[str, float]] = []  # the parts of a curve in the unit of each limit
        if isinstance(factor, RateCurve) and factor.has_lengths:
            totals = totals_of(self._limits, batches, rows)
            self._counted = [factor.counted(limit, totals) for limit in self._limits]
        for group in self._groups:
            group.setdefault("initial_lr", float(group["lr"]))

    def before(self, counters: Counters) -> None:
        shares = [self._share(limit, counters) for limit in self._limits]
        progress = max(shares)
        if self._counted:
            factor = self._by_lengths(shares.index(progress), progress, counters)
        else:
            factor = _called(self._factor, (progress,), "failed at the progress {0:g}")
        if not isinstance(factor, float | Real | Tensor):
            made = type(factor).__name__
            raise ConfigError(f"schedule= gave a {made} at the progress {progress:g}, not a number. {_TAKES}.")
        for group in groups_of(self._optimizers):  # perhaps more than at the beginning
            put_rate(group, group.setdefault("initial_lr", float(group["lr"])) * factor)

    def after(self, counters: Counters, history: History) -> None:
        if counters.ends_epoch:
            self._begun, self._shift = counters.samples, 0

    def _by_lengths(self, number: int, progress: float, counters: Counters) -> float:
        """The factor of a curve, of whose parts some are lengths: counted in the unit of the limit that is nearest."""
        assert isinstance(self._factor, RateCurve)
        limit = self._limits[number]
        done = progress * limit.count if limit.unit == "epochs" else getattr(counters, limit.unit)
        return self._factor.factor(min(done, limit.count), limit.count, self._counted[number])

    def _share(self, limit: Length, counters: Counters) -> float:
        """How much of a limit has been used: of epochs by batches, else by rows, else by the epochs that are over."""
        count, batches = limit.count, self._batches
        if limit.unit != "epochs":
            return float(getattr(counters, limit.unit) / count)
        if batches:
            if self._before and self._before != batches:  # the training goes on with batches of another size
                rows = self._rows and (counters.samples - self._begun) / self._rows
                used = rows or (counters.batch + self._shift) / self._before
                self._before, self._shift = batches, round(used * batches) - counters.batch
            return (counters.epochs * batches + min(batches, counters.batch + self._shift)) / (count * batches)
        if self._rows:
            return counters.samples / (count * self._rows)
        used = (counters.samples - self._begun) / (self._begun / counters.epochs) if self._begun else 0.5
        return (counters.epochs + min(1.0, used)) / count

    def state_dict(self) -> list[Any]:
        return [{"batches": self._before, "shift": self._shift, "begun": self._begun}]

    def load_state_dict(self, state: list[Any]) -> None:
        self._before, self._shift, self._begun = (state[0][name] for name in ("batches", "shift", "begun"))


class _ByTorch(Rates):
    """Torch's schedulers, one for each optimizer."""

    asks = True

    def __init__(
        self, schedule: Schedule, optimizers: Sequence[Optimizer], limits: Sequence[Length], batches: int | None
    ) -> None:
        super().__init__(optimizers)
        self._schedule, self._total = schedule, _total_steps(limits, batches) if _required(schedule.make) > 1 else None
        begun = [float(group.pop("initial_lr", group["lr"])) for group in self._groups]  # torch would keep it
        self._schedulers = [schedule.scheduler(optimizer, self._total) for optimizer in optimizers]
        for group, rate in zip(self._groups, begun, strict=False):  # not all of torch's schedulers remember it
            group["initial_lr"] = float(group.get("initial_lr", rate))
        for made in self._schedulers:
            if all(made.optimizer is not optimizer for optimizer in optimizers):
                raise ConfigError("schedule= made a scheduler of another optimizer. Use the one that it is given.")
        self._plateaus = [made for made in self._schedulers if isinstance(made, ReduceLROnPlateau)]
        self._waits = False  # whether it is time for these, as soon as their number is measured

    def check(self, expected: Expected) -> None:
        if self._plateaus:
            check_watched("ReduceLROnPlateau", self._schedule.monitor, expected, own=False)

    def after(self, counters: Counters, history: History) -> None:
        if self._schedule.every.fires(counters):
            self._waits = bool(self._plateaus)
            for scheduler in self._schedulers:
                if not isinstance(scheduler, ReduceLROnPlateau):
                    scheduler.optimizer._opt_called = True  # type: ignore[attr-defined]  # perhaps at a later step
                    scheduler.step()
        if not self._waits or not history.keys_at(counters.steps):
            return
        value = number_of("ReduceLROnPlateau", self._schedule.monitor, history.rows[-1])
        if value is not None:
            self._waits = False
            for plateau in self._plateaus:
                plateau.step(value)

    def state_dict(self) -> list[Any]:
        facts = {"total": self._total, "waits": self._waits}
        return [{"kind": type(s).__name__, "state": s.state_dict(), **facts} for s in self._schedulers]

    def load_state_dict(self, state: list[Any]) -> None:
        kinds = [type(scheduler).__name__ for scheduler in self._schedulers]
        if kinds != [saved["kind"] for saved in state]:
            raise CheckpointError(f"the schedule was {[saved['kind'] for saved in state]} and is {kinds}.")
        for scheduler, saved in zip(self._schedulers, state, strict=True):
            if saved["total"] != self._total:
                raise CheckpointError(
                    f"the schedule was made for {saved['total']} steps, and there are to be {self._total}: torch's "
                    "schedulers do not stretch. Use a function of the progress (hr.Cosine), or another run."
                )
            now, found = scheduler.state_dict(), saved["state"]
            if type(scheduler).__module__.startswith("torch.optim."):  # what another one keeps may change its kind
                shape: dict[str, Any] = {key: maybe(like(value)) for key, value in now.items()}
                shape |= {"_step_count": COUNT} if "_step_count" in found else {}
                check(found, shape, f"the saved {saved['kind']}")
            scheduler.load_state_dict(_as_counters(found, now))
            self._waits = bool(saved.get("waits", False))

    def rebase(self) -> None:
        for scheduler in self._schedulers:
            for part in [scheduler, *getattr(scheduler, "_schedulers", [])]:
                if isinstance(part, LRScheduler) and hasattr(part, "base_lrs"):
                    part.base_lrs = [group["initial_lr"] for group in part.optimizer.param_groups]


def _as_counters(saved: Any, now: Any) -> Any:
    """A state with Counters where torch has them now, as for milestones: saved, they are dicts like any other."""
    if isinstance(now, Counter):
        return Counter(saved)
    if isinstance(now, Mapping) and isinstance(saved, Mapping):
        return {key: _as_counters(value, now.get(key)) for key, value in saved.items()}
    if isinstance(now, list) and isinstance(saved, list) and len(now) == len(saved):
        return [_as_counters(before, after) for before, after in zip(saved, now, strict=True)]
    return saved


def _total_steps(limits: Sequence[Length], batches: int | None) -> int | None:
    """How many updates there will be at most, where that is known."""
    totals = [int(limit.count) for limit in limits if limit.unit == "steps"]
    totals += [int(limit.count) * batches for limit in limits if limit.unit == "epochs" and batches]
    return min(totals, default=None)
