"""Where the sequences of a `MinibatchSource` come from, as tables: text files, and what users write."""

from collections.abc import Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ....adapters.compose import zip as zip_tables
from ....data.batch import Batch, Stream
from ....data.ragged import Ragged
from ....data.source import Table
from ....errors import ConfigError, SourceError
from ....formats.text import open_ctf
from ..core import is_scipy, offsets_of, sequences_of
from ..variables import as_shape
from .streams import StreamInformation

CHUNK_BYTES = 32 << 20


class CTFDeserializer:
    """A file in CNTK's text format, and the streams that are read of it."""

    def __init__(self, filename: str, streams: Mapping[str, Any]) -> None:
        for key, each in streams.items():
            if each.get("stream_alias") is None:
                raise ValueError(f"CTFDeserializer: stream {key!r} has no field. Give StreamDef(field='x', shape=...).")
            if each.get("dim") is None:
                raise ValueError(f"CTFDeserializer: stream {key!r} has no shape. Give StreamDef(field='x', shape=...).")
        self.filename, self.definitions = str(filename), dict(streams)
        self.type = "CNTKTextFormatDeserializer"

    def streams(self, first: int) -> list[StreamInformation]:
        """What it reads, numbered from here."""
        return [
            StreamInformation(
                name,
                first + k,
                "sparse" if each["is_sparse"] else "dense",
                np.float32,
                as_shape(each["dim"]),
                bool(each.get("defines_mb_size")),
            )
            for k, (name, each) in enumerate(self.definitions.items())
        ]

    def table(self) -> Table:
        """The file as a table with a row for each sequence."""
        streams = [
            Stream(
                name,
                (prod(as_shape(each["dim"])),),
                layout="sparse" if each["is_sparse"] else "dense",
                sequence=True,
            )
            for name, each in self.definitions.items()
        ]
        return open_ctf(
            self.filename, streams, fields={name: each["stream_alias"] for name, each in self.definitions.items()}
        )


class UserDeserializer:
    """Data of one's own in chunks: override `stream_infos`, `num_chunks` and `get_chunk`."""

    def stream_infos(self) -> list[StreamInformation]:
        raise NotImplementedError("UserDeserializer: override stream_infos() to list its StreamInformation.")

    def num_chunks(self) -> int:
        raise NotImplementedError("UserDeserializer: override num_chunks().")

    def get_chunk(self, chunk_id: int) -> Mapping[str, Any]:
        """The sequences of a chunk by stream: a list of arrays or CSR matrices, or one for samples."""
        raise NotImplementedError("UserDeserializer: override get_chunk(chunk_id).")


class _Chunks(Table):
    """The sequences of a `UserDeserializer`, chunk after chunk; the last `keep` chunks that were read are kept.

    Every chunk is read once when the table is made, for the lengths of its sequences.
    """

    def __init__(self, deserializer: UserDeserializer, keep: int) -> None:
        self._deserializer, self._keep = deserializer, keep
        self._infos = list(deserializer.stream_infos())
        self._cache: dict[int, dict[str, Ragged]] = {}
        read = [{n: f.host_offsets.diff() for n, f in self._chunk(k).items()} for k in range(deserializer.num_chunks())]
        if not read:
            raise SourceError(f"{type(deserializer).__name__}.num_chunks() gave 0: there is nothing to read.")
        self._lengths = {info.m_name: torch.cat([each[info.m_name] for each in read]) for info in self._infos}
        self._starts = np.cumsum([0, *(len(each[self._infos[0].m_name]) for each in read)])
        self.block = -(-len(self) // len(read))
        self._streams = [Stream.of(name, field) for name, field in self._chunk(0).items()]

    @property
    def streams(self) -> Sequence[Stream]:
        return self._streams

    def __len__(self) -> int:
        return int(self._starts[-1])

    def lengths(self, stream: str) -> Tensor:
        return self._lengths[stream]

    def take(self, indices: Tensor) -> Batch:
        places = indices.numpy()
        chunks = np.searchsorted(self._starts, places, "right") - 1
        parts = [
            {n: f.take(torch.from_numpy(places[chunks == k] - self._starts[k])) for n, f in self._chunk(int(k)).items()}
            for k in (np.unique(chunks) if len(chunks) else [0])
        ]
        back = torch.from_numpy(np.argsort(np.argsort(chunks, kind="stable"), kind="stable"))
        return Batch({name: Ragged.cat([part[name] for part in parts]).take(back) for name in parts[0]})

    def _chunk(self, chunk: int) -> dict[str, Ragged]:
        if chunk not in self._cache:
            while len(self._cache) >= self._keep:
                self._cache.pop(next(iter(self._cache)))
            given = self._deserializer.get_chunk(chunk)
            if missing := [info.m_name for info in self._infos if info.m_name not in given]:
                raise SourceError(
                    f"chunk {chunk} has no stream {missing[0]!r}: get_chunk() returns one entry for each."
                )
            self._cache[chunk] = {info.m_name: _sequences(given[info.m_name], info) for info in self._infos}
        return self._cache[chunk]


def _sequences(given: Any, stream: StreamInformation) -> Ragged:
    """The sequences of a chunk."""
    rank = len(stream.sample_shape)
    if isinstance(given, list):
        if is_scipy(given[0]):
            return sequences_of(given)
        return sequences_of(
            [np.asarray(e, stream.dtype)[None] if np.ndim(e) == rank else np.asarray(e, stream.dtype) for e in given]
        )
    if is_scipy(given) and rank == 1:
        return Ragged(sequences_of([given]).values, offsets_of([1] * given.shape[0]))
    given = given.toarray() if is_scipy(given) else given  # sparse rows have one axis
    array = np.asarray(given, stream.dtype).reshape(-1, *stream.sample_shape)
    return Ragged(torch.tensor(array), offsets_of([1] * len(array)))


class Sized(Table):
    """A table whose lengths are what minibatch sizes count: the items of one stream, or of each sequence's longest."""

    chunk_rows = 1
    """How many rows of text workers share together where the order is random."""

    def __init__(self, table: Table, infos: Sequence[StreamInformation]) -> None:
        defining = [info.m_name for info in infos if info.defines_mb_size]
        if len(defining) > 1:
            raise ConfigError(f"one stream defines the minibatch size, got {', '.join(defining)}.")
        self._table, self.infos, self.block = table, list(infos), table.block if isinstance(table, _Chunks) else None
        names = defining or [info.m_name for info in infos]
        self.sizes = torch.stack([torch.as_tensor(table.lengths(name)) for name in names]).amax(0)

    @property
    def streams(self) -> Sequence[Stream]:
        return self._table.streams

    def fingerprint(self) -> str:
        return self._table.fingerprint()

    def __len__(self) -> int:
        return len(self._table)

    def lengths(self, stream: str) -> Tensor:
        return self.sizes

    def take(self, indices: Tensor) -> Batch:
        return self._table.take(indices)


def opened(deserializers: Any, keep: int) -> Sized:
    """The sequences that these deserializers read together, a row for each; of a user's, `keep` chunks are kept."""
    listed = list(deserializers) if isinstance(deserializers, list | tuple) else [deserializers]
    if len(listed) == 1 and isinstance(listed[0], UserDeserializer):
        return Sized(_Chunks(listed[0], keep), listed[0].stream_infos())
    if any(isinstance(each, UserDeserializer) for each in listed):
        raise ConfigError("a UserDeserializer is not read together with others. Put what belongs together into one.")
    if wrong := [each for each in listed if not isinstance(each, CTFDeserializer)]:
        raise ConfigError(f"a MinibatchSource reads CTFDeserializers or a UserDeserializer, got {wrong[0]!r}.")
    infos: list[StreamInformation] = []
    for file in listed:
        infos += file.streams(len(infos))
    sized = Sized(zip_tables(*(file.table() for file in listed)), infos)
    size = sum(Path(file.filename).stat().st_size for file in listed)
    sized.chunk_rows = max(1, len(sized) * CHUNK_BYTES // max(size, CHUNK_BYTES))
    return sized
