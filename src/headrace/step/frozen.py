"""Parameters that stay as they are for a part of a training."""

from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

from torch import nn

from ..arena.vectors import plain_name
from ..errors import CheckpointError, ConfigError, unknown


class Frozen:
    """Frozen parameters of a model, by who wants them to be: one is trained once nobody does.

    A layer of frozen parameters that measures, as batch normalisation does, measures nothing meanwhile. Parameters
    that are not trained because somebody has set their `requires_grad` stay so.
    """

    def __init__(self, modules: Sequence[nn.Module]) -> None:
        self._model, self._modules = modules[0], modules
        self.owners: dict[str, set[str]] = {}
        """Names of parameters, by who has asked to freeze them."""
        self._names: set[str] = set()  # of all of them
        self._resting: list[nn.Module] = []  # layers in eval mode because of that
        self._first = self._untrained()  # as it was when the run began

    def freeze(self, patterns: Sequence[str], owner: str) -> None:
        """Freezes parameters whose names match."""
        trained = {name for name, param in _params(self._model) if param.requires_grad} | self._names
        self.owners.setdefault(owner, set()).update(matching(self._model, patterns) & trained)
        self._set()

    def thaw(self, patterns: Sequence[str], owner: str) -> None:
        """This owner wants these to be trained again."""
        self.owners.setdefault(owner, set()).difference_update(matching(self._model, patterns))
        self._set()

    def restore(self, owners: Mapping[str, Sequence[str]], flags: Mapping[str, Any] | None = None) -> None:
        """Freezes what these owners want, and nothing else; with `flags`, sets `requires_grad` as it was saved."""
        self.owners = {owner: set(names) for owner, names in owners.items()}
        self._set()
        if flags is None:
            return
        self._first, untrained = set(flags["first"]), set(flags["untrained"])
        for name, param in self._all_params():
            param.requires_grad_(name not in untrained)
        layers = dict(self._model.named_modules())
        self._rest([layers[name] for name in flags["resting"] if name in layers])

    def flags(self) -> dict[str, list[str]]:
        """Which parameters do not require gradients, now and when the run began, and which layers are in eval mode."""
        resting = {id(layer) for layer in self._resting}
        return {
            "untrained": sorted(self._untrained()),
            "first": sorted(self._first),
            "resting": [name for name, layer in self._model.named_modules() if id(layer) in resting],
        }

    def check_flags(self, owners: Mapping[str, Sequence[str]], flags: Mapping[str, Any]) -> None:
        """Raises unless `requires_grad` is as it was when the run began, or as it was saved."""
        now, first = self._untrained(), set(flags["first"])
        if now in (first, set(flags["untrained"]).difference(*owners.values())):
            return
        facts = [f"{name} is {'not ' * (name in now)}trained now" for name in sorted(now ^ first)]
        raise CheckpointError(
            f"requires_grad differs from what it was when the run began: {', '.join(facts[:5])}"
            f"{f' and {len(facts) - 5} more' if len(facts) > 5 else ''}. Set it as it was, name another run, or go on "
            "with what is set now: override=True."
        )

    def _untrained(self) -> set[str]:
        return {name for name, param in self._all_params() if not param.requires_grad}

    def _all_params(self) -> Iterator[tuple[str, nn.Parameter]]:
        """The parameters of the model, and those of objectives that are modules, by name."""
        for number, module in enumerate(self._modules):
            yield from ((f"objective {number}: {name}" if number else name, param) for name, param in _params(module))

    def _set(self) -> None:
        names = set().union(*self.owners.values())
        if names == self._names:
            return
        for name, param in _params(self._model):
            if (name in names) != (name in self._names):
                param.requires_grad_(name not in names)
                if name in names:
                    param.grad = None
        self._names = names
        self._rest([])
        self._rest([layer for layer in self._model.modules() if names and layer.training and _rests(layer)])

    def _rest(self, layers: list[nn.Module]) -> None:
        """Puts these layers into eval mode, and those of the last call back into train mode."""
        for layer in self._resting:
            layer.training = True
        self._resting = layers
        for layer in layers:
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
