"""Values: minibatches as CNTK holds them, over tensors, `Sparse` and `Ragged`."""

from collections.abc import Sequence
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from ...data.ragged import Ragged
from ...data.sparse import Sparse
from ...errors import DataError
from .device import DeviceDescriptor, chosen
from .variables import Shape, Variable, as_shape, torch_type

Field = Tensor | Sparse | Ragged


def is_scipy(value: Any) -> bool:
    """Whether it is one of SciPy's sparse matrices."""
    return type(value).__module__.startswith("scipy.sparse")


def csr_of(rows: Sparse) -> Any:
    """Sparse rows as SciPy's CSR matrix."""
    from scipy.sparse import csr_matrix

    host = rows.to(torch.device("cpu"))
    values = torch.ones(len(host.indices), dtype=host.dtype) if host.values is None else host.values
    parts = values.numpy(), host.indices.numpy(), host.host_offsets.numpy()
    return csr_matrix(parts, shape=(len(host), host.dim))


def array_of(field: Field) -> Any:
    """Rows as an array, sequences padded with zeros; sparse rows as a CSR matrix."""
    if isinstance(field, Sparse):
        return csr_of(field)
    return (field.padded() if isinstance(field, Ragged) else field).detach().cpu().numpy()


class Value:
    """A minibatch of one stream: samples, or sequences of them."""

    rows: Field

    def __init__(
        self,
        shape: Any = None,
        dtype: Any = None,
        batch: Any = None,
        seq_starts: Sequence[bool] | None = None,
        device: DeviceDescriptor | None = None,
    ) -> None:
        if batch is None and shape is not None and not isinstance(shape, int | tuple):
            shape, batch = None, shape  # Value(data)
        if seq_starts is not None and not all(seq_starts):
            raise DataError(
                "seq_starts= continues the sequences of the minibatch before: state is not carried from one to the "
                "next here. Give every sequence whole."
            )
        if batch is None:
            raise ValueError("a Value is made of data: give batch=.")
        self.rows = _field(batch, dtype).to(chosen(device))

    @classmethod
    def over(cls, rows: Field) -> Self:
        """The value of rows that are there."""
        value = cls.__new__(cls)
        value.rows = rows
        return value

    @property
    def is_sparse(self) -> bool:
        rows = self.rows.values if isinstance(self.rows, Ragged) else self.rows
        return isinstance(rows, Sparse)

    def asarray(self) -> Any:
        """As an array, sequences padded with zeros; sparse rows as a CSR matrix."""
        return array_of(self.rows)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        return np.asarray(self.asarray(), dtype=dtype)

    @staticmethod
    def one_hot(batch: Any, num_classes: Any, dtype: Any = None, device: DeviceDescriptor | None = None) -> "Value":
        """Sequences of one-hot items, given by their indices."""
        *front, size = as_shape(num_classes)
        if front:
            raise ValueError(f"one_hot: num_classes= is one number, got {num_classes!r}.")
        sequences = [np.asarray(each, dtype=np.int64).reshape(-1) for each in batch]
        ids = np.concatenate([*sequences, np.zeros(0, np.int64)])
        if len(wrong := ids[(ids < 0) | (ids >= size)]):
            raise ValueError(f"one_hot: index {int(wrong[0])} is out of range for {size} classes. Raise num_classes=.")
        items = Sparse.one_hot(torch.from_numpy(ids), size, torch_type(dtype or np.float32))
        return Value.over(Ragged(items, offsets_of([len(each) for each in sequences])).to(chosen(device)))

    @property
    def data(self) -> "Value":
        """The numbers alone, which are no other object here."""
        return self

    @property
    def shape(self) -> Shape:
        """Sequences, items of the longest, and the shape of an item; or samples, and the shape of one."""
        rows = self.rows
        if not isinstance(rows, Ragged):
            return tuple(rows.shape)
        item = (rows.values.dim,) if isinstance(rows.values, Sparse) else rows.shape
        return (len(rows), rows.longest, *item)

    @property
    def dtype(self) -> Any:
        return np.dtype(str(self.rows.dtype).rpartition(".")[2]).type

    @property
    def mask(self) -> Any:
        """For every place of every sequence 2 at its begin, 1 on an item, 0 after its end."""
        if not isinstance(self.rows, Ragged):
            return np.full((len(self.rows), 1), 2, np.uint8)
        mask = self.rows.mask.cpu().numpy().astype(np.uint8)
        mask[:, :1] *= 2
        return mask

    def masked_count(self) -> int:
        """How many places come after the ends of sequences."""
        return int((np.asarray(self.mask) == 0).sum())

    def as_sequences(self, variable: Variable | None = None) -> list[Any]:
        """The sequences one by one, without what pads them: arrays, or CSR matrices."""
        if isinstance(self.rows, Ragged):
            return [each.detach().cpu().numpy() if isinstance(each, Tensor) else csr_of(each) for each in self.rows]
        if isinstance(self.rows, Sparse):
            return [csr_of(self.rows[k : k + 1]) for k in range(len(self.rows))]
        return list(self.rows.detach().cpu().numpy())

    def __len__(self) -> int:
        return len(self.rows)


def offsets_of(lengths: Sequence[int]) -> Tensor:
    """Where sequences of these lengths begin and end."""
    return torch.cat([torch.zeros(1, dtype=torch.int64), torch.tensor(lengths, dtype=torch.int64).cumsum(0)])


def _field(batch: Any, dtype: Any) -> Field:
    """Rows of what a Value may be made of."""
    if isinstance(batch, Value):
        return batch.rows
    if isinstance(batch, Tensor | Sparse | Ragged):
        return batch
    if is_scipy(batch):
        return Sparse.of(batch)
    if isinstance(batch, list) and batch and (is_scipy(batch[0]) or _ragged(batch)):
        return sequences_of(batch)
    array = np.asarray(batch, dtype=dtype)
    if array.dtype == object:
        raise ValueError("a batch of sequences of unequal shapes is a list of arrays, got an array of objects.")
    listed = not isinstance(batch, np.ndarray) and dtype is None and array.dtype == np.float64
    return torch.tensor(array.astype(np.float32) if listed else array)


def _ragged(batch: list[Any]) -> bool:
    return all(isinstance(each, np.ndarray) and each.ndim for each in batch) and len({len(e) for e in batch}) > 1


def sequences_of(batch: Sequence[Any]) -> Ragged:
    """Sequences given one by one: arrays, or CSR matrices with a row for each item."""
    if is_scipy(batch[0]):
        from scipy.sparse import vstack

        return Ragged(Sparse.of(vstack(batch).tocsr()), offsets_of([each.shape[0] for each in batch]))
    parts = [np.asarray(each) for each in batch]
    return Ragged(torch.tensor(np.concatenate(parts)), offsets_of([len(part) for part in parts]))


# --- what is fed to a variable -----------------------------------------------------------------------------


def rows_for(var: Variable, data: Any) -> Field:
    """Data as the rows that a graph computes with in place of this variable; raises on a shape that does not fit."""
    wanted, kind = torch_type(var.dtype), var.kind
    field = _field_of(var, data)
    if type(field) is Tensor and kind == 1 and field.dtype == wanted and field.shape[1:] == var.shape:
        return field
    field = (_static, _samples, _items)[kind](var, field)
    if field.dtype == wanted:
        return field
    if isinstance(field, Tensor):
        return field.to(wanted)
    if isinstance(field, Sparse):
        return _typed(field, wanted)
    values = field.values
    return field.with_values(values.to(wanted) if isinstance(values, Tensor) else _typed(values, wanted))


def _typed(rows: Sparse, dtype: torch.dtype) -> Sparse:
    values = None if rows.values is None else rows.values.to(dtype)
    return Sparse(rows.indices, values, rows.offsets, rows.dim, dtype)


def _field_of(var: Variable, data: Any) -> Field:
    """The rows that data are, or are made of."""
    block = data if isinstance(data, Value) else getattr(data, "data", None)  # that of a MinibatchData
    if isinstance(block, Value):
        return block.rows
    return data if isinstance(data, Tensor | Sparse | Ragged) else _given(var, data)


def _given(var: Variable, data: Any) -> Field:
    """Rows of arrays, matrices or lists."""
    if is_scipy(data):
        return Sparse.of(data)
    if isinstance(data, list | tuple) and len(data) and is_scipy(data[0]):
        return sequences_of(data)
    if var.kind == 2 and isinstance(data, list | tuple) and len(data):
        rank = len(var.shape)
        parts = [np.asarray(getattr(each, "asarray", lambda each=each: each)(), dtype=var.dtype) for each in data]
        return sequences_of([part[None] if part.ndim == rank else part for part in parts])
    return torch.tensor(np.asarray(data, dtype=var.dtype))


def _static(var: Variable, field: Field) -> Field:
    return field


def _samples(var: Variable, field: Any) -> Field:
    """A row for each sample."""
    if isinstance(field, Ragged):
        if field.items != len(field) or field.longest > 1:
            raise DataError(
                f"{var!r} takes a value for each sample, and was given sequences of up to {field.longest}. "
                "Make it a C.sequence.input_variable."
            )
        field = field.values
    if isinstance(field, Sparse):
        return _fits(var, field, (field.dim,))
    shape = var.shape
    if field.dim() == len(shape) + 2 and field.shape[1] == 1:
        field = field.squeeze(1)
    elif field.dim() == 1 and shape == (1,):
        field = field[:, None]
    elif field.dim() == len(shape) and shape and tuple(field.shape) == tuple(shape):
        field = field[None]
    elif field.dim() != len(shape) + 1 and field.dim() > 1 and field[0].numel() == int(np.prod(shape)):
        field = field.reshape(-1, *shape)
    return _fits(var, field, tuple(field.shape[1:]))


def _items(var: Variable, field: Field) -> Field:
    """A sequence of items for each sample."""
    if isinstance(field, Sparse):
        field = Ragged(field, torch.tensor([0, len(field)]))
    elif isinstance(field, Tensor):
        if field.dim() == len(var.shape) + 1:
            field = field[:, None]
        lengths = [field.shape[1]] * len(field)
        field = Ragged(field.flatten(0, 1), offsets_of(lengths))
    values = field.values
    return _fits(var, field, (values.dim,) if isinstance(values, Sparse) else tuple(values.shape[1:]))


def _fits(var: Variable, field: Field, shape: Shape) -> Field:
    wanted = tuple(var.shape)
    if len(shape) != len(wanted) or any(w >= 0 and w != s for w, s in zip(wanted, shape, strict=True)):
        raise DataError(f"{var!r} takes samples of shape {wanted}, got {shape}. Reshape the data or the input.")
    return field
