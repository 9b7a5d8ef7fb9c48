"""Sparse rows, which store only the numbers that are not zero, with their indices."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..errors import DataError
from .fields import Rows, check_offsets


class Sparse(Rows):
    """Rows of `dim` numbers, nearly all zero: row i has its values at indices[offsets[i]:offsets[i + 1]].

    Without `values`, all stored values are 1. `host_offsets` is a copy of the offsets on the host.
    """

    __slots__ = ("dim", "dtype", "indices", "values")

    def __init__(
        self, indices: Tensor, values: Tensor | None, offsets: Tensor, dim: int, dtype: torch.dtype = torch.float32
    ) -> None:
        self.indices, self.values, self.offsets, self.host_offsets = indices, values, offsets, offsets.cpu()
        self.dim, self.dtype = dim, dtype if values is None else values.dtype
        check_offsets(self.host_offsets, len(indices), "a Sparse", "indices")
        if values is not None and len(values) != len(indices):
            raise DataError(f"a Sparse has {len(indices)} indices and {len(values)} values. It needs one for each.")
        if len(indices) and not 0 <= int(indices.min()) <= int(indices.max()) < dim:
            wrong = int(indices.min()) if int(indices.min()) < 0 else int(indices.max())
            raise DataError(f"index {wrong} is out of range for sparse rows of {dim} numbers. Declare a larger shape.")

    @classmethod
    def of(cls, matrix: Any) -> "Sparse":
        """A scipy.sparse matrix, or one of torch's sparse tensors, of two dimensions."""
        if isinstance(matrix, Tensor):
            if matrix.layout != torch.sparse_csr:  # by way of coordinates: torch warns of the other conversions
                rows, indices = (matrix := matrix.to_sparse_coo().coalesce()).indices()
                counts = torch.bincount(rows, minlength=len(matrix))
                offsets = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
                return cls(indices, matrix.values(), offsets, matrix.shape[1])
            return cls(matrix.col_indices(), matrix.values(), matrix.crow_indices().long(), matrix.shape[1])
        matrix = matrix.tocsr()
        indices, values = torch.from_numpy(matrix.indices), torch.from_numpy(matrix.data)
        return cls(indices, values, torch.from_numpy(matrix.indptr.astype("int64")), matrix.shape[1])

    @classmethod
    def one_hot(cls, ids: Tensor, dim: int, dtype: torch.dtype = torch.float32) -> "Sparse":
        """A row with a single 1 for every id."""
        return cls(ids, None, torch.arange(len(ids) + 1, device=ids.device), dim, dtype)

    def _parts(self) -> list[Tensor | Rows]:
        return [self.indices] if self.values is None else [self.indices, self.values]

    def _like(self, parts: Sequence[Tensor], offsets: Tensor, host_offsets: Tensor) -> "Sparse":
        made = Sparse.__new__(Sparse)
        made.indices, made.values = parts[0], parts[1] if len(parts) > 1 else None
        made.offsets, made.host_offsets, made.dim, made.dtype = offsets, host_offsets, self.dim, self.dtype
        return made

    def __repr__(self) -> str:
        return f"Sparse({len(self)} rows of {self.dim}, {len(self.indices)} numbers)"

    @property
    def shape(self) -> tuple[int, int]:
        return len(self), self.dim

    @property
    def ids(self) -> Tensor:
        """The index of each row, where every row has exactly one."""
        if len(self.indices) != len(self) or not bool((self.host_offsets.diff() == 1).all()):
            raise DataError("these rows are not one-hot: ids need exactly one index in each.")
        return self.indices.long()

    def to_dense(self) -> Tensor:
        """Of shape (rows, dim)."""
        flat = torch.zeros(len(self) * self.dim, dtype=self.dtype, device=self.device)
        starts = torch.arange(len(self), device=self.device) * self.dim
        where = torch.repeat_interleave(starts, self.offsets.diff(), output_size=len(self.indices)) + self.indices
        return flat.index_add_(0, where, self._numbers()).view(len(self), self.dim)

    def bag(self) -> dict[str, Any]:
        """The arguments of an EmbeddingBag: `embedding(**words.bag())`; values other than 1 want its mode "sum"."""
        return {"input": self.indices.long(), "offsets": self.offsets[:-1], "per_sample_weights": self.values}

    @classmethod
    def cat(cls, parts: "Sequence[Sparse]") -> "Sparse":
        if any(part.values is not None for part in parts):
            parts = [part._like([part.indices, part._numbers()], part.offsets, part.host_offsets) for part in parts]
        return super().cat(parts)

    def _numbers(self) -> Tensor:
        if self.values is not None:
            return self.values
        return torch.ones(len(self.indices), dtype=self.dtype, device=self.device)
