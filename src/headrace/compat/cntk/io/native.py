"""Sources of users as headrace's own: to train with natively, and to be held to what is promised of a source."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ....data.batch import Batch, Stream
from ....data.ragged import Ragged
from ....data.shard import Shard
from ....data.source import Source
from ....errors import SourceError
from ....testing import Report, check_source
from .memory import LINES, UserMinibatchSource, loops_as_worker


class NativeSource(Source):
    """A source that was written for CNTK, as one of headrace's; its `sequences` are the streams that have some.

    It is asked as worker 0 of 1. One that never returns an empty dict says `endless=True`.
    """

    def __init__(self, source: UserMinibatchSource, sequences: Sequence[str] = (), endless: bool = False) -> None:
        self._source, self.endless = source, endless
        self._streams = [
            Stream(info.m_name, info.sample_shape, info.dtype.__name__, info.layout, info.m_name in sequences)
            for info in source.stream_infos()
        ]
        self.sized_by = next(iter(sequences), "rows")

    @property
    def streams(self) -> Sequence[Stream]:
        return self._streams

    def next_batch(self, size: int, shard: Shard = Shard()) -> Batch | None:
        given = self._source.next_minibatch(size, 1, 0, None)
        if not given:
            return None
        fields = {info.m_name: data.data.rows for info, data in given.items()}
        for stream in self._streams:
            if stream.name not in fields:
                raise SourceError(f"{type(self._source).__name__} gave no stream {stream.name!r}. Return each of them.")
            rows = fields[stream.name]
            if not stream.sequence and isinstance(rows, Ragged) and rows.items == len(rows):
                fields[stream.name] = rows.values
            elif isinstance(rows, Tensor) and rows.dim() == len(stream.shape) + 2:
                offsets = torch.arange(len(rows) + 1) * rows.shape[1]
                fields[stream.name] = Ragged(rows.flatten(0, 1), offsets) if stream.sequence else rows[:, 0]
        return Batch(fields)

    def state_dict(self) -> dict[str, Any]:
        return dict(self._source.get_checkpoint_state())

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._source.restore_from_checkpoint(state)


def check_user_source(
    make: Callable[[], UserMinibatchSource], sequences: Sequence[str] = (), endless: bool = False, **options: Any
) -> Report:
    """Holds sources that were written for CNTK to the contract of a source; an error names what is broken.

    They are asked as each of two workers, which has to end, and then as `headrace.testing.check_source` asks.
    """
    for own in range(2):
        source = make()
        if place := loops_as_worker(source, 8, 2, own):
            raise SourceError(
                f"{type(source).__name__}.next_minibatch does not return to worker {own} of 2: it is at {place} after "
                f"{LINES:,} lines. Go on past the sequences of other workers."
            )
    return check_source(lambda: NativeSource(make(), sequences, endless), **options)
