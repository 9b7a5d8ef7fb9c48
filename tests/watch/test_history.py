"""A history says which row is the best, and shows itself as a frame, as a figure and as a table in a notebook."""

import math
import sys
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import headrace as hr
from headrace.store.document import read_row
from headrace.watch.charts import thin
from headrace.watch.rows import by_step

NAN = math.nan


def history(*rows: dict[str, Any], marked: int | None = None) -> hr.History:
    """A history of these rows, which get counters."""
    made = hr.History()
    for k, row in enumerate(rows, 1):
        made.rows.append({"epoch": k, "step": 10 * k, "samples": 100 * k, "rate": 0.1, **row})
    made.marked = marked
    return made


def losses(*values: float, marked: int | None = None) -> hr.History:
    return history(*({"train/loss": 1.0 + k, "val/loss": value} for k, value in enumerate(values)), marked=marked)


# --- the best row ----------------------------------------------------------------------------------------


BEST = {
    "the least loss of the validation": (losses(3.0, 1.0, 2.0), 20),
    "the marked step, whatever the losses are": (losses(3.0, 1.0, 2.0, marked=30), 30),
    "a marked step without a row is no answer": (losses(3.0, 1.0, 2.0, marked=15), 20),
    "without a validation the loss of the training": (history({"train/loss": 2.0}, {"train/loss": 1.0}), 20),
    "never NaN": (losses(NAN, 2.0, NAN), 20),
    "where the validation is NaN, the loss of the training": (losses(NAN, NAN), 10),
    "the first of equal rows": (losses(1.0, 1.0), 10),
    "nothing of NaN": (history({"val/loss": NAN}), None),
    "nothing of no numbers": (history({}), None),
    "nothing of nothing": (hr.History(), None),
}


@pytest.mark.parametrize("case", BEST)
def test_the_best_row_is(case: str) -> None:
    found, step = BEST[case]
    assert (None if found.best is None else found.best["step"]) == step
    assert step is None or any(found.best is row for row in found.rows), "no copy"


def test_best_by_infers_what_is_better_from_the_name() -> None:
    found = history({"val/f1": 0.1, "val/error": 0.1, "mine": -1}, {"val/f1": 0.9, "val/error": 0.9, "mine": -2})
    assert [found.best_by(key)["step"] for key in ("val/f1", "val/error")] == [20, 10]  # type: ignore[index]
    assert [found.best_by("mine", mode)["step"] for mode in ("min", "max")] == [20, 10]  # type: ignore[index]
    assert history({"val/f1": NAN}, {"val/f1": -3.0}, {"val/f1": NAN}).best_by("val/f1")["step"] == 20  # type: ignore[index]
    assert hr.History().best_by("val/loss") is None
    with pytest.raises(hr.ConfigError, match="small or large is not known: say mode="):
        found.best_by("mine")
    with pytest.raises(hr.ConfigError, match=r"unknown key 'val/f2'\. Did you mean 'val/f1'\?"):
        found.best_by("val/f2")
    with pytest.raises(hr.ConfigError, match="mode= is 'min', 'max' or 'auto', got 'small'"):
        found.best_by("mine", "small")


SIDES = {
    "min": "loss val/loss train/loss/l2 val/loss/accuracy val/error val/error:macro mae test/mse",
    "max": "val/accuracy f1:weighted val/f1 val/recall val/precision:none auroc r2 val/top-3",
    "": "f1_gap val/accuracy_gap precision_loss error_free_rate val/losses top- bleu val_loss",
}


def test_the_words_of_a_name_tell_whether_less_is_better() -> None:
    for side, keys in SIDES.items():
        for key in keys.split():
            found = history({key: 1.5}, {key: 2.0}, {key: 1.0})
            if side:
                assert found.best_by(key)["step"] == {"min": 30, "max": 20}[side], key  # type: ignore[index]
            else:
                with pytest.raises(hr.ConfigError, match="small or large is not known"):
                    found.best_by(key)


# --- as a frame ------------------------------------------------------------------------------------------


def test_a_frame_has_a_row_for_each_report_and_nan_where_nothing_was_measured() -> None:
    frame = history({"train/loss": 2.0}, {"val/loss": 1.0, "val/confusion": [[1, 2], [3, 4]]}).to_pandas()
    assert list(frame.columns) == ["epoch", "step", "samples", "rate", "train/loss", "val/loss", "val/confusion"]
    assert frame["step"].tolist() == [10, 20]
    assert frame["train/loss"].isna().tolist() == [False, True]
    assert frame["val/confusion"][1] == [[1, 2], [3, 4]]
    assert len(hr.History().to_pandas()) == 0


def test_without_pandas_one_sentence_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(hr.ConfigError, match=r'^to_pandas needs pandas, .*: pip install "headrace\[pandas\]"$'):
        losses(1.0).to_pandas()


# --- as a figure -----------------------------------------------------------------------------------------


def colours_in(figure: Any) -> set[tuple[int, int, int]]:
    """The colours of a figure as it is drawn."""
    figure.canvas.draw()
    pixels = figure.canvas.buffer_rgba()
    flat = bytes(pixels)
    return {(flat[k], flat[k + 1], flat[k + 2]) for k in range(0, len(flat), 4)}


def test_a_figure_has_a_panel_for_each_thing_that_was_measured() -> None:
    rows = [
        {"train/loss": 3.0 / k, "train/loss/l2": 0.1, "train/loss/ce": 2.9, "val/loss": 2.0 / k, "val/accuracy": k / 9}
        for k in range(1, 9)
    ]
    figure = history(*rows).plot()
    titles = [axes.get_title(loc="left") for axes in figure.axes if axes.axison]
    assert titles == ["loss", "ce", "l2", "accuracy", "learning rate"]
    assert [line.get_label() for line in figure.axes[0].get_lines()][:2] == ["train", "val"]
    assert {(0x00, 0x72, 0xB2), (0xD5, 0x5E, 0x00)} <= colours_in(figure), "the curves can be seen"


def test_only_the_keys_that_are_asked_for_are_drawn() -> None:
    for keys, title, count in (("train/loss", "train/loss", 1), (["train/loss", "val/loss"], "", 2)):
        (axes,) = losses(3.0, 1.0).plot(keys).axes
        assert axes.get_title(loc="left") == title
        assert np.asarray(axes.get_lines()[0].get_ydata()).tolist() == [1.0, 2.0]
        assert sum(line.get_label() in ("train", "val", "train/loss", "val/loss") for line in axes.get_lines()) == count
    with pytest.raises(hr.ConfigError, match=r"unknown key 'val/los'\. Did you mean 'val/loss'"):
        losses(3.0).plot("val/los")


@pytest.mark.parametrize(
    "rows",
    [
        [],
        [{}],
        [{"train/loss": NAN}, {"train/loss": NAN}],
        [{"train/loss": 1.0}, {"train/loss": math.inf}],
        [{"val/confusion": [[1, 2], [3, 4]]}],
        [{"train/loss": 1.0}, {"val/f1": 0.5, "note": "text", "$x^2": 3}],
    ],
)
def test_anything_that_a_row_may_hold_can_be_shown(rows: list[dict[str, Any]]) -> None:
    found = history(*rows)
    assert len(colours_in(found.plot())) > 1
    assert "<table" in found._repr_html_()


# --- as a table ------------------------------------------------------------------------------------------


def cells(found: hr.History) -> list[list[str]]:
    """The texts of the table, row by row."""
    table = ElementTree.fromstring(found._repr_html_())
    return [["".join(cell.itertext()) for cell in row] for row in table.iter("tr")]


def test_a_table_shows_the_ends_and_the_best_of_a_long_history() -> None:
    found = losses(*(abs(k - 50.0) for k in range(100)))
    rows = cells(found)
    assert [row[1] for row in rows] == ["epoch", *"12345", "…", "51", "…", "96", "97", "98", "99", "100"]
    assert [row[0] for row in rows if row[0] == "best"] == ["best"]
    assert rows[0][-2:] == ["train/loss", "val/loss"]


def test_a_table_escapes_what_it_is_given() -> None:
    found = history({"<script>alert(1)</script>": 1.0, "val/loss": 1.0})
    found.stopped = "<b>done</b> & gone"
    assert {part.tag for part in ElementTree.fromstring(found._repr_html_()).iter()} == {
        "div",
        "table",
        "tr",
        "td",
        "th",
    }
    assert "<script>alert(1)</script>" in cells(found)[0]
    assert "&lt;b&gt;done" in found._repr_html_()


# --- what it is made of ----------------------------------------------------------------------------------


@given(st.lists(st.floats(allow_nan=True, width=32), max_size=400), st.integers(1, 40))
def test_thinning_keeps_the_extremes_both_ends_and_the_order(values: list[float], columns: int) -> None:
    kept = thin(values, columns)
    assert kept == sorted(set(kept))
    assert len(kept) <= 5 * columns
    finite = [value for value in values if math.isfinite(value)]
    shown = [values[k] for k in kept if math.isfinite(values[k])]
    assert (min(shown), max(shown)) == (min(finite), max(finite)) if finite else not shown
    assert any(math.isnan(value) or math.isinf(value) for value in values) == (len(shown) < len(kept))


def test_rows_of_one_step_are_joined_and_the_first_word_counts() -> None:
    rows: list[Any] = [{"step": 1, "a": 1}, {"step": 2, "a": 2, "rate": 0.1}, {"step": 2, "rate": 0.2, "test/a": 3}]
    assert by_step(rows) == [{"step": 1, "a": 1}, {"step": 2, "a": 2, "rate": 0.1, "test/a": 3}]
    assert rows[1] == {"step": 2, "a": 2, "rate": 0.1}, "what was given stays as it was"


def test_a_line_of_the_metrics_is_read_as_it_was_written() -> None:
    assert read_row(b'{"step":3,"train/loss":"NaN","c":[[1,"Infinity"]],"t":"text"}\n') == {
        "step": 3,
        "train/loss": pytest.approx(NAN, nan_ok=True),
        "c": [[1, math.inf]],
        "t": "text",
    }
    for bad in (b'{"step":3}', b'{"step":', b"[1]\n", b'{"epoch":1}\n', b"\xff\n", b"[" * 100_000 + b"\n"):
        assert read_row(bad) is None
