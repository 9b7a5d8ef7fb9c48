"""Copies a trainer with its model and optimizers, so that something can be tried without changing it."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

from ..adapters.passes import generators_of
from ..data.reader import rewound
from ..data.source import Source
from ..errors import ConfigError
from ..step.arguments import source_on
from ..store import rng
from ..workers.here import here

LIVE = ("batch_size", "microbatch", "clip_norm", "clip_value", "seed", "order", "macrobatch", "deterministic")
"""The settings that may have changed since the trainer was made."""
WITHOUT: dict[str, Any] = {"schedule": None, "metrics": (), "strategy": None, "eval_loss": None}


@contextmanager
def copied(trainer: Any, made_by: type, data: Any, **changed: Any) -> Iterator[tuple[Any, Source]]:
    """A copy of the trainer with some settings `changed`, and the train data as a source.

    `made_by`: the class whose arguments the settings are, `Trainer`. Afterwards the random numbers of torch, NumPy and
    Python and the place in the data are put back.
    """
    if trainer.strategy.shards:
        raise ConfigError("find_lr and find_batch_size train a copy of the model, and a sharded one cannot be copied.")
    if here().count > 1:
        raise ConfigError(
            f"find_lr and find_batch_size run in one process, and there are {here().count}. Call it in one."
        )
    with ExitStack() as stack:
        stack.callback(rng.restore, rng.capture(trainer.device), trainer.device)
        for generator in generators_of(data):
            stack.callback(generator.set_state, generator.get_state())
        source = source_on(data, trainer.device, "train", trainer.order, trainer.seed, augment=trainer.augment)
        if source.state_dict() is None:
            warnings.warn(f"{source.title} has no state_dict: what is read now is not read again.", stacklevel=4)
        stack.enter_context(rewound(source))
        tried, before = _copy(trainer, made_by, changed), _versions(trainer)
        yield tried, source
        if _versions(trainer) != before:
            raise ConfigError(
                "find_lr and find_batch_size train a copy of the model, and a loss or a train_step has used the model "
                "itself, by its name. In a train_step use self.model; a penalty on weights can be an hr.L2Prior."
            )


def _copy(trainer: Any, made_by: type, changed: Mapping[str, Any]) -> Any:
    """Another trainer of the same class: its model, losses and optimizers are copies that belong to each other."""
    trainer.release()  # parameters and optimizers are torch's ordinary ones again
    made_with = trainer.made_with
    tried = object.__new__(type(trainer))
    memo: dict[int, Any] = {id(trainer): tried}
    try:
        model = copy.deepcopy(trainer.model, memo)
        for parameter in trainer.model.parameters():  # deepcopy leaves out attributes and hooks of a parameter
            vars(memo[id(parameter)]).update(vars(parameter))
            for hook in (parameter._backward_hooks or {}).values():
                memo[id(parameter)].register_hook(hook)
        for optimizer in trainer.optimizers.values():
            _copy_optimizer(optimizer, memo)
        optimizers = made_with["optimizer"] if isinstance(made_with["optimizer"], Mapping) else trainer.optimizer
        loss, optimizers = copy.deepcopy((made_with["loss"], optimizers), memo)
        settings = made_with | {name: getattr(trainer, name) for name in LIVE} | WITHOUT | changed
        settings |= {"model": model, "loss": loss, "optimizer": optimizers}
        made_by.__init__(tried, **settings)  # type: ignore[misc]
        for name in vars(trainer).keys() - vars(tried).keys():  # of a subclass
            setattr(tried, name, copy.deepcopy(getattr(trainer, name), memo))
    except (TypeError, RuntimeError, NotImplementedError, AttributeError) as error:
        raise ConfigError(
            "find_lr and find_batch_size train a copy of the model, and this one cannot be copied: "
            f"{type(error).__name__}: {error}"
        ) from error
    return tried


def _copy_optimizer(optimizer: Any, memo: dict[int, Any]) -> None:
    """Copies also what an optimizer's class adds, which torch's own copy leaves out."""
    memo[id(optimizer)] = tried = object.__new__(type(optimizer))
    parts = {name: part for name, part in vars(optimizer).items() if name != "step"}  # a scheduler's wrapper of `step`
    vars(tried).update(copy.deepcopy(parts, memo))


def _versions(trainer: Any) -> list[Any]:
    """What changes whenever a parameter or its gradient is written."""
    parameters = [*trainer.model.parameters()]
    return [(p._version, id(p.grad), None if p.grad is None else p.grad._version) for p in parameters]
