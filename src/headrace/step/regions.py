"""Parts of a model that are compiled by themselves, or computed again in the backward pass to save memory."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from ..arena.sharding import modules_named
from ..errors import ConfigError

Patterns = str | Sequence[str]
"""Names of modules, or patterns such as "blocks.*"."""


def change_in_place(model: nn.Module, compiled: bool | Patterns, recomputed: Patterns) -> None:
    """Compiles the model or the modules that are named, and makes others forget what is between their layers."""
    for _, module in modules_named(model, _listed(recomputed, "recompute"), "recompute"):
        _check_calls(module, recomputed)
        if not is_recomputed(module):
            module.forward = partial(checkpoint, module.forward, use_reentrant=False)
    if isinstance(compiled, bool):
        parts = [model] if compiled else []
    else:
        parts = [module for _, module in modules_named(model, _listed(compiled, "compile"), "compile")]
    for part in parts:
        _compile(part)


def is_recomputed(module: nn.Module) -> bool:
    """Whether a module computes what is between its layers again in the backward pass."""
    forward = vars(module).get("forward")
    return isinstance(forward, partial) and forward.func is checkpoint


def _compile(module: nn.Module) -> None:
    """As `module.compile()`, which leaves models made of torch's own containers as they are."""

    def call(*arguments: Any, **keywords: Any) -> Any:
        return module._call_impl(*arguments, **keywords)

    module._compiled_call_impl = torch.compile(call)


def _listed(patterns: Any, argument: str) -> list[str]:
    listed = [patterns] if isinstance(patterns, str) else patterns
    if not isinstance(listed, list | tuple) or not all(isinstance(pattern, str) for pattern in listed):
        raise ConfigError(f"{argument}= takes names of modules, as in 'blocks.*', got {patterns!r}.", argument=argument)
    return list(listed)


def _check_calls(module: nn.Module, patterns: Patterns) -> None:
    if isinstance(module, nn.ModuleList | nn.ModuleDict):
        raise ConfigError(
            f"recompute={patterns!r} names a list of modules, which is not called. Name what is in it: '....*'.",
            argument="recompute",
        )
