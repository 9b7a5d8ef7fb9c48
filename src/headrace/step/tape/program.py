"""Makes a straight line of Python of a recording, with memory that is planned once."""

import math
import re
import warnings
from collections import defaultdict
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .forms import MOST, Form, Forms, find_form, likeness
from .recording import Operation, Recording, TapeTensor
from .state import compiled

aten = torch.ops.aten

Memory = dict[int, list[Tensor]]
"""Blocks of memory by their size: what programs that never run at once may share."""
ALLOCATES = {aten.empty.memory_format, aten.empty_like.default, aten.new_empty.default, aten.empty_strided.default}
LINE = 64  # bytes: where torch begins what it allocates
ELEMENTWISE = {
    *(aten.relu.default, aten.threshold_backward.default, aten.tanh.default, aten.tanh_backward.default),
    *(aten.sigmoid.default, aten.sigmoid_backward.default, aten.gelu.default, aten.gelu_backward.default),
    *(aten.mul.Tensor, aten.add.Tensor, aten.sub.Tensor, aten.div.Tensor),
}
"""Operations that may write their result over what it is made of: each element is made of those at its place."""


@dataclass(frozen=True, slots=True)
class Program:
    """The operations of a pass, ready to be run again.

    `forward(*given)` gives the results of the forward pass, and what `backward(seeds, *kept)` needs to know of it.
    """

    forward: Callable[..., tuple[tuple[Any, ...], tuple[Any, ...]]]
    backward: Callable[..., None]
    update: Callable[..., tuple[Any, ...]]
    """`update(seeds, *given)`: both at once, where the seeds are known before."""
    nbytes: int
    """How much memory it keeps between two runs."""
    random: bool
    """Whether it draws random numbers."""
    fills: Set[int]
    """Where the gradients are that it writes, instead of adding to them."""


class Builder:
    """Runs a recording once more, an operation at a time, and keeps for each of them the quickest form that gives its
    bits: one that writes into planned memory, if there is one.

    What the model returns is in memory of its own at every run. `gradients` are what the backward pass adds to: zeros
    if this is the `first` pass of an update. Planned memory is taken from `memory`, and added to it; so are `forms`.
    """

    def __init__(
        self, recording: Recording, gradients: Sequence[TapeTensor], first: bool, memory: Memory, forms: Forms
    ) -> None:
        self._calls, self._forward_calls = recording.calls, recording.forward_calls
        self._given, self._seeds = recording.given, recording.seeds
        self._results = recording.numbers + recording.outputs
        self._fresh = {value.root for value in recording.outputs}
        self._written = {value.root for call in self._calls for value in call.writes}
        self._last = _last_uses(self._calls, self._results)
        self._direct = self._found_directly(set(gradients)) if first else {}
        self._added: set[int] = set()  # operations that need not be made: what they would add is there
        self._tensors: dict[TapeTensor, Tensor] = {}
        self._names: dict[TapeTensor, str] = {}
        self._moves: set[TapeTensor] = set()  # values that are elsewhere at every run
        self._constant: set[TapeTensor] = set()  # roots of what never changes
        self._memory_of_all, self._forms = memory, forms
        self._free = defaultdict(list, {size: [*blocks] for size, blocks in memory.items()})
        self._owned: dict[TapeTensor, list[Tensor]] = defaultdict(list)
        self._space: dict[str, Any] = {}
        self._lines: list[str] = []
        self._turn = 0  # the line with which the backward pass begins
        self._moving: list[str] = []  # the names of what is elsewhere at every run, once they are made
        self._nbytes = 0

    def program(self) -> Program:
        """The program, once it has been run."""
        expiring = defaultdict(list)
        for root, last in self._last.items():
            expiring[last].append(root)
        with torch._C._AutoDispatchBelowAutograd(), warnings.catch_warnings():
            warnings.simplefilter("error")
            for k, call in enumerate(self._calls):
                if k == self._forward_calls:
                    self._turn = len(self._lines)
                self._add(k, call)
                for root in expiring[k]:
                    self._expire(root)
            if self._forward_calls == len(self._calls):
                self._turn = len(self._lines)
        given = [name for name in self._given if name not in self._seeds]
        forward, backward = self._lines[: self._turn], self._lines[self._turn :]
        words = {word for line in backward for word in re.findall(r"\w+", line)}
        kept = [name for name in [*given, *self._moving] if name in words]
        results = _tuple([self._text(value) for value in self._results])
        unpacked = [f"{_tuple(self._seeds)} = seeds"] if self._seeds else []
        self._define("forward", given, [*forward, f"return {results}, {_tuple(kept)}"])
        self._define("backward", ["seeds", *kept], [*unpacked, *backward, "return"])
        self._define("update", ["seeds", *given], [*unpacked, *self._lines, f"return {results}"])
        return Program(
            self._space["forward"],
            self._space["backward"],
            self._space["update"],
            self._nbytes,
            any(call.random for call in self._calls),
            {gradient.data_ptr() for gradient, k in self._direct.values() if k in self._added},
        )

    def _define(self, name: str, arguments: Sequence[str], body: Sequence[str]) -> None:
        code = f"def {name}({', '.join(arguments)}):\n  " + "\n  ".join(body)
        exec(compiled(code, "exec"), self._space)

    def _found_directly(self, gradients: set[TapeTensor]) -> dict[TapeTensor, tuple[Tensor, int]]:
        """What an operation may write into a gradient at once, instead of adding it to the zeros there: its result, the
        gradient, and which operation would have added it."""
        uses: dict[TapeTensor, int] = defaultdict(int)
        for call in self._calls:
            for value in call.writes:
                uses[value.root] += 1
        found = {}
        for k, call in enumerate(self._calls):
            if call.function is not aten.add_.Tensor or call.args[0] not in gradients or call.kwargs:
                continue
            gradient, new = call.args
            root = new.root if isinstance(new, TapeTensor) else None
            if root is None or root.given or root.fixed is not None or uses[gradient.root] != 1 or uses[root]:
                continue
            alike = new.shape == gradient.shape and new.stride == gradient.stride and new.dtype == gradient.dtype
            is_all = (new.offset, new.nbytes) == (root.offset, root.nbytes) and new.dtype == root.dtype
            if alike and is_all and math.prod(new.shape) == math.prod(root.shape) and root not in found:
                found[root] = gradient.fixed, k
        return found

    def _add(self, k: int, call: Operation) -> None:
        """One operation: runs it, and writes the line that does."""
        if k in self._added:
            return
        function, made = call.function, call.made()
        args, kwargs = self._real(call.args), self._real(call.kwargs)
        if call.writes and all(value in call.values() for value in made):
            function(*args, **kwargs)
            self._call(self._bind(k, function._op), call)
        elif function in ALLOCATES and self._is_planned(made):
            self._keep(made[0], self._memory(made[0]))
        elif made and all(value.base is not None for value in made):
            self._view(k, call, function(*args, **kwargs))
        elif self._is_constant(call, made):
            self._settle(call.results, function(*args, **kwargs))
            self._constant |= {value.root for value in made}
        elif call.random or call.writes or not self._is_planned(made):
            self._plainly(k, call, function(*args, **kwargs))
        else:
            self._into_memory(k, call, made, args, kwargs)

    def _view(self, k: int, call: Operation, result: Any) -> None:
        if any(value in self._moves for value in call.values()):
            self._plainly(k, call, result)
        else:
            self._settle(call.results, result)

    def _plainly(self, k: int, call: Operation, result: Any) -> None:
        """An operation whose result is somewhere else at every run."""
        made = call.results
        if made is None:
            self._call(self._bind(k, call.function._op), call)
            return
        pairs = _pairs(made, result)
        names = [f"v{k}_{j}" for j in range(len(pairs))]
        for (value, tensor), name in zip(pairs, names, strict=True):
            if value is not None:
                self._tensors[value], self._names[value] = tensor, name
                self._moves.add(value)
                if k < self._forward_calls:
                    self._moving.append(name)
        left = names[0] if isinstance(made, TapeTensor) else _tuple(names)
        self._lines.append(f"{left} = {self._expression(self._bind(k, call.function._op), call)}")

    def _into_memory(self, k: int, call: Operation, made: Sequence[TapeTensor], args: Any, kwargs: Any) -> None:
        """Lets an operation write into planned memory, if a form of it does that and gives the same bits."""
        key = call.function, likeness(call.args), likeness(call.kwargs), likeness(made)
        form = self._forms.get(key)
        if form is not None:
            places = [self._memory(value) for value in made]
            form.write(args, kwargs, places)
        else:
            result = call.function(*args, **kwargs)
            if key in self._forms:
                self._plainly(k, call, result)
                return
            if len(self._forms) >= MOST:
                self._forms.clear()
            places = [self._memory(value) for value in made]
            form = self._forms[key] = find_form(call.function, args, kwargs, places, result)
        if form is None:
            for value in made:
                if value in self._direct:
                    self._direct.pop(value)[0].zero_()
                self._release_memory(value)
            self._plainly(k, call, result)
            return
        if (over := self._replaceable(k, call, made)) is not None:
            self._release_memory(made[0])
            self._owned[made[0]] = self._owned.pop(over.root)
            places = [self._tensors[over].copy_(places[0])]
        for value, place in zip(made, places, strict=True):
            self._keep(value, place)
            if value in self._direct:
                self._added.add(self._direct[value][1])
        self._emit(k, call, form, made, places)

    def _replaceable(self, k: int, call: Operation, made: Sequence[TapeTensor]) -> TapeTensor | None:
        """What an operation may write its result over: planned memory of the same form that nothing needs later."""
        if call.function not in ELEMENTWISE or made[0] in self._direct:
            return None
        for value in call.values():
            root = value.root
            is_all = (value.offset, value.nbytes) == (root.offset, root.nbytes)
            uses = [likeness(each) for each in call.values() if each.root is root]
            if is_all and self._last[root] == k and self._owned.get(root) and {*uses} == {likeness(made[0])}:
                return value
        return None

    def _emit(self, k: int, call: Operation, form: Form, made: Sequence[TapeTensor], places: Sequence[Tensor]) -> None:
        if form.function is None:
            self._lines.append(f"{self._bind(k, places[0].copy_)}({self._text(call.args[0])})")
            return
        outs = [f"{name}={self._names[value]}" for name, value in zip(form.names, made, strict=True)]
        self._lines.append(self._expression(self._bind(k, form.function), call, outs, form.extra))

    def _memory(self, value: TapeTensor) -> Tensor:
        """A place for a value: where its gradient is, or planned."""
        if value in self._direct:
            gradient = self._direct[value][0]
            return gradient.as_strided(value.shape, value.stride)
        size = -(-value.nbytes // LINE) * LINE
        pool = self._free[size]
        if not pool:
            self._nbytes += size
            self._memory_of_all.setdefault(size, []).append(torch.empty(size, dtype=torch.uint8, device=value.device))
            pool.append(self._memory_of_all[size][-1])
        memory = pool.pop()
        self._owned[value].append(memory)
        return memory.view(value.dtype).as_strided(value.shape, value.stride)

    def _release_memory(self, value: TapeTensor) -> None:
        for memory in self._owned.pop(value, []):
            self._free[memory.numel()].append(memory)

    def _expire(self, root: TapeTensor) -> None:
        """Nothing needs a value any more."""
        self._release_memory(root)
        if root in self._moves and root in self._names:
            self._lines.append(f"{self._names[root]} = None")

    def _keep(self, value: TapeTensor, tensor: Tensor) -> None:
        self._tensors[value] = tensor
        self._names[value] = f"s{len(self._tensors)}"
        self._space[self._names[value]] = tensor

    def _settle(self, made: Any, result: Any) -> None:
        """Results that are where they are from now on."""
        for value, tensor in _pairs(made, result):
            if value is not None:
                self._keep(value, tensor)

    def _is_planned(self, made: Sequence[TapeTensor]) -> bool:
        is_all = all(value.base is None and 0 not in value.shape for value in made)
        return bool(made) and is_all and self._fresh.isdisjoint(made)

    def _is_constant(self, call: Operation, made: Sequence[TapeTensor]) -> bool:
        roots = [value.root for value in made]
        settled = all(value.root in self._constant for value in call.values())
        return bool(made) and settled and not call.random and (self._written | self._fresh).isdisjoint(roots)

    def _bind(self, k: int, function: Any) -> str:
        self._space[f"f{k}"] = function
        return f"f{k}"

    def _call(self, name: str, call: Operation) -> None:
        self._lines.append(self._expression(name, call))

    def _expression(self, name: str, call: Operation, outs: Sequence[str] = (), extra: Sequence[Any] = ()) -> str:
        named = [f"{key}={self._text(value)}" for key, value in call.kwargs.items()]
        return f"{name}({', '.join([*map(self._text, [*call.args, *extra]), *named, *outs])})"

    def _text(self, spec: Any) -> str:
        """An argument as the program names it."""
        if isinstance(spec, TapeTensor):
            if spec.given:
                return spec.given
            if spec not in self._names:
                assert spec.fixed is not None
                self._keep(spec, spec.fixed)
            return self._names[spec]
        if isinstance(spec, list | tuple):
            return "[" + ", ".join(map(self._text, spec)) + "]"
        if spec is None or isinstance(spec, bool | int) or (isinstance(spec, float) and math.isfinite(spec)):
            return repr(spec)
        name = f"k{len(self._space)}"
        self._space[name] = spec
        return name

    def _real(self, spec: Any) -> Any:
        """An argument with the tensors of this run."""
        if isinstance(spec, TapeTensor):
            if spec.given:
                self._moves.add(spec)
                return self._given[spec.given]
            return spec.fixed if spec.fixed is not None else self._tensors[spec]
        if isinstance(spec, list | tuple):
            return type(spec)(map(self._real, spec))
        if isinstance(spec, dict):
            return {key: self._real(value) for key, value in spec.items()}
        return spec


def _last_uses(calls: Sequence[Operation], results: Sequence[TapeTensor]) -> dict[TapeTensor, int]:
    """The last operation that needs a value, by its root."""
    found = {value.root: k for k, call in enumerate(calls) for value in [*call.made(), *call.values()]}
    return found | {value.root: len(calls) for value in results}


def _pairs(made: Any, result: Any) -> list[tuple[TapeTensor | None, Tensor]]:
    """Each value of what an operation makes, with its tensor of this run."""
    return [(made, result)] if isinstance(made, TapeTensor) else list(zip(made, result, strict=True))


def _tuple(names: Sequence[str]) -> str:
    return f"({', '.join(names)},)" if names else "()"
