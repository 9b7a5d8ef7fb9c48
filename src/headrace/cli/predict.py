"""`headrace predict RUN DATA --out FILE`: what a model says of every row of a file."""

import argparse
import tempfile
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
    from ..data.compose import take
    from .answers import answers_of
    from .data import like_training
    from .using import trained

    made, step = trained(options)
    data = like_training(made, options.data, "predict", targets=False)
    if len(data):
        with tempfile.TemporaryDirectory() as room:  # what such a file cannot hold is known by the first row
            _write(answers_of(made, made.trainer.predict(take(data, 1))), Path(room, f"first{options.out.suffix}"))
    found = answers_of(made, made.trainer.predict(data, batch_size=options.batch_size))
    _write(found, options.out)
    columns = found.outputs if options.out.suffix.lower() == ".npy" else found.columns
    document = {"file": str(options.out), "rows": len(data), "step": step, "columns": list(columns)}
    said = f"{options.out}: {', '.join(columns)} of {len(data):,} rows, by the weights of step {step}"
    say(options, document, said)
    return 0


def _check(out: Path, data: str) -> None:
    """Raises on a file that could not be written at the end."""
    from ..data.files.whole import check_place

    check_place(out)
    if out.exists() and Path(data).exists() and out.samefile(data):
        raise ConfigError(f"--out {out} is the file to be read. Name another.")


def _write(found: "Answers", out: Path) -> None:
    ending = out.suffix.lower()
    if ending in (".arrow", ".parquet"):
        from ..data.files import write_table

        return write_table(found.table(), out)
    from ..data.files.whole import whole

    with whole(out) as beside, open(beside, "wb") as file:
        writes: dict[str, Any] = {".npy": found.write_npy, ".csv": found.write_csv}
        writes[ending](file)
