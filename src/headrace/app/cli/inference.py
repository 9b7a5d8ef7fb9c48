"""`headrace validate` and `predict`: use the model of a run."""

from pathlib import Path
from typing import Annotated, Literal

from ...errors import ConfigError
from .options import HOW_MADE, Count, HowMade, Which, of_kind
from .output import numbers, print_result


def validate(
    run: str,
    data: str | None = None,
    /,
    *,
    on: Literal["val", "test"] = "val",
    which: Which = None,
    batch_size: Count | None = None,
    how: HowMade = HOW_MADE,
) -> int:
    """Prints the loss and the metrics of the weights of a run.

    Args:
        run: the directory of a run
        data: a file, instead of the recipe's own data
        on: which of the recipe's data to use, and how the scores are named
        which: best, last or a step (the best if a callback marked one, else the last)
        batch_size: rows that the model sees at once
    """
    loaded = how.load(run, which)
    scored = getattr(loaded.open_data(), on) if data is None else loaded.read(data, on)
    if scored is None:
        raise ConfigError(f"the recipe has no {on} data. Name a file: headrace validate RUN DATA.")
    scores = loaded.trainer.validate(scored, on, batch_size=batch_size)
    text = "\n".join([f"the weights of step {loaded.step}", *numbers(scores)])
    print_result(how.json, {"step": loaded.step, **scores}, text)
    return 0


def predict(
    run: str,
    data: str,
    /,
    *,
    out: Annotated[Path, of_kind(".arrow", ".csv", ".parquet")],
    which: Which = None,
    batch_size: Count | None = None,
    how: HowMade = HOW_MADE,
) -> int:
    """Writes the model's predictions for every row of a file.

    Args:
        run: the directory of a run
        data: a file: .arrow .csv .ctf .jsonl .npy .npz .parquet and the like; targets may be missing
        out: what to write: .arrow .csv .parquet
        which: best, last or a step (the best if a callback marked one, else the last)
        batch_size: rows that the model sees at once
    """
    from ...formats.write import check_place, write_table
    from ..predict import write_csv

    check_place(out)
    if out.exists() and Path(data).exists() and out.samefile(data):
        raise ConfigError(f"--out {out} is the file to be read. Name another.")
    loaded = how.load(run, which)
    found = loaded.predict(data, batch_size=batch_size)
    if out.suffix.lower() == ".csv":
        write_csv(found, out)
    else:
        write_table(found, out)
    columns = [stream.name for stream in found.streams]
    document = {"file": str(out), "rows": len(found), "step": loaded.step, "columns": columns}
    text = f"{out}: {', '.join(columns)} of {len(found):,} rows, by the weights of step {loaded.step}"
    print_result(how.json, document, text)
    return 0
