"""`headrace convert IN OUT`: data files into a file of another kind."""

import argparse
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from ...errors import ConfigError
from .parser import add_json
from .say import say

if TYPE_CHECKING:
    from ...data.batch import Stream


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "data", nargs="+", metavar="IN", help="files, globs or URLs: .npy .npz .arrow .parquet .csv .ctf"
    )
    parser.add_argument("out", type=Path, metavar="OUT", help="the file to write: .arrow .parquet .npz .ctf")
    parser.add_argument(
        "--stream",
        action="append",
        default=[],
        metavar="STREAM",
        help='a stream of a .ctf file, as in "words 1000 sparse sequence" or "image 28x28 uint8"; for each of them',
    )
    parser.add_argument("--skip-bad-rows", action="store_true", help="leave out what cannot be read of a .ctf file")
    add_json(parser)


def run(options: argparse.Namespace) -> int:
    from ...formats.paths import find
    from ...formats.table import open_table
    from ...formats.write import check_target, write_table

    check_target(options.out)
    streams = [_stream(text) for text in options.stream] or None
    data = options.data if len(options.data) > 1 else options.data[0]
    bad_rows: Any = "skip" if options.skip_bad_rows else "stop"
    with ExitStack() as stack:
        cache = None
        if find(data)[0].kind == "ctf":  # its rows are in the new file: nobody needs a copy of them beside the old one
            where = options.out.parent if options.out.parent.is_dir() else None
            cache = stack.enter_context(TemporaryDirectory(prefix=".headrace-", dir=where))
        table = open_table(data, streams=streams, bad_rows=bad_rows, cache=cache)
        write_table(table, options.out)
    document = {"file": str(options.out), "rows": len(table), "streams": list(map(str, table.streams))}
    say(options, document, f"{options.out}: {len(table)} rows of {', '.join(map(str, table.streams))}")
    return 0


def _stream(text: str) -> "Stream":
    """A stream as the command line has it: its name, then its shape, dtype, "sparse", "sequence" in any order."""
    from ...data.batch import Stream

    name, *words = text.split() or [""]
    if not name:
        raise ConfigError('--stream "": name the stream, as in "words 1000 sparse sequence".')
    try:
        shape = tuple(int(size) for word in words if word[0].isdigit() for size in word.split("x"))
    except ValueError:
        raise ConfigError(f"--stream {text!r}: a shape is written as 100 or 28x28.") from None
    kinds = [word for word in words if not word[0].isdigit() and word not in ("sparse", "sequence")]
    if len(kinds) > 1:
        raise ConfigError(f"--stream {text!r}: expected one dtype at most, got {' and '.join(kinds)}.")
    layout: Any = "sparse" if "sparse" in words else "dense"
    return Stream(name, shape, kinds[0] if kinds else "float32", layout, "sequence" in words)
