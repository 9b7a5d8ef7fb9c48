"""Restores a trainer bit for bit after it was tried out."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from typing import TYPE_CHECKING, Any

from ..adapters.passes import generators_of
from ..data.reader import rewound
from ..data.source import Source
from ..errors import ConfigError
from ..loss.by_output import MetricsByOutput
from ..step.given import source_on
from ..step.kept import Kept
from ..store import rng
from ..watch.info import Info
from ..workers.here import here

if TYPE_CHECKING:
    from .trainer import Trainer

Steps = Callable[..., Iterator[Info]]
"""`Trainer.steps` of the trainer that is tried out."""


@contextmanager
def untouched(trainer: Trainer, data: Any) -> Iterator[Source]:
    """The train data as a source, for a while that leaves no trace, however it ends.

    Put back are weights and buffers, modes and attributes of modules, optimizers with what they remember, gradients,
    the random numbers of torch, NumPy and Python, the place in the data, and the trainer's history and settings. There
    is neither a schedule nor a metric meanwhile. Copies are on the host, so that the device's memory is free.
    """
    if here().count > 1:
        raise ConfigError(f"a finder tries things out in one process, and there are {here().count}. Call it in one.")
    trainer.release()
    with ExitStack() as stack:
        stack.callback(rng.restore, rng.capture(trainer.device), trainer.device)
        source = source_on(data, trainer.device, "train", trainer.order, trainer.seed)
        for generator in generators_of(data):
            stack.callback(generator.set_state, generator.get_state())
        if source.state_dict() is None:
            warnings.warn(
                f"{source.title} has no state_dict: what is read to try things out is not read again.", stacklevel=4
            )
        stack.enter_context(rewound(source))
        stack.callback(_kept(trainer).restore)
        stack.callback(trainer.precision.load_state_dict, trainer.precision.state_dict())
        stack.callback(trainer.release)  # first of all
        vars(trainer).update(schedule=None, metrics=MetricsByOutput())
        trainer.updates.adapts = False  # memory that runs out is something to be told of
        yield source


@contextmanager
def updates(steps_of: Steps, source: Source, steps: int) -> Iterator[Iterator[Info]]:
    """Up to so many updates of a training on this source, which may be left."""
    found = steps_of(source, steps=steps, log_every=f"{steps} steps")
    with closing(found):  # type: ignore[type-var]
        yield found


def _kept(trainer: Trainer) -> Kept:
    """What a trainer holds, and what it works on."""
    kept = Kept()
    step = trainer.updates
    objectives = [*trainer.objectives.values(), *trainer.eval_objectives.values()]
    for holder in [trainer, trainer.team, trainer.strategy, step, step.guard, *objectives]:
        kept.keep(vars(holder), deep=False)
    for root in trainer.all_modules:
        for module in root.modules():
            kept.keep(vars(module))
    for optimizer in trainer.optimizers.values():
        kept.keep(vars(optimizer))
    return kept
