"""The leaves of a graph: inputs, parameters, constants, placeholders."""

from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import count
from typing import Any

import numpy as np
import torch
from torch import nn

from ...errors import ConfigError
from .axis import BATCH, SEQUENCE, Axis
from .device import chosen
from .initializer import Initializer

InferredDimension = -1
FreeDimension = -3
Shape = tuple[int, ...]
_numbers = count()


class Record(dict[str, Any]):
    """A dict whose entries are attributes, too."""

    def __getattr__(self, name: str) -> Any:
        if name not in self:
            raise AttributeError(f"record has no attribute '{name}'; it has {', '.join(self) or 'none'}")
        return self[name]

    def __setattr__(self, name: str, value: Any) -> None:
        self[name] = value


def as_shape(shape: Any) -> Shape:
    """A shape given as a number or several."""
    return (int(shape),) if isinstance(shape, int | np.integer) else tuple(int(size) for size in shape)


@lru_cache(64)  # every minibatch is asked for its type
def torch_type(dtype: Any) -> torch.dtype:
    """A NumPy type as torch calls it."""
    if isinstance(dtype, torch.dtype):
        return dtype
    found: torch.dtype = torch.from_numpy(np.zeros(1, np.dtype(dtype))).dtype
    return found


class Variable:
    """A value in a graph: the shape of a sample, and the dynamic axes along which there are many."""

    kind_name = "Input"
    is_input = is_output = is_parameter = is_constant = is_placeholder = modal = False
    inputs: "list[Variable]" = []  # noqa: RUF012
    run: Any = None

    def __init__(
        self,
        shape: Any = None,
        dtype: Any = np.float32,
        needs_gradient: bool = False,
        is_sparse: bool = False,
        dynamic_axes: Sequence[Axis] = (BATCH,),
        name: str = "",
    ) -> None:
        self.shape: Any = None if shape is None else as_shape(shape)
        self.dtype = np.float32 if dtype in (None, True) else np.dtype(dtype).type  # CNTK takes True for its default
        self.needs_gradient, self.is_sparse, self.name = needs_gradient, is_sparse, name
        self.dynamic_axes = tuple(dynamic_axes)
        self.uid = f"{self.kind_name}{next(_numbers)}"

    @property
    def kind(self) -> int:
        """0: one value; 1: one for each sample of a minibatch; 2: a sequence of them for each."""
        return min(2, len(self.dynamic_axes))

    @property
    def _type(self) -> Record:
        return Record(shape=self.shape, dtype=self.dtype, is_sparse=self.is_sparse, dynamic_axes=self.dynamic_axes)

    def __repr__(self) -> str:
        axes = {0: "", 1: "[#]", 2: "[#,*]"}[self.kind]
        return f"{self.kind_name}('{self.name or self.uid}', {axes}, {list(self.shape or ())})"

    def __iter__(self) -> Iterator[Any]:
        raise TypeError(f"{self!r} is a part of a graph, and no sequence: use C.slice, or eval().")


class Input(Variable):
    """What a minibatch feeds."""

    is_input = True


class Placeholder(Variable):
    """What is to be replaced before a graph is computed."""

    kind_name, is_placeholder = "Placeholder", True


class _Stored(Variable):
    """A variable whose value is stored: a parameter or a constant."""

    _tensor: torch.Tensor | None

    @property
    def tensor(self) -> torch.Tensor:
        assert self._tensor is not None
        return self._tensor

    def infer(self, shape: Shape) -> None:
        """Takes the sizes that were left open from this shape."""

    @property
    def value(self) -> Any:
        return self.tensor.detach().cpu().numpy().copy()

    @value.setter
    def value(self, value: Any) -> None:
        self.infer(np.shape(value))
        with torch.no_grad():
            self.tensor.copy_(torch.as_tensor(np.broadcast_to(np.asarray(value), self.shape).copy()))

    def asarray(self) -> Any:
        return self.value

    def set_value(self, value: Any) -> None:
        self.value = value


class Constant(_Stored):
    """A value that no learner changes."""

    kind_name, is_constant = "Constant", True

    def __init__(self, value: Any = None, shape: Any = None, dtype: Any = None, device: Any = None, name: str = ""):
        array = np.asarray(0.0 if value is None else value)
        if shape is not None:
            array = np.broadcast_to(array, as_shape(shape))
        super().__init__(array.shape, _own_dtype(value) if dtype is None else dtype, dynamic_axes=(), name=name)
        self._tensor = torch.tensor(np.ascontiguousarray(array).astype(self.dtype), device=chosen(device))


class Parameter(_Stored):
    """A value that learners change. Sizes of -1 are inferred from what it is first multiplied with."""

    kind_name, is_parameter = "Parameter", True

    def __init__(
        self, shape: Any = None, init: Any = None, dtype: Any = None, device: Any = None, name: str = ""
    ) -> None:
        array = None if init is None or isinstance(init, Initializer) or np.isscalar(init) else np.asarray(init)
        if shape is None:
            shape = () if array is None else array.shape
        super().__init__(
            shape, _own_dtype(init) if dtype is None else dtype, needs_gradient=True, dynamic_axes=(), name=name
        )
        self.init = 0.0 if init is None else init if array is None else array
        self._tensor: nn.Parameter | None = None
        self._device = chosen(device)
        if all(size >= 0 for size in self.shape):
            self._begin()

    @property
    def tensor(self) -> nn.Parameter:
        if self._tensor is None:
            raise ConfigError(
                f"parameter {self.name or self.uid} has shape {self.shape}: its size is inferred once its layer is "
                "applied to an input. Apply the model before you ask for its parameters' values."
            )
        return self._tensor

    def infer(self, shape: Shape, by_columns: bool = False) -> None:
        """Takes the sizes that were left open from this shape.

        `by_columns`: a matrix is stored column by column, as BLAS multiplies it with dense rows most quickly.
        """
        if self._tensor is not None:
            return
        front = len(shape) - len(self.shape) + 1  # one open size may stand for several axes
        if -1 in self.shape and len(self.shape) != len(shape):
            at = self.shape.index(-1)
            self.shape = (*self.shape[:at], *shape[at : at + front], *self.shape[at + 1 :])
        self.shape = tuple(new if old < 0 else old for old, new in zip(self.shape, shape, strict=True))
        self._begin(by_columns and len(self.shape) == 2)

    def _begin(self, by_columns: bool = False) -> None:
        dtype = torch_type(self.dtype)
        if isinstance(self.init, Initializer):
            value = self.init(self.shape, dtype)
        else:
            value = torch.tensor(np.broadcast_to(np.asarray(self.init), self.shape).astype(self.dtype))
        stored = value.detach().clone().to(self._device)
        self._tensor = nn.Parameter(stored.t().contiguous().t() if by_columns else stored)


parameter, constant = Parameter, Constant


def _own_dtype(value: Any) -> Any:
    """The dtype of an array of fractions; numbers and lists are single ones."""
    fractions = isinstance(value, np.ndarray) and value.dtype in (np.float32, np.float64)
    return value.dtype if fractions else np.float32


def input_variable(
    shape: Any,
    dtype: Any = np.float32,
    needs_gradient: bool = False,
    is_sparse: bool = False,
    dynamic_axes: Sequence[Axis] | None = None,
    name: str = "",
) -> Input:
    """An input with a value for each sample of a minibatch."""
    axes = [BATCH] if dynamic_axes is None else list(dynamic_axes)
    return Input(shape, dtype, needs_gradient, is_sparse, axes, name)


def sequence_input_variable(
    shape: Any,
    dtype: Any = np.float32,
    needs_gradient: bool = False,
    is_sparse: bool = False,
    sequence_axis: Axis = SEQUENCE,
    name: str = "",
) -> Input:
    """An input with a sequence of values for each sample of a minibatch."""
    return Input(shape, dtype, needs_gradient, is_sparse, [BATCH, sequence_axis], name)


def placeholder(shape: Any = None, dynamic_axes: Any = None, name: str = "") -> Placeholder:
    """What is to be replaced by an input or a function."""
    return Placeholder(shape, dynamic_axes=dynamic_axes or (BATCH,), name=name)


def as_variable(value: Any) -> Variable:
    """A variable as it is, a number or an array as a constant."""
    return value if isinstance(value, Variable) else Constant(value)
