"""The part of every batch that one of several workers reads."""

from dataclasses import dataclass, field

from ..errors import ConfigError, SourceError
from .batch import Batch


@dataclass(frozen=True)
class Shard:
    """The part of every batch that one of `count` workers reads.

    If batches are divided into `parts`, a shard consists of complete parts.
    """

    index: int = 0
    count: int = 1
    parts: int = field(default=0, repr=False)

    def __post_init__(self) -> None:
        if not 0 <= self.index < self.count:
            raise ConfigError(f"a shard is one of its count, got index {self.index} of {self.count}.")

    def of(self, rows: int) -> tuple[int, int]:
        """The start and stop of this shard in a batch of `rows` rows; it may be empty."""
        if not self.parts:
            return rows * self.index // self.count, rows * (self.index + 1) // self.count
        cuts, mine = self.cuts(rows), self.mine
        return cuts[mine.start], cuts[mine.stop]

    @property
    def mine(self) -> range:
        """The numbers of this shard's parts."""
        return range(self.parts * self.index // self.count, self.parts * (self.index + 1) // self.count)

    def cuts(self, rows: int) -> list[int]:
        """Where each part of a batch of `rows` rows begins, and where the last one ends; some may be empty."""
        return [rows * part // self.parts for part in range(self.parts + 1)]

    def parts_of(self, batch: Batch) -> list[Batch]:
        """The parts of this shard's rows of a batch that are not empty, in order, with their numbers."""
        cuts = self.cuts(batch.total)
        expected = cuts[self.mine.stop] - cuts[self.mine.start]
        if batch.rows != expected:
            raise SourceError(
                f"worker {self.index} of {self.count} has {batch.rows} rows of a batch of {batch.total}, which is cut "
                f"into {self.parts} parts; its parts have {expected}. Give it rows {cuts[self.mine.start]} to "
                f"{cuts[self.mine.stop]}: shard.of({batch.total})."
            )
        return batch.cut([(part, cuts[part + 1] - cuts[part]) for part in self.mine if cuts[part] < cuts[part + 1]])


WHOLE = Shard()
