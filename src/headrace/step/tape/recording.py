"""Records a pass: every operation as torch dispatches it, and where its arguments come from."""

import weakref
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

aten = torch.ops.aten
_UNKNOWN_SIZE = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}


@dataclass(eq=False, slots=True)
class TapeTensor:
    """A tensor of a pass: one that it was given, one that stays where it is, or one that an operation has made."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    dtype: torch.dtype
    device: torch.device
    given: str = ""
    """Its name, if a replay is given another one."""
    fixed: Tensor | None = None
    """Itself, if it stays where it is: a parameter, a gradient, a buffer, a constant."""
    base: "TapeTensor | None" = None
    """What it shares memory with."""

    @property
    def root(self) -> "TapeTensor":
        """What its memory was made as."""
        return self if self.base is None else self.base.root

    @property
    def nbytes(self) -> int:
        """How much memory it takes, the holes between its elements included."""
        if 0 in self.shape:
            return 0
        extent = 1 + sum((size - 1) * step for size, step in zip(self.shape, self.stride, strict=True))
        return extent * self.dtype.itemsize


@dataclass(eq=False, slots=True)
class Operation:
    """One operation: its arguments with a `TapeTensor` for each tensor, its results, and what it writes into."""

    function: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    results: Any
    writes: list[TapeTensor] = field(default_factory=list)

    def values(self) -> list[TapeTensor]:
        """The tensors among the arguments."""
        return _values([self.args, self.kwargs])

    def made(self) -> list[TapeTensor]:
        """The tensors among the results."""
        return _values(self.results)

    @property
    def random(self) -> bool:
        """Whether it draws random numbers."""
        return torch.Tag.nondeterministic_seeded in self.function.tags


class Recording(TorchDispatchMode):
    """The operations of what runs within it, in order; `problem` says why they cannot be replayed, if they cannot.

    `given` are the tensors that every replay is given anew, `fixed` those that stay where they are. The forward pass
    may write into `buffers` only, and the backward pass into `gradients`.
    """

    def __init__(
        self,
        given: Mapping[str, Tensor],
        fixed: Iterable[Tensor],
        buffers: Sequence[Tensor],
        gradients: Sequence[Tensor],
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls: list[Operation] = []
        self.problem = ""
        self.given = dict(given)
        self.forward_calls = 0
        """How many of the operations belong to the forward pass."""
        self.numbers: list[TapeTensor] = []
        """Sums and weights of the terms, as the forward pass gives them."""
        self.outputs: list[TapeTensor] = []
        """What the model returns."""
        self.seeded: list[str] = []
        """The terms that the backward pass begins with, and `seeds`, the names of what it is given for each."""
        self.seeds: list[str] = []
        self._known: dict[int, tuple[weakref.ref[Tensor], TapeTensor]] = {}
        self._schemas: dict[Any, Sequence[tuple[int, str]]] = {}
        kept = {id(tensor): tensor for tensor in [*fixed, *buffers, *gradients]}
        values = {key: self._learn(t, fixed=t.detach() if t.requires_grad else t) for key, t in kept.items()}
        self._gradients = {values[id(tensor)] for tensor in gradients}
        self._writable = self._gradients | {values[id(tensor)] for tensor in buffers}
        self._versions = [(t, t._version) for key, t in kept.items() if values[key] not in self._writable]
        for name, tensor in given.items():
            self._learn(tensor, given=name)

    @property
    def draws(self) -> bool:
        """Whether an operation draws random numbers."""
        return any(call.random for call in self.calls)

    def end_forward(self, terms: Mapping[str, Any], outputs: Any) -> None:
        """The forward pass has given these terms and outputs."""
        self.forward_calls = len(self.calls)
        weights = [term.weight for term in terms.values() if isinstance(term.weight, Tensor)]
        if weights and len(terms) > 1:
            self.problem = self.problem or "the weights of several terms depend on what is in a batch"
        self.numbers = self._known_values([term.sum for term in terms.values()] + weights)
        self.outputs = self._known_values(tree_leaves(outputs))

    def begin_backward(self, seeded: Sequence[str], seeds: Sequence[Tensor]) -> None:
        """The backward pass begins with these terms."""
        self.seeded = list(seeded)
        for k, seed in enumerate(seeds):
            self.seeds.append(f"seed{k}")
            self.given[self.seeds[-1]] = seed
            self._learn(seed, given=self.seeds[-1])

    def end(self) -> None:
        """The pass is over: refuses it if it has written, outside of operations, into a tensor that must not change."""
        for tensor, version in self._versions:
            if tensor._version != version:
                self.problem = (
                    self.problem or f"it writes into a tensor of shape {list(tensor.shape)} that is no buffer"
                )

    def _known_values(self, results: Sequence[Any]) -> list[TapeTensor]:
        found = []
        for result in results:
            if isinstance(result, Tensor):
                value = self.value_of(result)
                if value is None:
                    self.problem = self.problem or "a result of the model comes from elsewhere"
                else:
                    found.append(value)
            elif result is not None and not isinstance(result, int | float | str):
                self.problem = self.problem or f"the model returns a {type(result).__name__}"
        return found

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # it would be imported for that, which takes a second

    def value_of(self, tensor: Tensor) -> TapeTensor | None:
        """The value that a tensor is, if it is known."""
        reference, value = self._known.get(id(tensor), (None, None))
        return value if reference is not None and reference() is tensor else None

    def __torch_dispatch__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        return function(*args, **kwargs) if self.problem else self._record(function, args, kwargs)

    def _record(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Makes an operation, and notes it."""
        if not _UNKNOWN_SIZE.isdisjoint(function.tags) and not _is_lookup(function, args):
            self.problem = f"{_name(function)} reads a number, or makes a size of one"
            return function(*args, **kwargs)
        spec, named = tree_map(self._spec, (args, kwargs))
        if not self.seeds and any(value.root in self._gradients for value in _values([spec, named])):
            self.problem = self.problem or "the forward pass reads a gradient"
        before = [each for each in tree_leaves((args, kwargs)) if isinstance(each, Tensor)]
        results = function(*args, **kwargs)
        seen_anew = torch.Tag.inplace_view in function.tags  # as `transpose_`: the same memory
        if seen_anew and not self.problem and (not _is_made(spec[0]) or _name(function).startswith(("resize", "set"))):
            self.problem = f"{_name(function)} changes the memory or the shape of a tensor"
        if seen_anew and not self.problem:
            value = self._learn(results, base=spec[0])
            layout = value.shape, value.stride, value.offset
            self.calls.append(Operation(aten.as_strided.default, (spec[0], *layout), {}, value))
        elif not self.problem:
            call = Operation(function, spec, named, None)
            call.writes = [value for k, name in self._writes(function) if (value := _argument(call, k, name))]
            for root in [value.root for value in call.writes]:
                if root.given or (root.fixed is not None and root not in self._writable):
                    into = (
                        "the batch"
                        if root.given
                        else f"a tensor of shape {list(root.shape)} that is no buffer of its own"
                    )
                    self.problem = f"{_name(function)} writes into {into}"
            call.results = self._results(results, before)
            self.calls.append(call)
        return results

    def _learn(self, tensor: Tensor, **origin: Any) -> TapeTensor:
        offset = int(tensor.storage_offset())
        value = TapeTensor(tuple(tensor.shape), tensor.stride(), offset, tensor.dtype, tensor.device, **origin)
        self._known[id(tensor)] = weakref.ref(tensor), value
        return value

    def _spec(self, given: Any) -> Any:
        """Arguments with a value for each tensor."""
        if isinstance(given, torch.Generator):
            self.problem = "it draws from a random generator of its own"
        if not isinstance(given, Tensor):
            return given
        value = self.value_of(given)
        if value is None:
            self.problem = f"it uses a tensor of shape {list(given.shape)} that comes from elsewhere"
        return value

    def _results(self, results: Any, before: Sequence[Tensor]) -> Any:
        if isinstance(results, Tensor):
            known = self.value_of(results)
            if known is not None and any(results is tensor for tensor in before):
                return known
            memory = results.untyped_storage().data_ptr() if results.layout == torch.strided else 0
            for tensor in before if memory else ():
                if tensor.layout == torch.strided and tensor.untyped_storage().data_ptr() == memory:
                    return self._learn(results, base=self.value_of(tensor))
            if results.layout != torch.strided or type(results) not in (Tensor, torch.nn.Parameter):
                self.problem = f"it makes a tensor of another kind ({results.layout})"
            return self._learn(results)
        if isinstance(results, tuple | list):
            return tuple(self._results(each, before) for each in results)
        if results is not None:
            self.problem = "an operation gives a number"
        return None

    def _writes(self, function: Any) -> Sequence[tuple[int, str]]:
        """Position and name of the arguments that an operation writes into."""
        found = self._schemas.get(function)
        if found is None:
            arguments = enumerate(function._schema.arguments)
            found = [(k, a.name) for k, a in arguments if a.alias_info is not None and a.alias_info.is_write]
            self._schemas[function] = found
        return found


def _is_lookup(function: Any, args: Sequence[Any]) -> bool:
    """Whether elements are taken by their numbers, of which there are always as many."""
    return function is aten.index.Tensor and all(each is None or each.dtype == torch.int64 for each in args[1])


def _is_made(value: TapeTensor) -> bool:
    """Whether an operation has made it, or what it is a view of."""
    return value.root.fixed is None and not value.root.given


def _argument(call: Operation, position: int, name: str) -> Any:
    value = call.args[position] if position < len(call.args) else call.kwargs.get(name)
    return value if isinstance(value, TapeTensor) else None


def _values(spec: Any) -> list[TapeTensor]:
    return [each for each in tree_leaves(spec) if isinstance(each, TapeTensor)]


def _name(function: Any) -> str:
    return str(function).removeprefix("aten.").partition(".")[0]
