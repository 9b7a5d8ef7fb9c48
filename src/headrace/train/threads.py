"""Prints, once, that a small model trains faster with one thread than with the threads that torch uses."""

from __future__ import annotations

import copy
import sys
import time
from contextlib import suppress
from timeit import repeat
from typing import TYPE_CHECKING

import torch

from ..loss.objective import Supervised
from ..store import rng
from ..watch.callback import Callback
from ..watch.info import Info

if TYPE_CHECKING:
    from .trainer import Trainer

AFTER_S = 0.5  # of training; a shorter one is not worth a hint
LARGEST = 1 << 20  # elements of a model that is tried: a larger one has work for several threads
TIMES = 2.0  # how many times faster one thread has to be
_PASSES = 5


class ThreadHint(Callback):
    """Compares passes of a copy of the model with one thread and with all. The training is not changed.

    Only models of torch's own modules are tried: they can be called more often without an effect elsewhere.
    """

    everywhere = False
    each_step = False
    _looks_on = True

    def __init__(self, trainer: Trainer) -> None:
        self._trainer = trainer
        self._at = 0.0

    def on_fit_start(self, info: Info) -> None:
        wanted = torch.get_num_threads() > 1 and self._trainer.device.type == "cpu"
        self._at = time.perf_counter() + AFTER_S if wanted and _is_tried(self._trainer) else float("inf")

    def on_step_end(self, info: Info) -> None:
        if time.perf_counter() < self._at:
            return
        self._at = float("inf")
        with suppress(Exception):  # a model that cannot be copied gets no hint
            all_s, one_s = _times(self._trainer)
            if all_s > TIMES * one_s:
                print(
                    f"headrace: a pass of this model takes {1e3 * one_s:.2g} ms with one thread, and "
                    f"{1e3 * all_s:.2g} ms with {torch.get_num_threads()}. Trainer(threads=1) or OMP_NUM_THREADS=1 "
                    "uses one; the weights may then differ in their last bits.",
                    file=sys.stderr,
                )


def _is_tried(trainer: Trainer) -> bool:
    if sum(parameter.numel() for parameter in trainer.model.parameters()) > LARGEST:
        return False
    return all(type(module).__module__.startswith("torch.nn.") for module in trainer.model.modules()) and all(
        type(objective) is Supervised for objective in trainer.objectives.values()
    )


def _times(trainer: Trainer) -> tuple[float, float]:
    """Seconds that a forward and backward pass takes with torch's threads, and with one."""
    threads, random = torch.get_num_threads(), rng.capture(trainer.device)
    batch, objective = trainer.updates.last_batch, next(iter(trainer.objectives.values()))
    assert batch is not None
    assert isinstance(objective, Supervised)
    model = copy.deepcopy(trainer.model)

    def fastest() -> float:
        return min(repeat(lambda: objective.answers(model, batch).sum().backward(), number=1, repeat=_PASSES))

    try:
        with_all = fastest()
        torch.set_num_threads(1)
        return with_all, fastest()
    finally:
        torch.set_num_threads(threads)
        rng.restore(random, trainer.device)
