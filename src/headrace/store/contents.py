"""What a checkpoint holds: documents and tensors, by the name of the file that each is kept in."""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import safetensors
import safetensors.torch
import torch
from torch import Tensor

from ..errors import CheckpointError, CorruptError
from .shape import DICT, check

MODEL, OPTIMIZER = "model.safetensors", "optim.safetensors"
TRAINER, TRAINER_TENSORS = "trainer.json", "trainer.safetensors"
_OF_WORKER = re.compile(r"rank-\d+\.json")
_UNREADABLE = (ValueError, KeyError, TypeError, OverflowError, AssertionError, RuntimeError)
HEADER_BYTES = 1 << 20  # of a tensor file, unless the manifest says that it has many tensors
HEADER_BYTES_EACH = 1024

_NAMES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint64: "U64",
    torch.uint32: "U32",
    torch.uint16: "U16",
    torch.uint8: "U8",
    torch.bool: "BOOL",
    torch.complex64: "C64",
}


@dataclass(slots=True)
class Contents:
    """A checkpoint in memory. `documents` are values for JSON, or hold such as JSON; `tensors` the files of tensors."""

    step: int
    documents: dict[str, Any] = field(default_factory=dict)
    tensors: dict[str, dict[str, Tensor]] = field(default_factory=dict)

    @property
    def nbytes(self) -> int:
        return sum(tensor.nbytes for file in self.tensors.values() for tensor in file.values())

    @property
    def workers(self) -> int:
        """How many workers have something of their own here; at least one."""
        return max(1, sum(bool(_OF_WORKER.fullmatch(name)) for name in self.documents))

    def where(self, file: str, part: str = "") -> str:
        """A file of this checkpoint, and a part of it, for messages."""
        return f"the checkpoint of step {self.step}, {file}" + (f": {part}" if part else "")

    def document(self, file: str) -> dict[str, Any]:
        """A document that has to be there, as a dict."""
        found: dict[str, Any] = check(self.documents.get(file), DICT, self.where(file))
        return found

    def tensors_of(self, file: str) -> dict[str, Tensor]:
        """The tensors of a file that has to be there."""
        if file not in self.tensors:
            raise CorruptError(f"{self.where(file)} is missing.")
        return self.tensors[file]

    def files(self) -> Iterator[tuple[str, Iterator[bytes | memoryview]]]:
        """Every file and its bytes, piece by piece."""
        for name, tensors in self.tensors.items():
            yield name, tensor_pieces(name, tensors)
        for name, document in self.documents.items():
            yield name, iter([to_json(document)])

    def specs(self) -> dict[str, dict[str, tuple[str, list[int]]]]:
        """Dtype and shape of every tensor, by file and name."""
        return {
            file: {name: (_dtype(file, name, tensor), list(tensor.shape)) for name, tensor in tensors.items()}
            for file, tensors in self.tensors.items()
        }


def rank_files(rank_number: int) -> tuple[str, str]:
    """Where a worker keeps what is its own: documents and tensors."""
    return f"rank-{rank_number:05d}.json", f"rank-{rank_number:05d}.safetensors"


def to_json(document: Any) -> bytes:
    """A document as JSON; what it has under a name as bytes is JSON already."""
    if isinstance(document, dict) and any(isinstance(part, bytes) for part in document.values()):
        texts = (part if isinstance(part, bytes) else to_json(part) for part in document.values())
        return b"{" + b",".join(to_json(name) + b":" + text for name, text in zip(document, texts, strict=True)) + b"}"
    return json.dumps(document, separators=(",", ":"), allow_nan=False).encode()


def from_json(data: bytes, name: str) -> Any:
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise CorruptError(f"{name} is not JSON: {error}") from None


def tensor_pieces(file: str, tensors: Mapping[str, Tensor]) -> Iterator[bytes | memoryview]:
    """A safetensors file (https://huggingface.co/docs/safetensors), without a copy of the tensors' bytes."""
    if "__metadata__" in tensors:
        raise CheckpointError(
            f"{file} cannot hold a tensor named '__metadata__': the format keeps that name to itself."
        )
    ordered = sorted(tensors.items(), key=lambda item: (-item[1].element_size(), item[0]))
    header: dict[str, Any] = {}
    end = 0
    for name, tensor in ordered:
        start, end = end, end + tensor.nbytes
        header[name] = {"dtype": _dtype(file, name, tensor), "shape": list(tensor.shape), "data_offsets": [start, end]}
    try:
        text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise CheckpointError(f"{file} cannot hold a tensor whose name is not Unicode: {error}") from None
    text += b" " * (-len(text) % 8)
    yield len(text).to_bytes(8, "little") + text
    for _, tensor in ordered:
        if tensor.numel():
            yield tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data


def parse_tensors(data: bytes, file: str, count: int) -> dict[str, Tensor]:
    """The tensors of a safetensors file that is said to hold so many."""
    length = int.from_bytes(data[:8], "little")
    limit = max(HEADER_BYTES, HEADER_BYTES_EACH * count)
    if len(data) < 8 or length > min(limit, len(data) - 8):
        raise CorruptError(f"{file}: a header of {length:,} bytes; at most {limit:,} are read.")
    try:
        return safetensors.torch.load(data)
    except (safetensors.SafetensorError, *_UNREADABLE) as error:
        raise CorruptError(f"{file} is not a file of tensors: {error}") from None


def _dtype(file: str, name: str, tensor: Tensor) -> str:
    if tensor.dtype not in _NAMES:
        raise CheckpointError(f"{name!r} is of {tensor.dtype}, which {file} cannot hold.")
    return _NAMES[tensor.dtype]
