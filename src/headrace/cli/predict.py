"""`headrace predict RUN DATA --out FILE`: what a model says of every row of a file."""

import argparse
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import ConfigError
from .parser import file_of
from .say import say
from .using import add_run

if TYPE_CHECKING:
    from .answers import Answers

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
    from .answers import answers_of
    from .data import like_training
    from .using import trained

    made, step = trained(options)
    data = like_training(made, options.data, "predict", targets=False)
    found = answers_of(made, made.trainer.predict(data, batch_size=options.batch_size))
    _write(found, options.out)
    columns = found.outputs if options.out.suffix == ".npy" else found.columns
    document = {"file": str(options.out), "rows": len(data), "step": step, "columns": list(columns)}
    said = f"{options.out}: {', '.join(columns)} of {len(data):,} rows, by the weights of step {step}"
    say(options, document, said)
    return 0


def _check(out: Path, data: str) -> None:
    """Raises on a file that could not be written at the end."""
    if not out.absolute().parent.is_dir():
        raise ConfigError(f"--out {out}: there is no directory {out.parent}. Make it first.")
    if out.is_dir() or not os.access(out if out.exists() else out.absolute().parent, os.W_OK):
        raise ConfigError(f"--out {out} cannot be written. Name a file in a place that can.")
    if out.exists() and Path(data).exists() and out.samefile(data):
        raise ConfigError(f"--out {out} is the file to be read. Name another.")


def _write(found: "Answers", out: Path) -> None:
    if out.suffix in (".arrow", ".parquet"):
        from ..data.files import write_table

        return write_table(found.table(), out)
    from ..data.files.whole import whole

    with whole(out) as beside, open(beside, "wb") as file:
        writes: dict[str, Any] = {".npy": found.write_npy, ".csv": found.write_csv}
        writes[out.suffix](file)
