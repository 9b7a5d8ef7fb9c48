"""The sections of the page, each from what was found; one that has nothing to say is empty."""

import math
import time
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

from ...store.disk import size
from ...store.rows import Row, column, number, written
from ..curves import axis_of, panels
from ..table import GAP, heads, place_of, shown
from .answers import PerClass, Residuals, Scores
from .plots import chart, histogram, scatter
from .read import Found

WHOLE = 30  # rows up to which the table of epochs shows all
ROWS = 1000  # of the long table
LINES = 200  # of the log
SHORT = 4  # letters of a class that fit above its column


def headline(found: Found) -> str:
    """What it is, how it stands, and the numbers to take home."""
    word, why = found.status
    facts = "".join(
        f'<div class="{kind}"><dt>{escape(name)}</dt><dd>{escape(value)}</dd>{_small(note)}</div>'
        for kind, name, value, note in _facts(found)
    )
    missing = "".join(f"<li>{escape(line)}</li>" for line in found.missing)
    return (
        f'<header><p class="kind">training run</p><h1>{escape(found.name)}</h1>'
        f'<p class="status {word}"><b>{word}</b> <span>{escape(why)}</span></p><dl class="facts">{facts}</dl>'
        + (f'<ul class="missing">{missing}</ul>' if missing else "")
        + "</header>"
    )


def _facts(found: Found) -> Iterable[tuple[str, str, str, str]]:
    """Kind, name, value and note of each number."""
    last, row = found.rows[-1] if found.rows else {}, found.best_row
    key, value = _best_number(found, row)
    if value is not None and row is not None:
        yield "best", f"best {key}", written(value), f"epoch {written(row.get('epoch'))}, step {written(row['step'])}"
    tested = {name: v for name, v in last.items() if name.startswith("test/") and name.count("/") == 1}
    for name, v in tested.items():
        if number(v) is not None:
            yield "test", name, written(v), ""
    for name in ("epoch", "step", "samples"):
        if name in last:
            yield "count", {"epoch": "epochs", "step": "steps"}.get(name, name), written(last[name]), ""
    if (minutes := number(last.get("minutes"))) is not None:
        yield "count", "time", span(60 * minutes), ""
    pace = [y for y in throughput(found.rows).values() if math.isfinite(y)]
    if pace:
        yield "count", "samples per second", written(round(sorted(pace)[len(pace) // 2])), "median"


def _best_number(found: Found, row: Row | None) -> tuple[str, float | None]:
    """The number by which the best step is the best."""
    marks = [(key, number(value)) for key, value in found.best.items() if key != "step"]
    if marks and marks[0][1] is not None:
        return marks[0]
    key = next((key for key in ("val/loss", "train/loss") if number((row or {}).get(key)) is not None), "")
    return key, number((row or {}).get(key))


def curves(found: Found) -> str:
    """Panels for the losses, the metrics, the rate and how fast it went."""
    rows = [dict(row) for row in found.rows]
    for k, pace in throughput(rows).items():
        rows[k]["samples per second"] = pace
    if not rows:
        return ""
    axis, best = axis_of(rows), found.best_row
    at = None if best is None else number(best.get(axis))
    drawn = [chart(panel, lines, axis, at) for panel in panels(rows) if (lines := panel.curves(rows, axis))]
    note = (
        f'<p class="note"><i class="rule-key"></i> the best step, at {axis} {written(at)}</p>' if at is not None else ""
    )
    return section("Curves", f'{note}<div class="charts">{"".join(drawn)}</div>') if drawn else ""


def throughput(rows: Sequence[Row]) -> dict[int, float]:
    """Samples a second between a report and the one before, by the number of the row."""
    found: dict[int, float] = {}
    samples, minutes = 0.0, 0.0
    for k, row in enumerate(rows):
        now, at = number(row.get("samples")), number(row.get("minutes"))
        if now is None or at is None or not math.isfinite(now + at):
            continue
        if now > samples and at > minutes:
            found[k] = (now - samples) / (60 * (at - minutes))
        samples, minutes = now, at
    return found


def classes(scores: Scores | None, step: int | None) -> str:
    """The confusion matrix, and how good the answers are for each class."""
    if scores is None:
        return ""
    right = "" if scores.accuracy is None else f"; {100 * scores.accuracy:.4g} % are right"
    note = f'<p class="note">{scores.rows:,} rows of the {escape(scores.of)} data{_answered(step)}{right}</p>'
    matrix, mistakes = _matrix(scores), ""
    if scores.mistakes and len(scores.classes) > 2:
        lines = [[escape(was), escape(said), f"{count:,}"] for count, was, said in scores.mistakes]
        mistakes = f"<div><h3>Most frequent mistakes</h3>{table(['class', 'answer', 'rows'], lines, words=2)}</div>"
    per_class = f"<div><h3>By class</h3>{_by_class(scores)}</div>"
    return section("Classes", f'{note}<div class="beside">{matrix}{per_class}{mistakes}</div>')


def _by_class(scores: Scores) -> str:
    averages = [
        PerClass(name, scores.rows, *(scores.mean(what, name == "weighted") for what in ("precision", "recall", "f1")))
        for name in ("macro", "weighted")
    ]
    lines = [
        [escape(one.name), *(f"{value:.3f}" for value in (one.precision, one.recall, one.f1)), f"{one.support:,}"]
        for one in [*scores.classes, *averages]
    ]
    marks = {len(lines) - 2: "sum", len(lines) - 1: "sum"}
    head = ["class", "precision", "recall", "f1", "rows"]
    if len(lines) <= WHOLE + 2:
        return table(head, lines, marks)
    return f"{table(head, lines[-2:])}{details(f'all {len(lines) - 2:,} classes', table(head, lines[:-2]))}"


def _matrix(scores: Scores) -> str:
    if not scores.matrix:
        return ""
    names = [f'<span title="{escape(one.name)}">{escape(one.name)}</span>' for one in scores.classes]
    head = "".join(f'<th scope="col">{name}</th>' for name in names)
    tall = " tall" if max(len(one.name) for one in scores.classes) > SHORT else ""
    body = []
    for name, line in zip(names, scores.matrix, strict=True):
        total = sum(line)
        cells = "".join(_cell(count, total) for count in line)
        body.append(f'<tr><th scope="row">{name}</th>{cells}</tr>')
    return (
        f'<div><h3>Confusion</h3><div class="wide"><table class="matrix{tall}"><thead><tr>'
        f'<th class="corner">class ↓<br>answer →</th>{head}</tr></thead>'
        f"<tbody>{''.join(body)}</tbody></table></div></div>"
    )


def _cell(count: int, total: int) -> str:
    """A count on a ground the darker, the larger its share of the class; small shares are to be seen as well."""
    shade = (count / max(1, total)) ** 0.6
    dark = ' class="dark"' if shade > 0.6 else ""
    return f'<td{dark} style="--p:{shade:.3f}">{f"{count:,}" if count else "·"}</td>'


def values(columns: Sequence[Residuals], of: str, step: int | None) -> str:
    """Answers over targets and residuals, for each column of values."""
    if not columns:
        return ""
    lines = [
        [escape(one.name), written(one.r2), written(one.mae), written(one.rmse), f"{len(one.target):,}"]
        for one in columns
    ]
    drawn = []
    for one in columns:
        about = f" {one.name}" if len(columns) > 1 else ""
        drawn += [
            scatter(one.target, one.answer, f"answer{about}"),
            histogram(one.answer - one.target, f"residuals{about}"),
        ]
    scores = table(["value", "R²", "mean |error|", "RMSE", "rows"], lines)
    note = f'<p class="note">the {escape(of)} data{_answered(step)}</p>'
    return section("Values", f'{note}{scores}<div class="charts">{"".join(drawn)}</div>')


def _answered(step: int | None) -> str:
    return "" if step is None else f", answered with the weights of step {step:,}"


def epochs(found: Found) -> str:
    """The rows: all of few; of many the ends and the best, and behind a click a thousand."""
    rows, keys = found.rows, heads(found.rows)
    if not rows:
        return ""
    at = place_of(rows, found.best_row)
    some = shown(len(rows), at) if len(rows) > WHOLE else list(range(len(rows)))
    parts = [_rows(rows, keys, some, at)]
    if len(rows) > WHOLE:
        step = math.ceil(len(rows) / ROWS)
        kept = sorted({*range(0, len(rows), step), len(rows) - 1, *([] if at is None else [at])})
        what = f"all {len(rows):,} rows" if step == 1 else f"every {step}th of {len(rows):,} rows; all: metrics.jsonl"
        parts.append(details(what, _rows(rows, keys, kept, at)))
    return section("History", "".join(parts))


def _rows(rows: Sequence[Row], keys: Sequence[str], places: Sequence[int | None], best: int | None) -> str:
    columns = [column([None if k is None else rows[k].get(key) for k in places]) for key in keys]
    lines = [
        [GAP] * len(keys) if place is None else [escape(texts[line]) for texts in columns]
        for line, place in enumerate(places)
    ]
    return table(
        keys, lines, {line: "best" for line, place in enumerate(places) if place is not None and place == best}
    )


def checkpoints(found: Found) -> str:
    best = found.best.get("step")
    lines = [
        [
            f"{saved.step:,}",
            " ".join([*(["best"] if saved.step == best else []), *([] if saved.whole else ["not whole"])]),
            size(saved.nbytes) if saved.nbytes else "",
            time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(saved.written_at)),
        ]
        for saved in found.checkpoints
    ]
    marks = {k: "best" for k, saved in enumerate(found.checkpoints) if saved.step == best}
    return section("Checkpoints", table(["step", "", "size", "written"], lines, marks)) if lines else ""


def log(found: Found) -> str:
    """What somebody should look at, and behind a click the rest."""
    if not found.log:
        return ""
    said: dict[str, list[str]] = {}
    for at, text in found.warnings:
        said.setdefault(text, []).append(at)
    warned = "".join(_warning(text, times) for text, times in list(said.items())[-LINES:])
    lines = "\n".join(f"{at} {text}" for at, text in found.log[-LINES:])
    cut = f"the last {LINES} of {len(found.log):,} lines" if len(found.log) > LINES else f"{len(found.log):,} lines"
    whole = details(f"log.txt, {cut}", f"<pre>{escape(lines)}</pre>")
    none = '<p class="note">No warnings.</p>'
    return section("Warnings", (f'<ul class="log">{warned}</ul>' if warned else none) + whole)


def _warning(text: str, times: Sequence[str]) -> str:
    """A line of the log; one that came again says how often, and when last."""
    again = f" <small>{len(times):,} times, last {escape(times[-1])}</small>" if len(times) > 1 else ""
    return f"<li><time>{escape(times[0])}</time> {escape(text)}{again}</li>"


def settings(title: str, tree: Mapping[str, Any]) -> str:
    """Names and values, those within others by a path; what was not set is left out."""
    lines = [(name, value) for name, value in _flat(tree) if name and value not in ("", "None")]
    listed = "".join(f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>" for name, value in lines)
    return section(title, f'<dl class="settings">{listed}</dl>') if lines else ""


def _flat(value: Any, path: str = "") -> Iterable[tuple[str, str]]:
    if isinstance(value, Mapping) and value:
        for key, item in value.items():
            yield from _flat(item, f"{path}.{key}" if path else str(key))
    elif isinstance(value, list) and any(isinstance(item, Mapping) for item in value):
        for k, item in enumerate(value):
            yield from _flat(item, f"{path}[{k}]" if len(value) > 1 else path)
    else:
        yield path, " ".join(map(str, value)) if isinstance(value, list) else str(value)


def section(title: str, body: str) -> str:
    return f"<section><h2>{escape(title)}</h2>{body}</section>"


def details(summary: str, body: str) -> str:
    """What is shown on a click."""
    return f"<details><summary>{escape(summary)}</summary>{body}</details>"


def table(
    head: Sequence[str], lines: Sequence[Sequence[str]], marks: Mapping[int, str] | None = None, words: int = 1
) -> str:
    """A table of cells that are escaped already; the first `words` columns flush left, numbers flush right."""
    marks = marks or {}
    top = "".join(f'<th scope="col">{escape(name)}</th>' for name in head)
    body = "".join(
        f"<tr{_marked(marks.get(k))}>{''.join(f'<td>{cell}</td>' for cell in line)}</tr>"
        for k, line in enumerate(lines)
    )
    return f'<div class="wide"><table class="w{words}"><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div>'


def span(seconds: float) -> str:
    """A time to be read."""
    if not math.isfinite(seconds):
        return written(seconds)
    if seconds < 60:
        return f"{seconds:.3g} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60:,} h {minutes % 60} min"


def _marked(name: str | None) -> str:
    return f' class="{name}"' if name else ""


def _small(note: str) -> str:
    return f"<small>{escape(note)}</small>" if note else ""
