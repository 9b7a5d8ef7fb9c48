"""The report page: what `page.html` shows, computed from the contents of a run."""

import base64
import math
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ... import __version__
from ...store.disk import size
from ...store.document import Row
from ..charts import axis_of, panels
from ..history import cells, place_of, shown
from ..progress import span
from ..rows import flattened, number, written
from .read import RunContents
from .scores import Scores, scores
from .svg import chart

FEW = 30  # rows up to which the tables of epochs and of classes show all
ROWS = 1000  # of the long table
LINES = 200  # of the log

Table = tuple[Sequence[str], Sequence[Sequence[str]], Mapping[int, str]]
"""Names of columns, lines of cells, and the classes of lines that have one."""


def page(run: RunContents) -> str:
    """The whole page as HTML."""
    from jinja2 import Environment, FileSystemLoader

    loader = FileSystemLoader(Path(__file__).parent)
    environment = Environment(loader=loader, autoescape=True, trim_blocks=True, lstrip_blocks=True)
    environment.filters |= {
        "written": written,
        "thousands": "{:,}".format,
        "settings": settings,
        "shaded": shaded,
    }
    judged, pace = scores(run.rows), throughput(run.rows)
    shared = {"run": run, "few": FEW, "log_lines": LINES, "version": __version__}
    return environment.get_template("page.html").render(
        **shared,
        facts=list(_facts(run, pace)),
        **_curves(run, pace),
        **_classes(judged),
        **_history(run),
        **_checkpoints(run),
        picture=base64.b64encode(run.picture or b"").decode(),
        warnings=_warnings(run),
        now=time.strftime("%Y-%m-%d %H:%M:%S"),
    )


def _facts(run: RunContents, pace: Mapping[int, float]) -> Iterable[tuple[str, str, str, str]]:
    """The numbers to take home: kind, name, value and note of each."""
    last, row = run.rows[-1] if run.rows else {}, run.best_row
    key, value = run.best_number
    if value is not None and row is not None:
        yield "best", f"best {key}", written(value), f"epoch {written(row.get('epoch'))}, step {written(row['step'])}"
    for name, tested in last.items():
        if name.startswith("test/") and "/loss/" not in name and number(tested) is not None:
            yield "test", name, written(tested), ""
    for name in ("epoch", "step", "samples"):
        if name in last:
            yield "count", {"epoch": "epochs", "step": "steps"}.get(name, name), written(last[name]), ""
    if (minutes := number(last.get("minutes"))) is not None and math.isfinite(minutes):
        yield "count", "time", span(60 * minutes), ""
    if rates := sorted(rate for rate in pace.values() if math.isfinite(rate)):
        yield "count", "samples per second", written(round(rates[len(rates) // 2])), "median"
    for key, name in {"time/tokens_per_s": "tokens per second", "time/mfu": "MFU"}.items():
        if timed := sorted(each for row in run.rows if (each := number(row.get(key))) is not None):
            yield "count", name, written(timed[len(timed) // 2]), "median"


def _curves(run: RunContents, pace: Mapping[int, float]) -> dict[str, Any]:
    """Panels for the losses, the metrics, the rate and how fast it went."""
    rows = [dict(row) for row in run.rows]
    for k, rate in pace.items():
        rows[k]["samples per second"] = rate
    axis, best = axis_of(rows), run.best_row
    at = None if best is None else number(best.get(axis))
    drawn = [
        chart(panel, curves, axis, at, [curve for _, others in run.parents for curve in panel.curves(others, axis)])
        for panel in panels(rows)
        if (curves := panel.curves(rows, axis))
    ]
    return {"charts": drawn, "axis": axis, "best_at": at, "parents": [name for name, _ in run.parents]}


def throughput(rows: Sequence[Row]) -> dict[int, float]:
    """Samples a second between a report and the one before, by the number of the row."""
    rates: dict[int, float] = {}
    samples, minutes = 0.0, 0.0
    for k, row in enumerate(rows):
        now, at = number(row.get("samples")), number(row.get("minutes"))
        if now is None or at is None or not math.isfinite(now + at):
            continue
        if now > samples and at > minutes:
            rates[k] = (now - samples) / (60 * (at - minutes))
        samples, minutes = now, at
    return rates


def _classes(judged: Scores | None) -> dict[str, Any]:
    """How good the answers are for each class, and on average."""
    if judged is None:
        return {}
    by_class, means = (
        [[name, *(f"{ratio:.3f}" for ratio in ratios), f"{rows:,}"] for name, *ratios, rows in lines]
        for lines in (judged.classes, judged.means)
    )
    mistakes = [[*pair, f"{count:,}"] for *pair, count in judged.mistakes if len(judged.classes) > 2]
    return {"scores": judged, "by_class": by_class, "means": means, "mistakes": mistakes}


def shaded(line: Sequence[int]) -> list[tuple[int, float]]:
    """Counts with their shade: the darker, the larger the share of the class; small shares are to be seen as well."""
    total = max(1, sum(line))
    return [(count, (count / total) ** 0.6) for count in line]


def _history(run: RunContents) -> dict[str, Any]:
    """The rows: all of few; of many the ends and the best, and behind a click a thousand."""
    rows, at = run.rows, place_of(run.rows, run.best_row)
    if len(rows) <= FEW:
        return {"history": _table(rows, range(len(rows)), at)}
    step = math.ceil(len(rows) / ROWS)
    kept = sorted({*range(0, len(rows), step), len(rows) - 1, *([] if at is None else [at])})
    what = f"all {len(rows):,} rows" if step == 1 else f"every {step}th of {len(rows):,} rows; all: metrics.jsonl"
    return {
        "history": _table(rows, shown(len(rows), at), at),
        "long_history": _table(rows, kept, at),
        "long_history_title": what,
    }


def _table(rows: Sequence[Row], places: Sequence[int | None], best: int | None) -> Table:
    """Some rows as a table; a place that is `None` stands for those left out."""
    return *cells(rows, places), {} if best is None else {list(places).index(best): "best"}


def _checkpoints(run: RunContents) -> dict[str, Any]:
    best = run.best.get("step")
    lines = [
        [
            f"{saved.step:,}",
            " ".join([*(["best"] if saved.step == best else []), *([] if saved.is_complete else ["incomplete"])]),
            size(saved.nbytes) if saved.nbytes else "",
            time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(saved.written_at)),
        ]
        for saved in run.checkpoints
    ]
    marks = {k: "best" for k, saved in enumerate(run.checkpoints) if saved.step == best}
    return {"checkpoints": lines, "checkpoint_marks": marks}


def _warnings(run: RunContents) -> list[tuple[str, list[str]]]:
    """Warnings in the log, each once with all its times."""
    times: dict[str, list[str]] = {}
    for at, text in run.warnings:
        times.setdefault(text, []).append(at)
    return list(times.items())[-LINES:]


def settings(tree: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Names and values of settings, those within others by a path; what was not set is left out."""
    texts = {
        name: " ".join(map(str, value)) if isinstance(value, list) else str(value)
        for name, value in flattened(tree).items()
    }
    return [(name, text) for name, text in texts.items() if name and text not in ("", "None")]
