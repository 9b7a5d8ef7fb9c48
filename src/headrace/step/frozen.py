"""Parameters that stay as they are for a part of a training."""

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase

from torch import nn

from ..arena.vectors import plain_name
from ..errors import ConfigError, unknown


class Frozen:
    """Frozen parameters of a model, by who wants them to be: one is trained once nobody does.

    A layer of frozen parameters that measures, as batch normalisation does, measures nothing meanwhile. Parameters
    that their owner keeps from being trained stay so.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self.owners: dict[str, set[str]] = {}
        """Names of parameters, by who has asked to freeze them."""
        self._names: set[str] = set()  # of all of them
        self._resting: list[nn.Module] = []  # layers in eval mode because of that

    def freeze(self, patterns: Sequence[str], owner: str) -> None:
        """Freezes parameters whose names match."""
        trained = {name for name, param in _params(self._model) if param.requires_grad} | self._names
        self.owners.setdefault(owner, set()).update(matching(self._model, patterns) & trained)
        self._set()

    def thaw(self, patterns: Sequence[str], owner: str) -> None:
        """This owner wants these to be trained again."""
        self.owners.setdefault(owner, set()).difference_update(matching(self._model, patterns))
        self._set()

    def restore(self, owners: Mapping[str, Sequence[str]]) -> None:
        """Freezes what these owners want, and nothing else."""
        self.owners = {owner: set(names) for owner, names in owners.items()}
        self._set()

    def _set(self) -> None:
        names = set().union(*self.owners.values())
        for name, param in _params(self._model):
            if (name in names) != (name in self._names):
                param.requires_grad_(name not in names)
                if name in names:
                    param.grad = None
        self._names = names
        for layer in self._resting:
            layer.training = True
        self._resting = [layer for layer in self._model.modules() if names and layer.training and _rests(layer)]
        for layer in self._resting:
            layer.training = False


def matching(model: nn.Module, patterns: Sequence[str]) -> set[str]:
    """The names of parameters that match any of these patterns, each of which matches one at least."""
    names = [name for name, _ in _params(model)]
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in names):
            raise ConfigError(f"no parameter is called so: {unknown('name', pattern, names)}")
    return {name for name in names if any(fnmatchcase(name, pattern) for pattern in patterns)}


def _params(model: nn.Module) -> list[tuple[str, nn.Parameter]]:
    return [(plain_name(name), param) for name, param in model.named_parameters()]


def _rests(layer: nn.Module) -> bool:
    """Whether it measures, and has parameters, all of which are frozen."""
    own = list(layer.parameters(recurse=False))
    measures = any(buffer.is_floating_point() for buffer in layer.buffers(recurse=False))
    return bool(own) and measures and not any(layer.children()) and not any(param.requires_grad for param in own)
