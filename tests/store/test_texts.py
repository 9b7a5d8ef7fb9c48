"""The history in a checkpoint: the bytes are those of all rows encoded anew, and yet each row is encoded once."""

import json
import math
from collections import OrderedDict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from kit.in_run import in_run
from torch import Tensor, nn

import headrace as hr
from headrace.store import codec
from headrace.store.checkpoints import Store
from headrace.store.codec import Texts, to_json
from headrace.store.contents import TRAINER

Row = dict[str, Any]
KEYS = ["step", "train/loss", "val/loss", "val/confusion", "$odd"]


class Odd:
    """What a metric of somebody's own gave; no checkpoint can hold it."""

    name = "odd"

    def __repr__(self) -> str:
        return self.name


class Name(str):
    """A key of somebody's own kind."""


def anew(rows: list[Row]) -> bytes:
    """All rows as a checkpoint holds them, with nothing remembered."""
    return json.dumps([value_of(row) for row in rows], separators=(",", ":"), allow_nan=False).encode()


def value_of(row: Mapping[str, Any]) -> Row:
    found = {}
    for key, value in row.items():
        try:
            found[key] = codec.encode(value.tolist() if isinstance(value, Tensor) else value, {}, key)
        except hr.CheckpointError:
            found[key] = str(value)
    return found


# --- whatever happens to a history ----------------------------------------------------------------------------

ALIKE = [1, 1.0, True, "1", np.float64(1), np.float32(1), np.int32(np.float32(1).view(np.int32)), torch.tensor(1)]
ALIKE += [0, 0.0, -0.0, False, None, math.nan, math.inf, -math.inf, "NaN", b"\0", 2**70, (1,), {"a": 1}, {"a": 1.0}]
values = st.one_of(
    st.sampled_from(ALIKE),
    st.floats(),
    st.integers(),
    st.text(max_size=3),
    st.lists(st.sampled_from(ALIKE[:3]), min_size=1, max_size=3),
    st.builds(lambda a, b: [[a, b], [b, a]], st.integers(0, 9), st.integers(0, 9)),
    st.builds(Odd),
)
places, keys = st.integers(0, 9), st.sampled_from(KEYS)
events = st.one_of(
    st.tuples(st.just("saved")),
    st.tuples(st.just("reported"), st.dictionaries(keys, values).map(lambda row: {"epoch": 0, "samples": 1} | row)),
    st.tuples(st.just("changed"), places, keys, values),
    st.tuples(st.just("changed within"), places, values),
    st.tuples(st.just("put last"), places, keys),
    st.tuples(st.just("cut"), places),
    st.tuples(st.just("resumed"), st.booleans()),
)


def happens(rows: list[Row], what: str, place: int = 0, *how: Any) -> None:
    if what == "cut":
        del rows[place:]
    elif rows and what == "changed":
        rows[-1 - place % len(rows)][how[0]] = how[1]
    elif rows and what == "put last" and how[0] in (row := rows[-1 - place % len(rows)]):
        row[how[0]] = row.pop(how[0])
    elif rows and what == "changed within":
        for value in rows[-1 - place % len(rows)].values():
            if isinstance(value, list):
                value[0] = how[0]
            if isinstance(value, Odd):
                value.name += "er"


@given(st.lists(events, max_size=30))
def test_the_bytes_are_those_of_all_rows_encoded_anew(events: list[Any]) -> None:
    encode, rows = Texts(), list[Row]()
    for what, *how in [*events, ("saved",)]:
        if what == "saved":
            assert encode(rows) == anew(rows)
        elif what == "reported":
            rows.append(how[0])
        elif what == "resumed":
            rows[:] = codec.decode(json.loads(encode(rows)), {})
            encode = Texts() if how[0] else encode
        else:
            happens(rows, what, *how)


@pytest.mark.parametrize("before", ALIKE[:9], ids=repr)
def test_a_value_that_only_looks_the_same_is_another(before: Any) -> None:
    """At an old row too; within a list as well."""
    for after in ALIKE[:9]:
        encode, rows = Texts(), [{"a": before, "b": [[before]]}, {"a": 0}]
        encode(rows)
        rows[0]["a"] = after
        assert encode(rows) == anew(rows), repr(after)
        rows[0]["b"][0][0] = after
        assert encode(rows) == anew(rows), repr(after)


@pytest.mark.parametrize("kind", [OrderedDict, lambda **row: {Name(key): value for key, value in row.items()}])
def test_a_row_that_is_no_ordinary_dict_is_not_taken_for_another(kind: Any) -> None:
    encode = Texts()
    assert encode([kind(step=1), kind(step=2)]) == b'[{"step":1},{"step":2}]'
    assert encode([kind(step=3)]) == b'[{"step":3}]'


def test_what_was_given_out_stays_what_it_was() -> None:
    encode, rows = Texts(), [{"step": 1, "val/confusion": [[1, 2]]}, {"step": 2}]
    text = encode(rows)
    rows[0]["val/confusion"][0][0] = 7
    rows[1]["late"] = 1
    assert json.loads(text) == [{"step": 1, "val/confusion": [[1, 2]]}, {"step": 2}]


# --- how often ------------------------------------------------------------------------------------------------


@pytest.fixture
def encoded(monkeypatch: pytest.MonkeyPatch) -> list[Row]:
    """The rows that are encoded from now on."""
    found: list[Row] = []
    real = codec._row_encoded
    monkeypatch.setattr(codec, "_row_encoded", lambda row: found.append(dict(row)) or real(row))
    return found


def test_a_row_is_encoded_once_unless_it_changes(encoded: list[Row]) -> None:
    encode, rows = Texts(), list[Row]()
    for step in range(20):
        rows.append({"step": step, "train/loss": step / 7, "val/confusion": [[step, 1], [2, 3]]})
        encode(rows)
    assert [row["step"] for row in encoded] == list(range(20))
    rows[3]["train/loss"] = math.nan
    encode(rows)
    encode(rows)
    assert [row["step"] for row in encoded[20:]] == [3]


def test_what_cannot_be_compared_is_encoded_each_time(encoded: list[Row]) -> None:
    encode = Texts()
    for _ in range(3):
        encode([{"step": 1}, {"step": 2, "odd": Odd()}, {"step": 3, "sum": torch.tensor(1.0)}])
    assert [row["step"] for row in encoded] == [1, 2, 3, 2, 3, 2, 3]


# --- in a run -------------------------------------------------------------------------------------------------

X = torch.sin(torch.arange(72.0)).reshape(24, 3)
DATA = (X, (X[:, 0] > 0).long())


class Notes(hr.Callback):
    """What the history is when a checkpoint is asked for."""

    def __init__(self) -> None:
        self.found: dict[int, bytes] = {}

    def on_checkpoint(self, info: hr.Info) -> None:
        self.found[info.step] = anew(info.history.rows)


def steps(run: Path, notes: Notes, **options: Any) -> Any:
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    trainer = hr.Trainer(model, hr.CrossEntropy(), optimizer, batch_size=4, metrics=["accuracy", "confusion"])
    options = {"epochs": 4, "keep": "all", "log_every": "1 step", "every": "1 step"} | options
    return trainer.steps(DATA, DATA, callbacks=[notes], **in_run(run, **options))


def check(run: Path, notes: Notes) -> None:
    """Every checkpoint holds the history of its step, byte by byte."""
    store = Store(run / "checkpoints", None)
    assert store.steps() == sorted(notes.found)
    for step, history in notes.found.items():
        document = (store.at(step) / TRAINER).read_bytes()
        assert document == to_json(json.loads(document))
        assert b',"history":' + history + b',"' in document


def test_each_checkpoint_of_a_run_has_the_history_of_its_step(tmp_path: Path, encoded: list[Row]) -> None:
    notes = Notes()
    for info in steps(tmp_path, notes):
        if info.step == 9:
            break
    assert len(encoded) == 9
    store = Store(tmp_path / "checkpoints", None)
    (store.at(9) / TRAINER).write_bytes(b"")  # so that it goes on from the one before
    with pytest.warns(UserWarning, match="step-000000000008"):
        for info in steps(tmp_path, notes):
            if info.step == 15:  # another's hands, at rows that were saved long ago
                info.history.rows[2]["train/loss"] = 1
                info.history.rows[5]["val/confusion"] = [[0, 0], [0, 0]]
                del info.history.rows[7]["train/accuracy"]
            if info.step == 17:
                info.history.rows[5]["val/confusion"][1][1] = 5
    check(tmp_path, notes)
    assert len(encoded) == 9 + 24 + 3 + 1
    assert len(notes.found) == 25
    assert json.loads(notes.found[24])[2]["train/loss"] == 1


def test_what_a_test_adds_to_the_last_row_is_in_the_checkpoints_that_follow(tmp_path: Path) -> None:
    notes = Notes()
    for _ in steps(tmp_path, notes, epochs=2, test=DATA):
        pass
    for _ in steps(tmp_path, notes, epochs=3, test=DATA):
        pass
    check(tmp_path, notes)
    assert [row["step"] for row in json.loads(notes.found[18]) if "test/loss" in row] == [12]
