"""Files in CNTK's text format, made at random and spoilt at random, and what came of them as plain values."""

from random import Random
from typing import Any

from headrace.data.batch import Stream
from headrace.data.ragged import Ragged
from headrace.data.sparse import Sparse
from kit.spoilt import spoilt

STREAMS = [
    Stream("words", (30,), layout="sparse", sequence=True),
    Stream("dense", (2,), "float64", sequence=True),
    Stream("y", (3,)),
    Stream("bag", (2**40,), "int16", layout="sparse"),
    Stream("label_of_it", (), "int64"),
]
NAMES = {"words": "x"}


def number(random: Random, dtype: str) -> str:
    if dtype.startswith("int"):
        return random.choice(["0", "1", "-3", "+7", "012", "31"])
    return random.choice(["0", "1", "0.5", "-1e-3", "+2.", ".25", "3.1415927", "1E5", "nan", "-inf", "1e-60", "7"])


def item(random: Random, stream: Stream) -> str:
    if stream.layout == "dense":
        size = stream.shape[0] if stream.shape else 1
        return " ".join(number(random, stream.dtype) for _ in range(size))
    ids = random.sample(range(min(30, stream.shape[0])), random.choice([0, 1, 1, 1, 2, 5]))
    value = "1" if random.random() < 0.7 else number(random, stream.dtype)
    return " ".join(f"{i}:{value}" for i in ids)


def valid(random: Random, sequences: int, ids: bool = True) -> bytes:
    """A file as it may be: comments, blanks, missing ids, fields that nobody reads, either kind of line end."""
    lines, end = [], random.choice(["\n", "\n", "\r\n"])
    id = random.randrange(3)
    for _ in range(sequences):
        count = random.choice([1, 1, 2, 5]) if ids else 1
        homes = {s.name: random.randrange(count) for s in STREAMS if not s.sequence}
        for k in range(count):
            fields = []
            for stream in STREAMS:
                if homes.get(stream.name, k) == k and (not stream.sequence or random.random() < 0.8):
                    fields.append(f"|{NAMES.get(stream.name, stream.name)} {item(random, stream)}")
            if random.random() < 0.2:
                fields.append(random.choice(["|other 1 x:y", "|# a comment |# and more: 1:2", "|words", "|#", "|é 5"]))
            random.shuffle(fields)
            blank = random.choice([" ", " ", " ", "\t", "  ", ""])
            head = str(id) if ids and (k == 0 or random.random() < 0.8) else ""
            if not fields and not head:
                continue
            lines.append(head + " " + blank.join(fields or ["|# nothing"]) + random.choice(["", "", " "]))
            if random.random() < 0.05:
                lines.append(random.choice(["", "  ", "|# between"]))
        id += random.choice([1, 1, 1, 4])
    text = end.join(lines) + random.choice([end, end, ""])
    return (b"\xef\xbb\xbf" if random.random() < 0.1 else b"") + text.encode()


WORDS = [b"|", b" |", b"|x", b"|y 1 2 3", b"\n", b"\r", b":", b"1:1", b" 5", b"#", b"nan(1)", b"0x10", b"1e999", b"\0"]
WORDS += [b"-1:1", b"30:1", b"99999999999999999999", b"\n7", b"\n7 |#", b"|#", b"| ", b"\xff", b"\t", b" 2:1 2:1", b"e"]
WORDS += [b"\n12345 |x 1:1 |y 0 0 0 |bag |label_of_it 3\n", b"\v", b"_", b"+", b"."]


def damaged(data: bytes, random: Random) -> bytes:
    """One to three changes of bytes; now and then a line that is there twice, or is gone."""
    lines = data.split(b"\n")
    if random.random() < 0.3:
        k = random.randrange(len(lines))
        if random.random() < 0.5:
            lines.insert(random.randrange(len(lines)), lines[k])
        else:
            lines.pop(k)
        return b"\n".join(lines)
    return spoilt(data, random, WORDS)


def plain(fields: dict[str, Any], rows: int) -> list[dict[str, Any]]:
    """Rows as the reference parser gives them."""
    return [{name: row_of(field, row) for name, field in fields.items()} for row in range(rows)]


def row_of(field: Any, row: int) -> list[Any]:
    """The items of a row, each as a list of numbers or of pairs."""
    if isinstance(field, Ragged):
        start, stop = int(field.host_offsets[row]), int(field.host_offsets[row + 1])
        return [item_of(field.values, k) for k in range(start, stop)]
    return [item_of(field, row)]


def item_of(items: Any, k: int) -> Any:
    if not isinstance(items, Sparse):
        return items[k].reshape(-1).tolist()
    start, stop = int(items.host_offsets[k]), int(items.host_offsets[k + 1])
    values = [1.0] * (stop - start) if items.values is None else items.values[start:stop].tolist()
    return list(zip(items.indices[start:stop].tolist(), values, strict=True))
