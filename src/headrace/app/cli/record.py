"""`headrace when`, `why`, `diff`, `verify` and `without`: what can be found out from a run."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter
from cyclopts.validators import Number

from .options import HOW_MADE, Count, HowMade, UsageError
from .output import print_result

if TYPE_CHECKING:
    from ...record.record import Record


def _record(run: str) -> "Record":
    from ...record import record

    return record.Record(run)


def when(run: str, /, *, step: Count | None = None, row: int | None = None, how: HowMade = HOW_MADE) -> int:
    """Shows rows of an update, or updates that used a row. Only a mix of tables needs the recipe.

    Args:
        run: the directory of a run
        step: show the rows of this update
        row: show the updates that used this row
    """
    if (step is None) == (row is None):
        raise UsageError("say --step N for the rows of an update, or --row N for the updates that used a row.")
    record, train = _record(run), how.remade(run).train if how.is_named else None
    found = record.when(row, train) if row is not None else record.rows(step or 0, train)
    what = "steps" if step is None else "rows"
    print_result(how.json, {what: found}, f"{what}: {', '.join(map(str, found)) or 'none'}")
    return 0


def why(run: str, /, *, step: Count | None = None, report: bool = False, how: HowMade = HOW_MADE) -> int:
    """Makes an update again, and shows its loss by rows, and the norms of its gradient.

    Args:
        run: the directory of a run
        step: the update (the largest spike that a SpikeGuard has noted)
        report: add it to the run's report, too
    """
    record = _record(run)
    step = step or max([(loss - median, at) for at, loss, median in record.spikes], default=(0.0, 0))[1]
    if not step:
        raise UsageError("say --step N: no SpikeGuard has noted a spike in this run.")
    recipe = how.remade(run)
    found = record.why(step, recipe.trainer, recipe.train, **recipe.fit)
    if report:
        from ...watch.report import write

        found.write(run)
        write(run)
    print_result(how.json, {**asdict(found), "exact": found.exact}, str(found))
    return 0 if found.exact is not False else 1


def diff(run: str, other: str, /, *, how: HowMade = HOW_MADE) -> int:
    """Shows the first difference of two runs; with the recipe, also the first update and tensor that differ.

    Args:
        run: the directory of a run
        other: the directory of another
    """
    from ...record.diff import diff as first_difference

    recipes = [how.remade(each) for each in (run, other)] if how.is_named else []
    parts: Any = zip(*((each.trainer, each.train) for each in recipes), strict=True)
    found = first_difference(run, other, *parts, **(recipes[0].fit if recipes else {}))
    print_result(how.json, asdict(found), str(found))
    return 1 if found else 0


def verify(
    run: str,
    /,
    *,
    segments: Annotated[int | None, Parameter(validator=Number(gte=0))] = None,
    key: Path | None = None,
    out: Path | None = None,
    how: HowMade = HOW_MADE,
) -> int:
    """Checks every byte of the checkpoints of a run; with the recipe, also trains stretches between them again.

    Args:
        run: the directory of a run
        segments: how many stretches are trained again (3 with --recipe or --trust, else none)
        key: a private key of ssh, which signs the certificate
        out: write the certificate as JSON
    """
    from ...formats.write import check_place

    if out is not None:
        check_place(out)
    again = how.is_named if segments is None else segments > 0
    recipe = how.remade(run) if again else None
    parts: Any = {"trainer": recipe.trainer, "train": recipe.train, **recipe.fit} if recipe else {}
    found = _record(run).verify(segments=3 if segments is None else segments, key=key, **parts)
    if out is not None:
        found.write(out)
    note = "" if found.stretches else "\nno update was made again"
    print_result(how.json, {"ok": found.ok, **asdict(found)}, f"{found}{note}")
    return 0 if found.ok else 1


def without(of: str, /, *, rows: str, run: str, how: HowMade = HOW_MADE) -> int:
    """Trains a run again from before some rows were first used, with weight 0 for them.

    Args:
        of: the directory of a run
        rows: their numbers, as in 13579,7
        run: the directory of the new run
    """
    if not all(each.strip().isdecimal() for each in rows.split(",")):
        raise UsageError(f"--rows is numbers of rows, as in 13579,7; got {rows!r}.")
    from ..find import copy_recipe

    recipe, record = how.remade(of), _record(of)
    last = record.without([*map(int, rows.split(","))], recipe.trainer, recipe.train, run=run, **recipe.fit).last
    copy_recipe(record.path, Path(run))
    print_result(how.json, last | {"run": run}, f"{run}: {last['step']} updates without rows {rows}")
    return 0
