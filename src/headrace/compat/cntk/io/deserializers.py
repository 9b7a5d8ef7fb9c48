"""Where the sequences of a `MinibatchSource` come from: text files, and what users write."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ....data.batch import Stream
from ....data.ragged import Ragged
from ....data.source import Table
from ....errors import ConfigError, SourceError
from ....formats.text import open_ctf
from .._native import hint
from ..core import is_scipy, offsets_of, sequences_of
from ..variables import as_shape
from .streams import StreamInformation

CHUNK_BYTES = 32 << 20


class Corpus(ABC):
    """Sequences in chunks: how long they are, and the sequences by their numbers."""

    streams: list[StreamInformation]

    @property
    @abstractmethod
    def chunks(self) -> int:
        """How many chunks there are."""

    @abstractmethod
    def lengths(self, chunk: int) -> Any:
        """The samples of each sequence of a chunk: what a minibatch size counts."""

    @abstractmethod
    def take(self, chunks: Any, places: Any) -> Mapping[str, Ragged]:
        """The sequences at these places of these chunks, by stream."""


class CTFDeserializer:
    """A file in CNTK's text format, and the streams that are read of it."""

    def __init__(self, filename: str, streams: Mapping[str, Any]) -> None:
        hint("io.CTFDeserializer", "hr.open_ctf(path, streams)")
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
                (int(np.prod(as_shape(each["dim"]))),),
                layout="sparse" if each["is_sparse"] else "dense",
                sequence=True,
            )
            for name, each in self.definitions.items()
        ]
        return open_ctf(
            self.filename, streams, fields={name: each["stream_alias"] for name, each in self.definitions.items()}
        )


class TextCorpus(Corpus):
    """Text files whose sequences belong together, one by one."""

    def __init__(self, files: Sequence[CTFDeserializer]) -> None:
        self.streams = []
        self._tables: list[tuple[Table, list[str]]] = []
        for file in files:
            names = list(file.definitions)
            self.streams += file.streams(len(self.streams))
            self._tables.append((file.table(), names))
        rows = {len(table) for table, _ in self._tables}
        if len(rows) > 1:
            listed = ", ".join(f"{len(t)} in {f.filename}" for (t, _), f in zip(self._tables, files, strict=True))
            raise SourceError(f"files that are read together have a sequence each for every id, got {listed}.")
        self._rows = rows.pop()
        if not self._rows:
            raise SourceError(f"{files[0].filename} holds no sequences.")
        counts = {n: np.asarray(table.lengths(n)) for table, names in self._tables for n in names}
        defining = _sizing(self.streams)
        self._counts = counts[defining[0]] if defining else np.max(list(counts.values()), axis=0)
        size = sum(Path(file.filename).stat().st_size for file in files)
        self._bounds = np.linspace(0, self._rows, min(self._rows, -(-size // CHUNK_BYTES)) + 1).astype(np.int64)

    @property
    def chunks(self) -> int:
        return len(self._bounds) - 1

    def lengths(self, chunk: int) -> Any:
        return self._counts[self._bounds[chunk] : self._bounds[chunk + 1]]

    def take(self, chunks: Any, places: Any) -> Mapping[str, Ragged]:
        rows = torch.from_numpy(self._bounds[chunks] + places)
        found: dict[str, Ragged] = {}
        for table, names in self._tables:
            batch = table.take(rows)
            for name in names:
                field = batch[name]
                assert isinstance(field, Ragged)
                shape = next(s.sample_shape for s in self.streams if s.m_name == name)
                if isinstance(field.values, Tensor) and len(shape) > 1:
                    field = field.with_values(field.values.view(-1, *shape))
                found[name] = field
        return found


class UserDeserializer:
    """Data of one's own in chunks: override `stream_infos`, `num_chunks` and `get_chunk`."""

    def __init__(self) -> None:
        hint("io.UserDeserializer", "an hr.Table, which has rows by number")

    def stream_infos(self) -> list[StreamInformation]:
        raise NotImplementedError("UserDeserializer: override stream_infos() to list its StreamInformation.")

    def num_chunks(self) -> int:
        raise NotImplementedError("UserDeserializer: override num_chunks().")

    def get_chunk(self, chunk_id: int) -> Mapping[str, Any]:
        """The sequences of a chunk by stream: a list of arrays or CSR matrices, or one for samples."""
        raise NotImplementedError("UserDeserializer: override get_chunk(chunk_id).")


class UserCorpus(Corpus):
    """The chunks of a `UserDeserializer`; the last few that were read are kept."""

    def __init__(self, deserializer: UserDeserializer, keep: int) -> None:
        self._deserializer, self._keep = deserializer, max(2, keep + 1)
        self.streams = list(deserializer.stream_infos())
        self._held: dict[int, dict[str, Ragged]] = {}

    @property
    def chunks(self) -> int:
        return self._deserializer.num_chunks()

    def lengths(self, chunk: int) -> Any:
        fields = self._chunk(chunk)
        defining = _sizing(self.streams) or list(fields)
        return np.max([np.asarray(fields[name].host_offsets.diff()) for name in defining], axis=0)

    def take(self, chunks: Any, places: Any) -> Mapping[str, Ragged]:
        runs = np.flatnonzero(np.diff(chunks, prepend=-1))
        stops = [*runs[1:], len(chunks)]
        parts = [
            {n: f.take(torch.from_numpy(places[a:b])) for n, f in self._chunk(int(chunks[a])).items()}
            for a, b in zip(runs, stops, strict=True)
        ]
        return {name: Ragged.cat([part[name] for part in parts]) for name in parts[0]}

    def _chunk(self, chunk: int) -> dict[str, Ragged]:
        if chunk not in self._held:
            while len(self._held) >= self._keep:
                self._held.pop(next(iter(self._held)))
            given = self._deserializer.get_chunk(chunk)
            if missing := [s.m_name for s in self.streams if s.m_name not in given]:
                raise SourceError(
                    f"chunk {chunk} has no stream {missing[0]!r}: get_chunk() returns one entry for each."
                )
            self._held[chunk] = {s.m_name: _sequences(given[s.m_name], s) for s in self.streams}
        return self._held[chunk]


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


def corpus_of(deserializers: Any, keep: int) -> Corpus:
    """The sequences that these deserializers read together."""
    listed = list(deserializers) if isinstance(deserializers, list | tuple) else [deserializers]
    users = [each for each in listed if isinstance(each, UserDeserializer)]
    if users and len(listed) > 1:
        raise ValueError("a UserDeserializer is read alone: put what belongs together into one.")
    if users:
        return UserCorpus(users[0], keep)
    if wrong := [each for each in listed if not isinstance(each, CTFDeserializer)]:
        raise ConfigError(f"a MinibatchSource reads CTFDeserializers or a UserDeserializer, got {wrong[0]!r}.")
    return TextCorpus(listed)


def _sizing(streams: Sequence[StreamInformation]) -> list[str]:
    """The stream that minibatch sizes count, if one is named."""
    found = [each.m_name for each in streams if each.defines_mb_size]
    if len(found) > 1:
        raise ConfigError(f"one stream defines the minibatch size, got {', '.join(found)}.")
    return found
