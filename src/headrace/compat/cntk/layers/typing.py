"""Types of arguments: tensors, sparse tensors, sequences of them."""

from typing import Any

from ..axis import BATCH, SEQUENCE, Axis
from ..variables import Record, as_shape


class _Tensor:
    """Makes a type of a shape, as in Tensor[2, 3]."""

    def __init__(self, sparse: bool, axes: tuple[Axis, ...]) -> None:
        self._sparse, self._axes = sparse, axes

    def __getitem__(self, shape: Any) -> Record:
        return Record(shape=as_shape(shape), dtype=None, is_sparse=self._sparse, dynamic_axes=self._axes)


class _Sequence:
    """Makes the type of a sequence of items of a type, as in Sequence[Tensor[2]]."""

    def __init__(self, axis: Axis = SEQUENCE) -> None:
        self._axis = axis

    def __getitem__(self, item: Any) -> Record:
        return Record(**{**item, "dynamic_axes": (BATCH, self._axis)})


class SequenceOver:
    """Sequences along an axis of their own: SequenceOver[axis][Tensor[2]]."""

    def __class_getitem__(cls, axis: Axis) -> _Sequence:
        return _Sequence(axis)


Tensor = _Tensor(False, (BATCH,))
SparseTensor = _Tensor(True, (BATCH,))
ParameterTensor = _Tensor(False, ())
Sequence = _Sequence()
tensor = Record(shape=None, dtype=None, is_sparse=False, dynamic_axes=(BATCH,))
