"""One optimizer's parameters and gradients, stored as a few long vectors."""

import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from itertools import groupby
from operator import is_
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ..errors import ModelError
from .gradients import all_finite, norm_of
from .optimizer import SHAPED, OptimizerHooks, by_name, is_elementwise
from .own_optimizers import kind_of, owners_of, parts_of
from .sharding import local
from .vectors import (
    Slot,
    Vector,
    bring_home,
    can_be_packed,
    make_vector,
    names_of,
    overlapping,
    owners,
    refuse_sharded,
    sparse_parameters,
    split,
    states_of,
    take_back,
    unpack_state,
)

Result = TypeVar("Result")
Reduce = Callable[["Arena", Sequence[bool]], Sequence[bool]]


class Arena:
    """One optimizer's parameters, homed in flat vectors until `release`.

    Parameters that cannot be homed (sparse gradients, overlapping memory, an optimizer that is not known) stay as they
    are, and the optimizer steps them one by one; so do those of more than `largest` elements.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        *,
        packed: bool = True,
        shards: bool = False,
        largest: int | None = None,
        release: Callable[[], None] | None = None,
    ) -> None:
        self.optimizer, self._model = optimizer, model
        self._original = [list(group["params"]) for group in optimizer.param_groups]
        places = owners(model)
        self.names = names_of(optimizer, places)
        self._known = {*places, *self.names}
        if not shards:
            refuse_sharded(self.names)
        self.shared_norm: Tensor | None = None
        """The norm of the gradients at hand, where every worker has parts of them."""
        steppers = owners_of(optimizer)
        outside = overlapping(self.names) | sparse_parameters(model)
        self.loose: list[nn.Parameter] = []
        self.vectors: list[Vector] = []
        self.proven = False
        """Whether a backward pass adds up gradients in the vectors: it has shown what kind they are."""
        for number, group in enumerate(self._original):
            homes: dict[tuple[torch.dtype, torch.device], list[nn.Parameter]] = {}
            kind = type(steppers[number])
            shaped, knows = kind in SHAPED, kind in SHAPED or is_elementwise(kind)
            for param in group:
                small = largest is None or param.numel() <= largest
                if packed and small and knows and can_be_packed(param, steppers[number]) and param not in outside:
                    homes.setdefault((param.dtype, param.device), []).append(param)
                else:
                    self.loose.append(param)
            for params in homes.values():
                self.vectors.append(make_vector(number, params, self.names, places, steppers[number], shaped))
        self._layout = [list(vector.slots) for vector in self.vectors]
        self._handles: list[list[nn.Parameter]] = []  # what the optimizer gets in place of each group's parameters
        self._missing: Set[Slot] = frozenset()  # what the last update does not reach
        self._pieces: tuple[Set[Slot], list[Tensor]] | None = None
        self._filled, self._remembered = False, 0
        self._params_by_group: list[list[nn.Parameter]] = []  # while the optimizer has vectors
        self._list_segments()
        self.hooks = OptimizerHooks(optimizer, self, release or self.release)

    @property
    def params(self) -> Iterator[nn.Parameter]:
        """Every parameter of the optimizer, homed or not."""
        return (p for group in self._original for p in group)

    @property
    def addresses(self) -> Set[int]:
        """Where the gradients are that are stored in vectors."""
        return {slot.gradient.data_ptr() for slot in self._slots}

    def begin(self, filled: bool = False) -> None:
        """Prepares an update: every parameter is in its vector, and gradients are zero.

        The first backward pass brings gradients of its own, which show what kind they are; from then on they
        are added up in the vector, where only the version of a view tells whether its parameter was reached.

        `filled`: a tape has seen that every parameter is at home, and is going to write every gradient.
        """
        self._filled = filled
        if filled:
            return
        for vector in self.vectors:
            vector.gradients.zero_()
            for slot in vector.slots:
                param = slot.param
                if param.data_ptr() != slot.address:
                    bring_home(slot, vector)
                gradient = slot.gradient
                slot.version = gradient._version
                if param.grad is not gradient:
                    param.grad = gradient if self.proven else None
                for owned, key in slot.owners:
                    if owned.get(key) is not param:
                        take_back(slot, self._known)
        for param in self.loose:
            param.grad = None

    def collect(self, reduce: Reduce | None = None) -> list[Tensor]:
        """After the backward pass: the gradients in flat form, those that exist.

        `reduce` makes them those of all workers, before anybody looks at them. It gets which parameters were reached
        here, the homed ones and then the loose ones, and returns which were reached anywhere; it gives loose ones that
        were not reached here zeros of their own.
        """
        reached, plain = self._look()
        if reduce is not None:
            loose = [param.grad is not None for param in self.loose]
            reached = list(reduce(self, [*reached, *loose]))[: len(reached)]
        return self._settle(reached, plain)

    def reached(self) -> list[bool]:
        """After the backward pass of a part: which parameters it has reached, homed ones, then loose ones."""
        return self._look()[0] + [param.grad is not None for param in self.loose]

    def gradients(self) -> list[Tensor]:
        """The gradients as they are stored: vectors, then those of loose parameters, with zeros for missing ones."""
        loose = [torch.zeros_like(param) if param.grad is None else param.grad for param in self.loose]
        return [vector.gradients for vector in self.vectors] + loose

    def settle(self, gradients: Sequence[Tensor], reached: Sequence[bool]) -> list[Tensor]:
        """`collect` for gradients that were added up elsewhere, in tensors that `gradients` gave."""
        homed = len(self._slots)
        for param, gradient, hit in zip(self.loose, gradients[len(self.vectors) :], reached[homed:], strict=True):
            param.grad = gradient if hit else None
        plain = self.proven and all(slot.param.grad is slot.gradient for slot in self._slots)
        return self._settle(list(reached[:homed]), plain)

    def _look(self) -> tuple[list[bool], bool]:
        """Which homed parameters were reached, whose gradients are then in the vectors; and whether all were."""
        reached, plain = [True] * len(self._slots), True
        if self._filled:
            for slot in self._slots:
                if slot.param.grad is not slot.gradient:
                    slot.param.grad = slot.gradient
        else:
            for k, slot in enumerate(self._slots):
                if slot.gradient._version <= slot.version:
                    reached[k] = plain = False
                elif slot.param.grad is not slot.gradient:
                    plain = False
        return (reached if plain else self._copy_strays(reached)), plain

    def _settle(self, reached: list[bool], plain: bool) -> list[Tensor]:
        """The gradients in flat form, of the parameters that were reached."""
        if not (plain and all(reached)):
            return self._collect_some(reached)
        self._missing, gradients = frozenset(), []
        for segment in self._segments:
            segment.handle.grad = segment.gradient
            gradients.append(segment.gradient)
        return gradients + _present(self.loose) if self.loose else gradients

    def pieces(self) -> list[Tensor]:
        """The gradients that `collect` has found, in the longest pieces that lie side by side: for a norm of them all.

        How a sum is cut shows in its last bits. These cuts follow from the layout and from what this update reaches;
        those of the segments follow from all updates before it, which a resumed training does not make again.
        """
        if self._pieces is None or self._pieces[0] != self._missing:
            pieces, reached = [], set(self._slots) - self._missing
            for vector, layout in zip(self.vectors, self._layout, strict=True):
                for there, slots in groupby(layout, key=reached.__contains__):
                    if there:
                        first, *_, last = [*slots] * 2
                        pieces.append(vector.gradients[first.start : last.stop])
            self._pieces = self._missing, pieces
        return self._pieces[1] + _present(self.loose)

    def norm(self) -> Tensor:
        """The norm of all gradients that `collect` has found."""
        return norm_of(self.pieces()) if self.shared_norm is None else self.shared_norm

    def state_dict(self) -> dict[str, Any]:
        """The optimizer's state by parameter names, as views of what it works on."""
        self._adopt_new_groups()
        return by_name(self.optimizer, self._original, self._states(), self.names)

    def unusual(self) -> list[str]:
        """The names of parameters whose gradient is not finite."""
        gradients = ((p, p.grad if p.grad is None else local(p.grad)) for p in self.params)
        return [self.names[p] for p, g in gradients if g is not None and not all_finite([g])]

    def discard(self) -> None:
        """Drops the gradients of a step that is not taken."""
        for param in self.params:
            param.grad = None

    def release(self) -> None:
        """Gives every parameter memory of its own and the optimizer its parameters back.

        One thing at a time: gradients go first, so that never more than one vector exists twice. What has strayed
        keeps what it has become.
        """
        self.give_parameters()  # where a step was interrupted
        if found := self._pop_misplaced():
            warnings.warn(f"{found} That is lost: call trainer.release() before.", stacklevel=2)
        self._adopt_new_groups()
        kept = {p: p.grad.clone() for p in self.params if self.hooks.has_hooks and p.grad is not None}
        self.discard()
        for vector in self.vectors:
            vector.gradients = vector.room = torch.empty(0)
            for segment in vector.segments:
                segment.handle.grad, segment.gradient = None, vector.gradients
            for slot in vector.slots:
                slot.gradient = vector.gradients
        self._pieces = None
        for vector in self.vectors:
            for segment in vector.segments:
                unpack_state(segment)
            for slot in vector.slots:
                if slot.param.data_ptr() == slot.address:
                    slot.param.data = slot.value.clone()
        for param, gradient in kept.items():  # a hook of the step has asked for it, and the step goes on
            param.grad = gradient
        self._handles = []
        self.hooks.restore_methods()

    def _copy_strays(self, reached: list[bool]) -> list[bool]:
        """The slow path begins: gradients from elsewhere are copied. Which of the homed parameters were reached."""
        strays = [(slot, g) for slot in self._slots if (g := slot.param.grad) is not None and g is not slot.gradient]
        hit = {slot for slot, hit in zip(self._slots, reached, strict=True) if hit and slot.param.grad is not None}
        for slot, gradient in strays:
            if gradient.is_sparse:
                raise ModelError(
                    f"parameter {slot.name!r} has sparse gradients, which only those of modules with sparse=True may "
                    "have. Set that attribute of its module, or pass arena=False."
                )
        if strays:
            torch._foreach_copy_([slot.gradient for slot, _ in strays], [gradient for _, gradient in strays])
            for slot, _ in strays:
                slot.param.grad = slot.gradient
        hit |= {slot for slot, _ in strays}
        return [slot in hit for slot in self._slots]

    def _collect_some(self, reached: list[bool]) -> list[Tensor]:
        """The slow path ends: parameters that miss the update leave their segments."""
        self._missing = missing = {slot for slot, hit in zip(self._slots, reached, strict=True) if not hit}
        segments = len(self._segments)
        for vector in self.vectors:
            split(vector, missing)
        if segments != sum(len(vector.segments) for vector in self.vectors):
            self._list_segments()
        for slot in self._slots:
            slot.param.grad = None if slot in missing else slot.gradient
        for segment in self._segments:
            segment.handle.grad = None if segment.slots[0] in missing else segment.gradient
        self.proven = True
        return _present([*(segment.handle for segment in self._segments), *self.loose])

    def collect_again(self) -> None:
        """As `collect`, after hooks of the optimizer, which may have exchanged gradients or taken them away."""
        self._settle(self._copy_strays([True] * len(self._slots)), plain=True)

    def give_vectors(self) -> None:
        """Gives the optimizer the vectors in place of the parameters, for a step."""
        groups = self.optimizer.param_groups
        self._params_by_group = self._params_by_group or [group["params"] for group in groups]
        for group, handles in zip(groups, self._handles, strict=False):
            group["params"] = handles

    def give_parameters(self) -> None:
        """Gives the optimizer its parameters back after a step."""
        for group, params in zip(self.optimizer.param_groups, self._params_by_group, strict=False):
            group["params"] = params
        self._params_by_group = []

    def with_vectors(self, call: Callable[..., Result], *arguments: Any, **keywords: Any) -> Result:
        """Calls a function while the optimizer has the vectors."""
        try:
            self.give_vectors()
            return call(*arguments, **keywords)
        finally:
            self.give_parameters()

    def look_at_groups(self) -> None:
        """Raises if an optimizer has other parameters than when it was homed, but for groups that were added."""
        self._adopt_new_groups()
        if found := self._pop_misplaced():
            raise ModelError(f"{found} Call trainer.release() before.")
        groups = self._params_by_group or [group["params"] for group in self.optimizer.param_groups]
        pairs = zip(groups, self._original, strict=False)
        if len(groups) < len(self._original) or any(
            len(now) != len(before) or not all(map(is_, now, before)) for now, before in pairs
        ):
            raise ModelError(
                f"parameters of {kind_of(self.optimizer)} were exchanged, or a group removed, during a training. Call "
                "trainer.release() before. To freeze some, use requires_grad_(False); to train others, add_param_group."
            )

    def _adopt_new_groups(self) -> None:
        """Registers groups that were added to the optimizer meanwhile. Their parameters stay outside of vectors."""
        for number, group in enumerate(self.optimizer.param_groups[len(self._original) :], len(self._original)):
            self._original.append(list(group["params"]))
            self._handles.append(self._original[number])
            self.proven = False  # recordings know nothing of them
            self.loose += group["params"]
            names = names_of(self.optimizer, owners(self._model))
            self.names |= {param: names[param] for param in group["params"]}

    def _pop_misplaced(self) -> str:
        """Removes state of parameters that are in vectors, which the code of the user has made; says whose it is."""
        states = [part.state for part in parts_of(self.optimizer)]
        if (remembered := sum(map(len, states))) == self._remembered:
            return ""
        handles = {segment.handle for segment in self._segments}
        found = [(s, slot) for s in states for slot in self._slots if slot.param in s and slot.param not in handles]
        for state, slot in found:
            del state[slot.param]
        self._remembered = remembered - len(found)
        if not found:
            return ""
        names = ", ".join(repr(slot.name) for _, slot in found[:3])
        return (
            f"the state of {kind_of(self.optimizer)} was read or written for {names}{' and others' * (len(found) > 3)} "
            "during a training, where it has a vector in place of parameters."
        )

    def _states(self) -> Iterator[tuple[nn.Parameter, dict[str, Any]]]:
        """The optimizer's state of each parameter."""
        for segment in self._segments:
            yield from states_of(segment)
        states = self.optimizer.state
        for param in self.loose:
            if param in states:
                yield param, states[param]

    def _list_segments(self) -> None:
        """Lists what every update needs."""
        loose = set(self.loose)
        self._handles = []
        for number, original in enumerate(self._original):
            vectors = [vector for vector in self.vectors if vector.group == number]
            handles = [segment.handle for vector in vectors for segment in vector.segments]
            self._handles.append(handles + [p for p in original if p in loose])
        self._slots = [slot for vector in self.vectors for slot in vector.slots]
        self._segments = [segment for vector in self.vectors for segment in vector.segments]
        self._pieces = None


def _present(params: Iterable[nn.Parameter]) -> list[Tensor]:
    return [local(p.grad) for p in params if p.grad is not None]
