"""A report says what is in a run, whole or cut short, and is one page that needs nothing else."""

import json
import math
import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import markupsafe
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from kit import report_runs as runs

import headrace as hr
from headrace.store import disk
from headrace.watch.charts import panels
from headrace.watch.report import write
from headrace.watch.report.page import throughput
from headrace.watch.report.read import read
from headrace.watch.report.scores import scores
from headrace.watch.report.svg import chart

VOID = {"meta", "link", "input", "br"}


class Page(HTMLParser):
    """The texts and the attributes of a page whose tags all fit each other."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.texts: list[str] = []
        self.attributes: list[tuple[str, str, str]] = []
        self.headings: list[str] = []
        self._open: list[str] = []
        self.html = path.read_text()
        self.feed(self.html)
        assert not self._open

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.texts).split())

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.attributes += [(tag, name, value or "") for name, value in attributes]
        if tag not in VOID and not (tag == "path" or self.get_starttag_text().endswith("/>")):  # type: ignore[union-attr]
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag != "path":
            assert self._open.pop() == tag, f"</{tag}> closes another"

    def handle_data(self, data: str) -> None:
        inside = self._open[-1] if self._open else ""
        if inside == "h2":
            self.headings.append(data)
        if inside not in ("style", "script"):
            self.texts.append(data)


def page(run: Path, **options: Any) -> Page:
    return Page(write(run, **options))


def logged(*lines: str) -> str:
    return runs.STARTED + "".join(f"2026-03-01 10:05:{k:02} {line}\n" for k, line in enumerate(lines))


# --- what it says ----------------------------------------------------------------------------------------


def test_a_report_has_everything_that_is_known_of_a_run_and_needs_nothing_else(tmp_path: Path) -> None:
    tested = {"test/loss": 0.25, "test/confusion": [[9, 1, 0], [2, 8, 0], [0, 1, 9]]}
    reports = [*runs.rows(5), {"epoch": 5, "step": 100, "samples": 5000, "rate": 0.1, **tested}]
    reports[0]["val/auroc"] = None
    lines = ["epoch 1  step 20  warning/share 0.5", "overridden: seed was 0, is 1", "the train data resume exactly"]
    manifest = json.dumps({"files": [{"size": 1000}, {"size": 500}]})
    run = runs.make(
        tmp_path / "digits",
        reports,
        logged(*lines, *["warning: hot"] * 12, "ended: 5 epochs reached"),
        best__best_json=json.dumps({"step": 80, "val/loss": 0.125}),
        **{f"checkpoints__step-{step:012d}-{step:06d}__manifest_json": manifest for step in (80, 100)},
        **{"checkpoints__step-000000000080-000080__COMMIT": "x"},
        recipe_json=json.dumps({"recipe": "/home/me/train.py:digits", "arguments": {"lr": 0.1}}),
    )
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    assert write(str(run), tmp_path / "mine.html") == tmp_path / "mine.html"
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before, "it is only read"
    found = page(run)
    headings = "Curves Classes History Warnings Checkpoints Recipe Configuration Environment"
    assert found.headings == headings.split()
    for sentence in (
        "digits finished 5 epochs reached",
        "best val/loss 0.125 epoch 4, step 80",
        "test/loss 0.25",
        "epochs 5 steps 100 samples 5,000 time 10 s samples per second 500",
        "30 rows of the test data; 86.67 % are right",
        "Confusion",
        "80 best 1.5 kB",
        "100 incomplete 1.5 kB",
        "optimizer.groups.lr 0.1",
        "arguments.lr 0.1",
        "versions.headrace 0.1.0",
        "2026-03-01 10:05:01 overridden: seed was 0, is 1 2026-03-01 10:05:03 warning: hot 12 times, last "
        "2026-03-01 10:05:14 log.txt",
    ):
        assert sentence in found.text, sentence
    assert "val/auroc" not in found.html, "a column without a number"
    titles = re.findall(r"<figcaption><b>([^<]*)</b>", found.html)
    assert titles == ["loss", "ce", "l2", "accuracy", "learning rate", "samples per second"]
    outside = [value for _, name, value in found.attributes if name in ("src", "href", "srcset", "action", "data")]
    assert outside == ["data:,"]
    assert "url(" not in found.html
    assert "@import" not in found.html
    assert "//" not in re.sub(r"// [A-Z][^\n]*", "", found.html).replace(str(run), ""), "no address"
    policy = next(value for tag, name, value in found.attributes if tag == "meta" and "default-src" in value)
    assert policy.startswith("default-src 'none';")


def test_a_fork_is_drawn_over_its_parent(tmp_path: Path) -> None:
    parent, run = runs.make(tmp_path / "a", runs.rows(8)), runs.make(tmp_path / "b", runs.rows(5))
    facts = {"run": str(parent), "id": runs.FACTS["id"], "step": 60}
    (run / "run.json").write_text(json.dumps(runs.FACTS | {"parents": [facts]}))
    made = page(run)
    assert f"faint: {parent}@60" in made.text
    drawn = [value for tag, name, value in made.attributes if (tag, name) == ("path", "class")]
    assert drawn.count("line parent s0") == drawn.count("line s0") - 1 > 0, "all but the pace"
    assert [row["step"] for row in read(run).parents[0][1]] == [60, 80, 100, 120, 140, 160]
    (parent / "run.json").write_text(json.dumps(runs.FACTS | {"id": "another run"}))
    made = page(run)
    assert f"faint: {parent}@60" in made.text
    assert not [value for _, name, value in made.attributes if name == "class" and "parent" in value]


@pytest.mark.parametrize(
    ("log", "word", "why"),
    [
        (runs.STARTED + runs.ENDED, "finished", "5 epochs reached"),
        (runs.STARTED, "interrupted", "without a word"),
        (logged("ended: SIGTERM received"), "interrupted", "SIGTERM received"),
        (logged("ended: left"), "interrupted", "left"),
        (logged("ended by ValueError: <b>"), "failed", "ValueError: <b>"),
        (logged("ended by KeyboardInterrupt: "), "interrupted", "KeyboardInterrupt"),
        (runs.STARTED + runs.ENDED + "2026-03-02 10:00:00 going on from step 100\n", "interrupted", "without a word"),
        ("", "unknown", "does not say"),
    ],
)
def test_the_log_tells_how_a_training_stands(tmp_path: Path, log: str, word: str, why: str) -> None:
    found = read(runs.make(tmp_path / "run", runs.rows(2), log)).status
    assert found[0] == word
    assert why in found[1]


def test_a_run_that_a_trainer_holds_is_running(tmp_path: Path) -> None:
    from headrace.store.run import RunFiles

    path = runs.make(tmp_path / "run", runs.rows(2))
    holder = RunFiles(path)
    try:
        assert read(path).status[0] == "running"
    finally:
        holder.close()
    assert read(path).status[0] == "finished"


def test_a_report_that_is_shared_names_no_host_and_no_place(tmp_path: Path) -> None:
    log = logged("warning: on somewhere, /home/ann/data set.csv and ~/x/y.npz have nulls")
    run = runs.make(tmp_path / "secret place" / "first", runs.rows(3), log=log + runs.ENDED)
    private = ("somewhere", "/home/ann", "secret place", str(tmp_path), "train.py", "OMP_NUM_THREADS")
    own, shared = (write(run, tmp_path / f"{share}.html", share=share).read_text() for share in (False, True))
    assert all(word in own for word in private), "the control"
    assert not any(word in shared for word in private)
    assert all(word in shared for word in ("first", "CrossEntropy", "y.npz", "ended: 5 epochs"))


# --- how good the answers are ----------------------------------------------------------------------------


def test_the_numbers_of_classes_are_those_of_scikit_learn() -> None:
    from sklearn.metrics import accuracy_score, confusion_matrix, precision_recall_fscore_support

    draw = np.random.default_rng(1)
    target, answer = draw.integers(0, 4, (2, 300))
    answer = np.where(draw.random(300) < 0.8, target, answer)
    every = {"labels": range(5), "zero_division": 0}  # one never comes
    matrix = confusion_matrix(target, answer, labels=range(5)).tolist()
    found = scores([{"test/confusion": matrix}])
    assert found is not None
    assert [name for name, *_ in found.classes] == [*"01234"]
    ours = [numbers for _, *numbers in found.classes]
    np.testing.assert_allclose(np.transpose(ours), precision_recall_fscore_support(target, answer, **every))
    for average, *means, rows in found.means:
        theirs = precision_recall_fscore_support(target, answer, average=average, **every)[:3]
        assert (means, rows) == (pytest.approx([*theirs]), 300)  # type: ignore[comparison-overlap]
    assert found.matrix == matrix
    assert found.accuracy == pytest.approx(accuracy_score(target, answer))
    assert found.mistakes[0][2] == max(n for i, line in enumerate(matrix) for j, n in enumerate(line) if i != j)


# --- what is missing -------------------------------------------------------------------------------------


def test_what_a_kill_leaves_is_reported_as_far_as_it_goes(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    (run / "run.json").write_text(json.dumps(runs.FACTS))
    said = page(run).text
    assert all(name in said for name in ("config.json", "metrics.jsonl", "log.txt"))
    assert "unknown the log does not say whether it ended, and nothing was reported" in said
    run = runs.make(tmp_path / "another", runs.rows(3), runs.STARTED)
    (run / "config.json").unlink()
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"epoch":4,"step":80,"samp')
    (run / "checkpoints" / "step-000000000060-000001").mkdir(parents=True)
    found = page(run)
    assert "The last line of metrics.jsonl was cut short, and is left out." in found.text
    assert "There is no config.json, which says with which settings." in found.text
    assert "60 incomplete" in found.text
    assert "epochs 3" in found.text
    assert "Classes" not in found.headings


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("run.json", b"{"),
        ("run.json", b"[1]"),
        ("config.json", b'{"a": [1'),
        ("config.json", b"text"),
        ("config.json", b"\xff\xfe\x00"),
        ("log.txt", b"\xff\xfe\x00 no time\n\x1b[31m"),
        ("metrics.jsonl", b'{"step":1,"epoch":"one","samples":[],"a":1e999}\n{"step":2,"a":' + b"9" * 400 + b"}\n"),
        ("metrics.jsonl", b"\x00" * 100 + b"\n"),
        ("times.jsonl", b'{"step":20,"minutes":"soon"}\n{"step":40,"minutes":null}\n'),
        ("best/best.json", b'{"step":"last"}'),
        ("best/best.json", b"{}"),
        ("metrics.jsonl", b'{"step":1,"val/confusion":[[1],[2,3]]}\n{"step":2,"val/confusion":"x"}\n'),
        ("checkpoints/step-000000000020-000001/manifest.json", b'{"files":[{}]}'),
        ("checkpoints/step-x/manifest.json", b""),
        ("recipe.json", b"!!python/object:os.system {}"),
    ],
)  # fmt: skip
def test_a_file_of_any_content_stops_no_report(tmp_path: Path, name: str, content: bytes) -> None:
    run = runs.make(tmp_path / "run", runs.rows(2))
    (run / name).parent.mkdir(parents=True, exist_ok=True)
    (run / name).write_bytes(content)
    assert "run" in page(run).text


def test_a_pipe_or_a_directory_in_place_of_a_file_stops_no_report(tmp_path: Path) -> None:
    run = runs.make(tmp_path / "run", runs.rows(2))
    (run / "log.txt").unlink()
    os.mkfifo(run / "log.txt")
    (run / "best" / "best.json").mkdir(parents=True)
    assert "log.txt cannot be read" in page(run).text


def test_what_is_no_run_and_a_place_that_is_none_are_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    run = runs.make(tmp_path / "runs" / "mine")
    (tmp_path / "empty").mkdir()
    for name, message in {
        "none": r"is not a directory\. Name the directory of a run, as it was given to fit\(run=\.\.\.\)\.",
        "file": "is not a directory",
        "empty": r"is not a run: it has no run\.json\. Name what was given",
        "runs": r"is not a run: .* It holds runs: name one of mine\.",
    }.items():
        with pytest.raises(hr.RunError, match=message):
            write(tmp_path / name)
    for out in (tmp_path, tmp_path / "nowhere" / "report.html"):
        with pytest.raises(hr.RunError, match="name a file in a directory that is there"):
            write(run, out)


# --- how it is written -----------------------------------------------------------------------------------


def test_everything_is_escaped(tmp_path: Path) -> None:
    bad = "<script>alert('1')</script>\"&"
    run = runs.make(
        tmp_path / f"<b>{bad.replace('/', '')}",
        [{"epoch": k, "step": k, "samples": k, f"val/{bad}": float(k), bad: 1.0 / k} for k in (1, 2)],
        logged(f"warning: {bad}", f"ended: {bad}"),
        config_json=json.dumps({bad: {bad: bad}}),
        best__best_json=json.dumps({"step": 1, bad: 1.0}),
    )
    found = page(run)
    assert found.text.count("alert('1')") > 10, "it is all there"
    assert found.html.count("<script>") == 1, "the page's own"
    assert str(markupsafe.escape(bad)) in found.html
    assert len([tag for tag, *_ in found.attributes if tag == "script"]) == 0


def test_the_page_is_whole_or_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = runs.make(tmp_path / "run", runs.rows(2))
    before = write(run).read_bytes()

    def full(operation: str, call: Any, *arguments: Any) -> Any:
        if operation == "fsync":
            raise OSError(28, "No space left on device")
        return call(*arguments)

    monkeypatch.setattr(disk, "perform", full)
    with pytest.raises(hr.RunError, match=r"writing the report of .* failed: No space left on device"):
        write(run)
    assert (run / "report.html").read_bytes() == before


def test_a_report_is_written_without_torch(tmp_path: Path) -> None:
    run = runs.make(tmp_path / "run", runs.classified())
    code = (
        f"import sys; from headrace.watch.report import write; write({str(run)!r}); assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=400)


def test_a_long_run_is_thinned_to_what_a_screen_shows(tmp_path: Path) -> None:
    reports = runs.rows(10_000)
    reports[5_000]["train/loss"], reports[6_000]["train/loss"] = 77.5, "NaN"
    found = page(runs.make(tmp_path / "run", reports))
    assert len(found.html) < 1_000_000
    views = [json.loads(value) for _, name, value in found.attributes if name == "data-view"]
    loss = views[0]["curves"][0]
    assert len(loss["x"]) < 2000
    assert max(value for value in loss["y"] if value is not None) == 77.5
    assert None in loss["y"], "the gap is there"
    assert "every 10th of 10,000 rows" in found.text


@given(st.lists(st.floats(), min_size=1, max_size=30), st.sampled_from(["loss", "r2"]))
@example([1.0, 6.4e290], "loss")
@example([5e-324, 1.0, 9e299], "loss")
def test_any_numbers_can_be_drawn(values: list[float], name: str) -> None:
    reports = [{"epoch": k, "step": k, f"val/{name}": value} for k, value in enumerate(values)]
    (panel,) = panels(reports)
    drawn = chart(panel, panel.curves(reports, "epoch"), "epoch", 1.0)
    places = [float(place) for _, path in drawn.paths for place in re.findall(r"[^MLHVhz ]+", path)]
    assert all(0 <= place <= 1000 for place in places)


def test_how_fast_it_went_is_from_report_to_report() -> None:
    def row(samples: int, minutes: float) -> dict[str, Any]:
        return {"samples": samples, "minutes": minutes}

    reports = [row(600, 0.1), row(1200, 0.3), row(1200, 0.4), {"samples": 5}, row(1800, 0.4), row(2400, math.nan)]
    assert throughput(reports) == pytest.approx({0: 100.0, 1: 50.0})


def test_the_classes_are_those_of_the_last_confusion_matrix(tmp_path: Path) -> None:
    found = scores([{"epoch": k, "step": k, "samples": k, "val/confusion": [[k, 2], [3, 4]]} for k in (1, 9)])
    assert found is not None
    assert (found.of, found.matrix) == ("val", [[9, 2], [3, 4]])
    assert scores([{"val/confusion": [[0.5, 0.5], [0, 1]]}]) is None, "shares are no counts"
