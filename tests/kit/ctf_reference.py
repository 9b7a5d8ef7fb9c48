"""CNTK's text format read in plain Python, line by line: what the vectorised parser is compared with."""

import re
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np

from headrace.data.batch import Stream

FLOAT = re.compile(rb"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?|[+-]?(?i:nan|inf|infinity)")


@dataclass
class Sequence:
    id: int | None
    line: int
    bad: bool = False
    items: dict[str, list[Any]] = field(default_factory=dict)
    lines: dict[str, list[int]] = field(default_factory=dict)


@dataclass
class Outcome:
    rows: list[dict[str, Any]]
    first_bad_line: int | None
    """From 1."""


class Bad(Exception):  # noqa: N818
    pass


def number(text: bytes, dtype: str) -> Any:
    if "float" in dtype:
        if not FLOAT.fullmatch(text):
            raise Bad
        with np.errstate(over="ignore"):
            value = np.dtype(dtype).type(float(text))
        if np.isinf(value) and b"i" not in text.lower():
            raise Bad
        return value
    if not re.fullmatch(rb"[+-]?\d+", text):
        raise Bad
    limits = np.iinfo("uint8" if dtype == "bool" else dtype)
    value = int(text)
    if not limits.min <= value <= (1 if dtype == "bool" else limits.max):
        raise Bad
    return value


def item(content: bytes, stream: Stream) -> Any:
    size = int(np.prod(stream.shape, dtype=np.int64))
    words = re.findall(rb"[^ \t]+", content)
    if stream.layout == "dense":
        if len(words) != size:
            raise Bad
        return [number(word, stream.dtype) for word in words]
    pairs = {}
    for word in words:
        index, colon, value = word.partition(b":")
        if not colon or not value or not re.fullmatch(rb"[+-]?\d+", index):
            raise Bad
        at = int(index)
        if not 0 <= at < size or at in pairs:
            raise Bad
        pairs[at] = number(value, stream.dtype)
    return list(pairs.items())


def line_of(line: bytes, streams: dict[bytes, Stream]) -> tuple[Any, bool, dict[str, Any], bool]:
    """The id (None for none, "?" for one that cannot be read), whether there are fields, items, whether it is bad."""
    head, *fields = line.removesuffix(b"\r").split(b"|")
    words = re.findall(rb"[^ \t]+", head)
    if len(words) > 1 or (words and (not re.fullmatch(rb"\d+", words[0]) or int(words[0]) >= 2**64)):
        return "?", False, {}, True
    id = int(words[0]) if words else None
    found: dict[str, Any] = {}
    bad = id is not None and not fields
    held = False
    for content in fields:
        if content.startswith(b"#"):
            continue
        held = True
        name = re.match(rb"[^ \t]*", content)[0]  # type: ignore[index]
        try:
            name.decode()
        except UnicodeDecodeError:
            bad = True
        bad = bad or not name
        if name in streams:
            stream = streams[name]
            bad = bad or stream.name in found
            try:
                found[stream.name] = item(content[len(name) :], stream)
            except Bad:
                bad = True
    return id, held, found, bad


def reference(data: bytes, streams: list[Stream], names: dict[str, str] | None = None) -> Outcome:
    data = data.removeprefix(b"\xef\xbb\xbf")
    by_name = {(names or {}).get(s.name, s.name).encode(): s for s in streams}
    lines = data.split(b"\n")
    if not lines[-1]:
        lines.pop()
    parsed = [line_of(line, by_name) for line in lines]
    decisive = (id for id, held, _, _ in parsed if id not in (None, "?") or (id is None and held))
    with_ids = next(decisive, None) is not None
    sequences: list[Sequence] = []
    faults: list[int] = []
    poisoned = False
    for k, (id, held, found, bad) in enumerate(parsed, 1):
        if not with_ids:
            if id is not None or held or bad:
                sequences.append(Sequence(None, k))
                bad = bad or id is not None
        elif id == "?" or (id is None and held and not sequences):
            faults.append(k)
            poisoned = True
            if sequences:
                sequences[-1].bad = True
            continue
        elif id is not None and (not sequences or sequences[-1].id != id):
            sequences.append(Sequence(id, k))
        elif id is None and not held and not bad:
            continue
        if not sequences:
            continue
        now = sequences[-1]
        if with_ids:
            now.bad, poisoned = now.bad or poisoned, poisoned and id is None  # its line may have begun the next one
        if bad:
            now.bad = True
            faults.append(k)
        for name, value in found.items():
            now.items.setdefault(name, []).append(value)
            now.lines.setdefault(name, []).append(k)
    return judged(sequences, faults, streams)


def judged(sequences: list[Sequence], faults: list[int], streams: list[Stream]) -> Outcome:
    late: list[Sequence] = []
    for before, now in pairwise(sequences):
        if now.id is not None and now.id <= before.id:  # type: ignore[operator]
            faults.append(now.line)
            late.append(now)
    for now in sequences:
        touched = now.bad
        for stream in streams:
            count = len(now.items.get(stream.name, []))
            if not stream.sequence and count != 1:
                now.bad = True
                if not touched:
                    faults.append(now.lines[stream.name][1] if count else now.line)
    for now in late:
        now.bad = True
    rows = [{s.name: now.items.get(s.name, []) for s in streams} for now in sequences if not now.bad]
    return Outcome(rows, min(faults, default=None))
