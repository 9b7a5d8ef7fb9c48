"""The order of an epoch, as a pure function of (seed, epoch, position).

A keyed permutation computes the row at any position of any epoch in O(1) memory. Therefore a run can stop and continue
anywhere, with any number of workers, and reads the same rows. Orders are part of the file format of a run: they never
change within one `VERSION`.
"""

import hashlib
import sys
from math import isqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import ConfigError, unknown
from ..length import as_count

VERSION = 1
ROUNDS = 8
CHUNK = 8192  # positions at a time: the temporaries stay in the processor's cache
AHEAD = 1024  # blocks that are looked up together
UPPER = slice(int(sys.byteorder == "little"), None, 2)  # the upper halves of numbers of 64 bits
Indices = NDArray[np.int64]


class Permutation:
    """A keyed bijection of [0, n): a mixed-radix Feistel network with cycle walking.

    A number x below a·b is the pair (x // b, x % b). Each round adds to one half, modulo its radix, a hash
    of the other: that can be undone, whatever the hash. With a = ⌈√n⌉ and b = ⌈n / a⌉ hardly any x lies
    past n; those that land there go round again until they do not (Black & Rogaway 2002).
    """

    def __init__(self, n: int, *key: object) -> None:
        if not 0 < n < 2**62:
            raise ConfigError(f"a permutation needs 1 to 2**62 - 1 elements, got {n}.")
        self.n = n
        a = isqrt(n - 1) + 1  # the root, rounded up: both halves fit into 31 bits
        self._radix = np.uint32(a), np.uint32(-(-n // a))
        self._wide_radix = np.uint64(a), np.uint64(-(-n // a))
        words = np.frombuffer(_digest(n, *key), dtype="<u4").astype(np.uint32)
        self._adds, self._muls = words[:ROUNDS], words[ROUNDS:] | np.uint32(1)

    def __call__(self, positions: Any, tweak: Any = None) -> Indices:
        """The element at each position. A `tweak` per position selects a permutation of its own."""
        return self._walk(positions, tweak, range(ROUNDS), np.add, np.subtract)

    def inverse(self, elements: Any, tweak: Any = None) -> Indices:
        """The position of each element."""
        return self._walk(elements, tweak, range(ROUNDS)[::-1], np.subtract, np.add)

    def _walk(self, x: Any, tweak: Any, rounds: range, move: np.ufunc, back: np.ufunc) -> Indices:
        x = np.asarray(x, dtype=np.int64).view(np.uint64)
        tweak = None if tweak is None else np.asarray(tweak).astype(np.uint32)
        out = np.empty(len(x), dtype=np.uint64)
        for start in range(0, len(x), CHUNK):
            part = slice(start, start + CHUNK)
            keyed = None if tweak is None else tweak[part]
            y = self._pass(x[part], keyed, rounds, move, back)
            while len(outside := np.flatnonzero(y >= self.n)):
                y[outside] = self._pass(y[outside], None if keyed is None else keyed[outside], rounds, move, back)
            out[part] = y
        return out.view(np.int64)

    def _pass(self, x: Any, tweak: Any, rounds: range, move: np.ufunc, back: np.ufunc) -> Any:
        """All rounds: each moves a half, and back by the radix where it has left the range from 0 up to that."""
        high = x // self._wide_radix[1]
        halves = high.astype(np.uint32), (x - high * self._wide_radix[1]).astype(np.uint32)
        scratch = np.empty(len(x), np.uint32), np.empty(len(x), np.uint32), np.empty(len(x), np.uint64)
        for k in rounds:
            half, radix = halves[k % 2], self._radix[k % 2]
            move(half, self._round(halves[1 - k % 2], k, tweak, scratch), out=half)
            np.minimum(half, back(half, radix, out=scratch[0]), out=half)  # unsigned: the other one is huge
        joined = halves[0] * self._wide_radix[1]
        joined += halves[1]
        return joined

    def _round(self, half: Any, k: int, tweak: Any, scratch: tuple[Any, ...]) -> Any:
        """A hash of one half, in [0, radix of the other): 32-bit multiply and xor-shift, then scaled."""
        h, mixed, scaled = scratch
        np.add(half, self._adds[k], out=h)
        if tweak is not None:
            h += tweak
        h *= self._muls[k]
        h ^= np.right_shift(h, np.uint32(15), out=mixed)
        h *= np.uint32(0x846CA68B)
        scaled[:] = h
        scaled *= self._wide_radix[k % 2]
        return scaled.view(np.uint32)[UPPER]


class Order:
    """The row at each position of each epoch.

    `"full"` shuffles all rows. `"blocks"` shuffles blocks of `block` consecutive rows, and the rows within each block.
    `"blocks-only"` shuffles only the blocks, and `"rows-only"` only the rows within each. `"none"` keeps the order of
    the table. With `"blocks"` and `mix`, the rows of `mix` shuffled blocks are shuffled together.
    """

    batch_size = 0
    KINDS = ("full", "blocks", "blocks-only", "rows-only", "none")

    def __init__(self, n: int, kind: str = "full", *, seed: int = 0, block: int | None = None, mix: int = 1) -> None:
        if not isinstance(kind, str) or kind not in self.KINDS:
            raise ConfigError(unknown("order", kind, self.KINDS))
        if n < 1:
            raise ConfigError(f"an order needs at least one row, got {n}.")
        if block is not None and not as_count(block):
            raise ConfigError(f"block= is a number of rows, at least 1, got {block}.")
        if not as_count(mix) or (mix > 1 and kind != "blocks"):
            raise ConfigError(f"mix= is a number of blocks, at least 1, for order 'blocks'; got {mix} for {kind!r}.")
        seed = seed.item() if isinstance(seed, np.generic) else seed
        self.n, self.kind, self.seed, self.mix = int(n), kind, seed, int(mix)
        self.block = min(as_count(block) or self.n, self.n)
        self._tail = (n - 1) // self.block  # the last block: the only one that may be short
        self._missing = (self._tail + 1) * self.block - n  # the rows that it lacks
        self._keys: tuple[int, Any, Any, Any, int] | None = None
        self._ahead: tuple[Any, int, Indices] = None, 0, np.empty(0, np.int64)

    def indices(self, epoch: int, start: int, stop: int) -> Indices:
        """The rows at positions `start` to `stop` of an epoch."""
        return self.at(epoch, positions_of(self.n, start, stop))

    def at(self, epoch: int, positions: Indices) -> Indices:
        """The rows at these positions of an epoch, in any order."""
        if self.kind == "none" or not len(positions):
            return positions
        blocks, inside, tail, slot = self._permutations(epoch)
        if self.kind == "full":
            rows: Indices = blocks(positions)
            return rows
        if self.mix > 1:
            return self._mixed(epoch, positions, blocks, slot)
        return self._two_levels(positions, blocks, inside, tail, slot)

    def positions(self, epoch: int, row: int) -> list[int]:
        """The positions of a row in an epoch; there is one, computed without the others."""
        rows = np.array([row], dtype=np.int64)
        if self.kind == "none":
            return [row]
        blocks, inside, tail, slot = self._permutations(epoch)
        if self.kind == "full":
            return [int(blocks.inverse(rows)[0])]
        ids, offsets = np.divmod(rows, self.block)
        place = ids if blocks is None else blocks.inverse(ids)
        before = int(place[0]) * self.block - (self._missing if place[0] > slot else 0)
        if self.mix == 1:
            if inside is not None:
                offsets = tail.inverse(offsets) if ids[0] == self._tail else inside.inverse(offsets, tweak=_mix(ids))
            return [before + int(offsets[0])]
        group = place // self.mix
        first = self._end(int(group[0]) * self.mix, slot)
        size = self._end((int(group[0]) + 1) * self.mix, slot) - first
        shuffle = Permutation(size, "mixed", VERSION, self.seed, epoch, self.block, self.mix)
        return [first + int(shuffle.inverse(np.array([before + int(offsets[0]) - first]), tweak=_mix(group))[0])]

    def _end(self, after: int, slot: int) -> int:
        """The position at which so many slots end, where the short block stands in `slot`."""
        return min(self.n, after * self.block - (self._missing if after > slot else 0))

    def _mixed(self, epoch: int, positions: Indices, blocks: Any, slot: int) -> Indices:
        """Positions are shuffled within groups of `mix` slots; all groups but two have the same size."""
        size, mix, missing = self.block, self.mix, self._missing
        behind = positions + np.where(positions >= (slot + 1) * size - missing, missing, 0)
        groups = behind // (size * mix)
        firsts = groups * size * mix - np.where(groups * mix > slot, missing, 0)
        sizes = np.minimum(mix, self._tail + 1 - groups * mix) * size
        sizes -= np.where(groups == slot // mix, missing, 0)
        offsets = positions - firsts
        for rows in np.unique(sizes):
            those = sizes == rows
            shuffle = Permutation(int(rows), "mixed", VERSION, self.seed, epoch, size, mix)
            offsets[those] = shuffle(offsets[those], tweak=_mix(groups[those]))
        moved = firsts + offsets
        moved += np.where(moved >= (slot + 1) * size - missing, missing, 0)
        slots, inside = np.divmod(moved, size)
        ids, which = self._blocks_in(slots, int(slots.min()), int(slots.max()) + 1, blocks)
        found: Indices = (ids * size)[which] + inside
        return found

    def _permutations(self, epoch: int) -> tuple[Any, Any, Any, int]:
        """Of the blocks, of the rows in a whole block, of those in the short one, and that one's slot."""
        keys = self._keys
        if keys is None or keys[0] != epoch:
            key = (VERSION, self.seed, epoch, self.block)
            if self.kind == "full":
                keys = (epoch, Permutation(self.n, "rows", *key[:3]), None, None, 0)
            else:
                blocks = None if self.kind == "rows-only" else Permutation(self._tail + 1, "blocks", *key)
                still = self.kind == "blocks-only"
                inside = None if still else Permutation(self.block, "inside", *key)
                tail = None if still else Permutation(self.block - self._missing, "tail", *key)
                slot = self._tail if blocks is None else int(blocks.inverse([self._tail])[0])
                keys = (epoch, blocks, inside, tail, slot)
            self._keys = keys  # another thread may have put its own there meanwhile
        return keys[1:]

    def _two_levels(self, positions: Indices, blocks: Any, inside: Any, tail: Any, slot: int) -> Indices:
        size, missing = self.block, self._missing
        begins = (slot + 1) * size - missing  # behind the short block every position moves up
        least, most = (
            (p + (missing if p >= begins else 0)) // size for p in (int(positions.min()), int(positions.max()))
        )
        if least == most:  # all in one block, as mostly where blocks are large
            ids = self._blocks_from(least, least + 1, blocks)
            placed: Any = positions - self._end(least, slot)
            if inside is not None and ids[0] == self._tail:
                placed = tail(placed)
            elif inside is not None:
                placed = inside(placed, tweak=np.broadcast_to(_mix(ids), len(placed)))
            placed += ids[0] * size
            found: Indices = placed
            return found
        moved = positions + np.where(positions >= begins, missing, 0)
        slots = moved // size
        offsets = moved - slots * size
        ids, which = self._blocks_in(slots, least, most + 1, blocks)
        if inside is not None:
            shuffled = inside(offsets, tweak=_mix(ids)[which])
            if (ids == self._tail).any():
                in_tail = ids[which] == self._tail
                shuffled[in_tail] = tail(offsets[in_tail])
            offsets = shuffled
        rows: Indices = (ids * size)[which] + offsets
        return rows

    def _blocks_in(self, slots: Indices, first: int, stop: int, blocks: Any) -> tuple[Indices, Any]:
        """The blocks that stand in slots, all from `first` up to `stop`, and which of them stands in each of `slots`.

        Where slots are near each other, a block is looked up once, and not for each row.
        """
        if stop - first > len(slots):
            return slots if blocks is None else blocks(slots), slice(None)
        return self._blocks_from(first, stop, blocks), slots - first

    def _blocks_from(self, first: int, stop: int, blocks: Any) -> Indices:
        """The blocks in the slots from `first` up to `stop`, looked up with those that are read next."""
        if blocks is None:
            return np.arange(first, stop, dtype=np.int64)
        known, start, ids = self._ahead
        if known is not blocks or not start <= first < stop <= start + len(ids):
            start, ids = first, blocks(np.arange(first, min(self._tail + 1, max(stop, first + AHEAD))))
            self._ahead = blocks, start, ids  # another thread may have put its own there meanwhile
        return ids[first - start : stop - start]


def positions_of(n: int, start: int, stop: int) -> Indices:
    """The positions `start` to `stop` of an epoch of `n` rows."""
    if not 0 <= start <= stop <= n:
        raise ConfigError(f"positions {start} to {stop} are not within an epoch of {n} rows.")
    return np.arange(start, stop, dtype=np.int64)


def _mix(ids: Indices) -> Any:
    """A 64-bit hash of block numbers (the finaliser of splitmix64), so that blocks get unlike tweaks."""
    z = ids.astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def _digest(*key: object) -> bytes:
    text = "\x1f".join(str(part) for part in key)
    return hashlib.blake2b(text.encode(), digest_size=8 * ROUNDS).digest()
