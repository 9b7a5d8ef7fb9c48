"""`headrace predict RUN DATA --out FILE`: what a model says of every row of a file."""

import argparse
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from ...errors import ConfigError
from .parser import file_of
from .say import say
from .using import add_run

if TYPE_CHECKING:
    from ...data.arrays import ArrayTable

ENDINGS = (".arrow", ".csv", ".npy", ".parquet")


def add(parser: argparse.ArgumentParser) -> None:
    add_run(parser)
    parser.add_argument(
        "data", metavar="DATA", help="a file: .npy .npz .arrow .parquet .csv .ctf; targets may be missing"
    )
    parser.add_argument(
        "--out", type=file_of(*ENDINGS), required=True, metavar="FILE", help=f"what to write: {' '.join(ENDINGS)}"
    )


def run(options: argparse.Namespace) -> int:
    _check(options.out, options.data)
    from ...adapters.compose import take
    from ..answers import outputs_in
    from ..data import like_training
    from .using import trained

    made = trained(options)
    data = like_training(made, options.data, "predict", targets=False)
    if len(data):
        with tempfile.TemporaryDirectory() as room:  # what such a file cannot hold is known by the first row
            _write(made.predict(take(data, 1)), Path(room, f"first{options.out.suffix}"))
    found = made.predict(data, batch_size=options.batch_size)
    _write(found, options.out)
    columns = outputs_in(found) if options.out.suffix.lower() == ".npy" else [stream.name for stream in found.streams]
    document = {"file": str(options.out), "rows": len(data), "step": made.step, "columns": columns}
    said = f"{options.out}: {', '.join(columns)} of {len(data):,} rows, by the weights of step {made.step}"
    say(options, document, said)
    return 0


def _check(out: Path, data: str) -> None:
    """Raises on a file that could not be written at the end."""
    from ...formats.write import check_place

    check_place(out)
    if out.exists() and Path(data).exists() and out.samefile(data):
        raise ConfigError(f"--out {out} is the file to be read. Name another.")


def _write(found: "ArrayTable", out: Path) -> None:
    from ...formats.write import whole, write_table
    from ..answers import write_csv, write_npy

    ending = out.suffix.lower()
    if ending in (".arrow", ".parquet"):
        return write_table(found, out)
    with whole(out) as beside, open(beside, "wb") as file:
        (write_npy if ending == ".npy" else write_csv)(found, file)
