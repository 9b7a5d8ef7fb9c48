"""Updates by a `train_step` of the user's, and a warning of optimizers that it steps and a run does not save."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from torch import nn
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook

from ..arena.optimizer import is_plain
from ..arena.own_optimizers import params_of, parts_of
from ..data.batch import Batch
from ..errors import DataError
from ..loss.outcome import Outcome, as_outcome
from ..step import check
from ..step.arguments import batch_for, deterministic_mode
from ..step.holdings import inner_of
from ..step.settings import mode

if TYPE_CHECKING:
    from .trainer import Trainer


def update(trainer: Trainer, batch: Batch) -> Outcome:
    """One update by `train_step`. What an override has done is looked at."""
    updates, made = trainer.updates, trainer.updates.count
    if not trainer.has_own_train_step:
        return trainer.train_step(batch)
    updates.remember_not_finite()
    unsaved = trainer.last_training.unsaved
    with nullcontext() if unsaved is None else unsaved.watching():
        outcome = as_outcome(trainer.train_step(batch), "train_step", batch)
    if updates.count == made:
        check.own_update(
            trainer.resume_settings | asdict(updates.settings),
            trainer.strategy.shares_updates or trainer.strategy.parts > 0,
        )
        updates.count += 1
    updates.watch(outcome)
    return outcome


def step_by_hand(trainer: Trainer, given: Any, full_batch: bool, unchanged: bool) -> dict[str, Any]:
    """One update without a training, by this worker's part of the batch; the losses by name."""
    last, updates = trainer.last_training, trainer.updates
    check.can_train(trainer.optimizers, "step()")
    check.can_split(trainer.objectives, None, trainer.workers.sharing)
    trainer.workers.comm.at(updates.count, "training")
    batch = batch_for(trainer.model, given)
    if full_batch and batch.rows != (wanted := trainer.batch_sizes.first):
        raise DataError(
            f"step(full_batch=True) takes exactly batch_size={wanted} samples, got {batch.rows}. Give it as many; how "
            "many of them pass the model at once is microbatch=."
        )
    batch = trainer.workers.share(batch.to(trainer.device), trainer.model)
    try:
        before = updates.last_batch if unchanged else None
        is_like = last.streams and before is not None and before.macrobatch is batch.macrobatch is not None
        if not is_like and (streams := batch.streams) != last.streams:
            for objective in trainer.objectives.values():
                objective.prepare(streams, {})
            last.streams = streams
        plain = not trainer.has_own_train_step and all(each.training for each in trainer.all_modules)  # and stays so
        with (
            nullcontext() if plain else mode(trainer.all_modules, training=True),
            deterministic_mode(trainer.deterministic),
        ):
            outcome = updates.make(batch) if unchanged and plain else update(trainer, batch)
            (updates if trainer.has_own_train_step else updates.guard).settle()
    except BaseException as error:
        trainer.workers.mark_failed(error)
        raise
    return outcome.losses


class UnsavedOptimizers:
    """Finds optimizers that are stepped beside a trainer's own, and warns of those that a resumed run would miss."""

    def __init__(self, saved: Iterable[Optimizer], modules: Sequence[nn.Module], log: Callable[[str], None]) -> None:
        parts = [part for each in saved for part in (each, *parts_of(each))]
        self._known: WeakSet[Optimizer] = WeakSet(each for part in parts for each in (part, *inner_of(part).values()))
        self._modules, self._log = modules, log
        self._warnings: set[str] = set()  # the warnings that were given

    @contextmanager
    def watching(self) -> Iterator[None]:
        """For a while, finds the optimizers that this thread steps; then warns of them once, and logs it."""
        thread, found = threading.get_ident(), list[str]()

        def look(optimizer: Optimizer, *_: object) -> None:
            if optimizer not in self._known and threading.get_ident() == thread:
                self._known.add(optimizer)
                found.append(self._describe(optimizer))

        handle = register_optimizer_step_post_hook(look)
        try:
            yield
        finally:
            handle.remove()
        for message in found:
            if message and message not in self._warnings:
                self._warnings.add(message)
                self._log(message)
                warnings.warn(message, stacklevel=2)

    def _describe(self, optimizer: Optimizer) -> str:
        """What is lost of an optimizer when a run is resumed; nothing if it is stateless and its weights are saved."""
        params = params_of(optimizer)
        names = {param: name for module in self._modules for name, param in module.named_parameters()}
        outside, kind = sum(param not in names for param in params), type(optimizer).__name__
        scheduled = any("initial_lr" in group for group in optimizer.param_groups)
        if not outside and not scheduled and is_plain(optimizer):
            return ""
        if outside:
            trained = f"{outside} parameters that are not in the model"
            lost, remedy = f"neither these nor the state of {kind} are", "Make them part of the model, and give"
        else:
            trained = repr(names[params[0]]) + f" and {len(params) - 1} more" * (len(params) > 1)
            lost, remedy = f"the state of {kind} is not", "Give"
        return (
            f"train_step steps an optimizer that the trainer does not have: {kind} of {trained}. The run can be "
            f"resumed, but not exactly: {lost} saved with it. {remedy} the optimizer to the trainer, as in "
            "optimizer={'a': first, 'b': second}; in train_step it is self.optimizers['b']."
        )
