"""Parameters that stay as they are for a part of a training."""

import warnings
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

from torch import nn

from ..arena.vectors import plain_name
from ..errors import CheckpointError, ConfigError, unknown


class Frozen:
    """Frozen parameters of a model, by the owners who asked for it. A parameter is trained if no owner freezes it.

    A layer of frozen parameters that also measures, such as batch normalisation, is in eval mode meanwhile. Parameters
    are not trained either if a user has set their `requires_grad`.
    """

    def __init__(self, modules: Sequence[nn.Module], optimized: Callable[[], Iterable[nn.Parameter]]) -> None:
        self._model, self._modules, self._optimized = modules[0], modules, optimized
        self._owners: dict[str, set[str]] = {}  # names of parameters, by owner
        self._names: set[str] = set()  # of all owners
        self._resting: dict[str, nn.Module] = {}  # layers in eval mode because of that
        self._first = self._untrained()  # as it was when the run began

    def freeze(self, patterns: Sequence[str], owner: str) -> None:
        """Freezes parameters whose names match."""
        trained = {name for name, param in _params(self._model) if param.requires_grad} | self._names
        self._owners.setdefault(owner, set()).update(matching(self._model, patterns) & trained)
        self._apply()

    def thaw(self, patterns: Sequence[str], owner: str) -> None:
        """This owner wants these to be trained again."""
        before = self._names
        self._owners.setdefault(owner, set()).difference_update(matching(self._model, patterns))
        self._apply()
        trained, thawed = set(map(id, self._optimized())), before - self._names
        if lost := [name for name, param in _params(self._model) if name in thawed and id(param) not in trained]:
            warnings.warn(
                f"{len(lost)} of {len(thawed)} parameters that are thawed are in no optimizer, and stay as they are: "
                f"{', '.join(lost[:3])}{', …' if lost[3:] else ''}. Make the optimizer with all parameters that are to "
                "be trained, frozen or not.",
                stacklevel=2,
            )

    def keep_owners(self, owners: Collection[str]) -> None:
        """Thaws what other owners have frozen; an owner without a name stays."""
        self._owners = {owner: names for owner, names in self._owners.items() if not owner or owner in owners}
        self._apply()

    def release(self) -> None:
        """Thaws everything."""
        self._owners = {}
        self._apply()

    @property
    def base(self) -> set[str]:
        """The parameters that are not trained since the run began; raises if they are now."""
        if trained := sorted(self._first - self._untrained()):
            raise CheckpointError(
                f"{trained[0]!r} was frozen when the run began and is trained now, and checkpoint='trainable' does not "
                "save it. Use checkpoint='complete', or hr.Freeze."
            )
        return self._first

    def state_dict(self) -> dict[str, Any]:
        return {
            "owners": {owner: sorted(names) for owner, names in self._owners.items() if names},
            "untrained": sorted(self._untrained()),
            "first": sorted(self._first),
            "resting": [*self._resting],
        }

    def check(self, state: Mapping[str, Any]) -> None:
        """Raises unless `requires_grad` is as it was when the run began, or as it was saved."""
        now, first = self._untrained(), set(state["first"])
        if now in (first, set(state["untrained"]).difference(*state["owners"].values())):
            return
        facts = [f"{name} is {'not ' * (name in now)}trained now" for name in sorted(now ^ first)]
        raise CheckpointError(
            f"requires_grad differs from what it was when the run began: {', '.join(facts[:5])}"
            f"{f' and {len(facts) - 5} more' if len(facts) > 5 else ''}. Set it as it was, name another run, or go on "
            "with what is set now: override=True."
        )

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Freezes what the owners want, and nothing else; sets `requires_grad` as it was, if the state says so."""
        self._owners = {owner: set(names) for owner, names in state["owners"].items()}
        self._apply()
        if "untrained" in state:
            self._first = set(state["first"])
            for name, param in self._all_params().items():
                param.requires_grad_(name not in state["untrained"])
            self._rest({name: layer for name, layer in self._model.named_modules() if name in state["resting"]})

    def _untrained(self) -> set[str]:
        return {name for name, param in self._all_params().items() if not param.requires_grad}

    def _all_params(self) -> dict[str, nn.Parameter]:
        """The parameters of the model, and those of objectives that are modules, by name."""
        titles = ["", *(f"objective {number}: " for number in range(1, len(self._modules)))]
        named = zip(titles, self._modules, strict=True)
        return {title + name: param for title, module in named for name, param in _params(module)}

    def _apply(self) -> None:
        names = set().union(*self._owners.values())
        if names == self._names:
            return
        for name, param in _params(self._model):
            if (name in names) != (name in self._names):
                param.requires_grad_(name not in names)
                if name in names:
                    param.grad = None
        self._names = names
        self._rest({})
        self._rest({name: m for name, m in self._model.named_modules() if names and m.training and _rests(m)})

    def _rest(self, layers: dict[str, nn.Module]) -> None:
        """Puts these layers into eval mode, and those of the last call back into train mode."""
        for layer in self._resting.values():
            layer.training = True
        self._resting = layers
        for layer in layers.values():
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
