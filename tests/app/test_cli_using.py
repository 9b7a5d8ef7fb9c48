"""What uses a run: `validate`, `predict`, `runs`, `report`."""

import json
import os
import platform
import shlex
import shutil
import subprocess
import sys
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest
import torch
from kit.cli_parts import LIMIT_S, RECIPE, environment, headrace, refused

import headrace as hr
from headrace.app.recipe import load_recipe

FLOWERS = '''
import torch
from torch import nn
import headrace as hr

def scaled(fields):
    return {**fields, "x": (fields["x"] - 3) / 2}

def jittered(fields, draws):
    return {**fields, "x": fields["x"] + 0.01 * draws.normal(2)}

def flowers(file: str = "flowers.csv", drawn: bool = True, mapped: bool = True) -> hr.Recipe:
    """Trains on a table of flowers.

    Args:
        file: where they are.
        drawn: whether training rows are moved a little.
        mapped: whether all rows are scaled.
    """
    def data():
        columns = {"x": ["long", "wide"], "kind": "kind"}
        table = hr.open_table(file, columns=columns, dtypes={"x": "float32"})
        train, val = hr.split(hr.map(table, scaled) if mapped else table, 0.8, 0.2)
        return train, val

    torch.manual_seed(0)
    model = nn.Linear(2, 3)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    trainer = hr.Trainer(
        model, hr.CrossEntropy(), optimizer, batch_size=8, metrics=["accuracy"], target="kind",
        augment=jittered if drawn else None,
    )
    return hr.Recipe(trainer, data=data, fit={"epochs": 3, "progress": False})

def sure() -> hr.Recipe:
    """Trains a model that says yes or no."""
    torch.manual_seed(0)
    x = torch.randn(32, 2)
    model = nn.Sequential(nn.Linear(2, 1), nn.Flatten(0))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    trainer = hr.Trainer(model, hr.BinaryCrossEntropy(), optimizer, batch_size=8)
    return hr.Recipe(trainer, (x, (x[:, 0] > 0).float()), fit={"epochs": 2, "progress": False})
'''
FARES = """
import torch
from torch import nn
import headrace as hr

def joined(fields):
    x = torch.stack([fields["age"].float(), fields["home"].float()], 1)
    return {"x": x} | {name: fields[name] for name in fields if name == "y"}

def fares() -> hr.Recipe:
    table = hr.open_table("fares.csv", nulls={"age": "mean", "home": "unknown"})
    torch.manual_seed(0)
    model = nn.Linear(2, len(table.categories["y"]))
    trainer = hr.Trainer(model, hr.CrossEntropy(), torch.optim.SGD(model.parameters(), lr=0.1), batch_size=2)
    return hr.Recipe(trainer, hr.map(table, joined), fit={"epochs": 1, "progress": False})
"""
MISSING = """
import torch
from torch import nn
import headrace as hr

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.last = nn.Linear(6, 2)

    def forward(self, home, age, pair, pair_null):
        return self.last(torch.cat([home[:, None].float(), age[:, None].float(), pair.float(), pair_null], 1))

def missing() -> hr.Recipe:
    columns = {"home": "home.town", "age": "age", "pair": ["a", "b"], "y": "y"}
    nulls = {"home": "unknown", "age": "mean", "pair": ["median", -1, "indicate"]}
    table = hr.open_table("people.csv", columns=columns, nulls=nulls)
    torch.manual_seed(0)
    optimizer = torch.optim.SGD((model := Model()).parameters(), lr=0.1)
    trainer = hr.Trainer(model, hr.CrossEntropy(), optimizer, batch_size=2, target="y")
    return hr.Recipe(trainer, table, fit={"epochs": 1, "progress": False})
"""
NAMES = ["iris", "rose", "tulip"]


def flowers(count: int = 60) -> pa.Table:
    long, wide = torch.rand(2, count, generator=torch.Generator().manual_seed(0)) * 4 + 1
    kinds = [NAMES[code] for code in (long > 2).long() + (wide > 3).long()]
    return pa.table({"wide": wide.numpy(), "kind": kinds, "long": long.numpy(), "noise": np.arange(count)})


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A place with recipes, data, and a run of each recipe."""
    place, here = tmp_path_factory.mktemp("using"), Path.cwd()
    os.chdir(place)
    try:
        (place / "sines.py").write_text(RECIPE)
        (place / "garden.py").write_text(FLOWERS)
        pa.csv.write_csv(flowers(), "flowers.csv")
        how = ["--progress", "off"]
        assert headrace("fit", "sines.py:small", "--run", "runs/sines", "--width", "6", *how) == 0
        assert headrace("fit", "garden.py:flowers", "--run", "runs/flowers", *how) == 0
        assert headrace("fit", "garden.py:flowers", "--no-mapped", "--run", "plain", *how) == 0
        assert headrace("fit", "garden.py:sure", "--run", "runs/more/sure", *how) == 0
    finally:
        os.chdir(here)
    return place


@pytest.fixture(autouse=True)
def place(trained: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> Path:
    monkeypatch.chdir(trained)
    capsys.readouterr()  # what the trainings have printed
    return trained


def loaded(run: str, recipe: str, arguments: dict[str, Any] | None = None) -> hr.Recipe:
    made = load_recipe(recipe, arguments)
    hr.load_weights(made.trainer.model, run, which="last")
    return made.open_data()


def answer(capsys: Any, *words: object) -> Any:
    assert headrace(*words, "--json") == 0, capsys.readouterr().err
    said = capsys.readouterr()
    assert said.err == ""
    return json.loads(said.out)


# --- scores -----------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_scores_are_those_of_the_training(capsys: Any) -> None:
    rows = [json.loads(line) for line in Path("runs/sines/metrics.jsonl").read_text().splitlines()]
    last = {key: value for row in rows for key, value in row.items()}
    for name in ("val", "test"):
        found = answer(capsys, "validate", "runs/sines", "--on", name, "--trust")
        assert found.pop("step") == 10
        assert found == {key: value for key, value in last.items() if key.startswith(f"{name}/")}
    assert headrace("validate", "--on", "test", "runs/sines", "--trust") == 0
    assert capsys.readouterr().out.startswith("the weights of step 10\ntest/loss")


def test_other_weights_can_be_named(capsys: Any) -> None:
    row = json.loads(Path("runs/sines/metrics.jsonl").read_text().splitlines()[0])
    found = answer(capsys, "validate", "runs/sines", "--trust", "--which", "5")
    assert (found["step"], found["val/loss"]) == (5, row["val/loss"])
    assert "no checkpoint of step 7" in refused(capsys, "validate", "runs/sines", "--trust", "--which", "7")
    said = refused(capsys, "validate", "runs/sines", "--trust", "--which", "best")
    assert "no best checkpoint: nothing told good from bad" in said
    assert "or load the last." in said
    assert "got 'first'" in refused(capsys, "validate", "runs/sines", "--trust", "--which", "first", status=2)
    assert "Must be >= 1." in refused(capsys, "validate", "runs/sines", "--trust", "--batch-size", "0", status=2)


def test_a_file_is_scored_as_the_recipes_data_are(capsys: Any) -> None:
    x, y = loaded("runs/sines", "sines.py:small", {"width": 6}).test
    np.savez("sines.npz", y=y.numpy(), x=x.double().numpy())
    assert answer(capsys, "validate", "--on", "test", "runs/sines", "--trust", "sines.npz") == answer(
        capsys, "validate", "--on", "test", "runs/sines", "--trust"
    )
    made = loaded("runs/flowers", "garden.py:flowers", {"drawn": False})
    whole = hr.concat(made.train, made.val)
    found = answer(capsys, "validate", "runs/flowers", "--trust", "flowers.csv")
    assert found["val/loss"] == pytest.approx(made.trainer.validate(whole)["val/loss"], rel=1e-5)
    assert found["val/accuracy"] > 0.4


def test_a_recipe_that_has_moved_can_be_named_and_keeps_its_arguments(tmp_path: Path, capsys: Any) -> None:
    shutil.copytree("runs/sines", tmp_path / "run")
    document = tmp_path / "run" / "recipe.json"
    document.write_text(document.read_text().replace("sines.py", "moved.py"))
    assert "Name the recipe yourself: recipe='file.py' (--recipe file.py)" in refused(
        capsys, "validate", "--on", "test", tmp_path / "run"
    )
    named = answer(capsys, "validate", "--on", "test", tmp_path / "run", "--recipe", "sines.py:small")
    assert named == answer(capsys, "validate", "--on", "test", "runs/sines", "--trust"), "of width 6, as the run says"
    said = refused(capsys, "validate", "--on", "test", tmp_path / "run", "--recipe", "sine.py:small")
    assert "sine.py is not a Python file with a recipe. Did you mean 'sines.py'?" in said
    on = ["resume", tmp_path / "run", "--recipe", "sines.py:small", "--epochs", "3"]
    assert answer(capsys, *on)["epoch"] == 3


def test_data_that_a_recipe_has_not_are_told(capsys: Any) -> None:
    assert "the recipe has no test data. Name a file" in refused(
        capsys, "validate", "--on", "test", "runs/flowers", "--trust"
    )
    np.save("only_x.npy", np.zeros((3, 5), dtype=np.float32))
    assert "the test data have no stream 'y'" in refused(
        capsys, "validate", "--on", "test", "runs/sines", "--trust", "only_x.npy"
    )
    assert "there.npz" in refused(capsys, "validate", "--on", "test", "runs/sines", "--trust", "there.npz")


# --- predictions ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ending", ["arrow", "parquet", "csv", "npy", "CSV", "Npy", "ARROW"])
def test_every_row_of_a_file_is_answered_in_order(ending: str, capsys: Any) -> None:
    made = loaded("runs/sines", "sines.py:small", {"width": 6})
    x = torch.cos(torch.arange(55.0)).reshape(11, 5)
    np.save("cosines.npy", x.numpy())
    expected = made.trainer.predict(x)
    said = answer(capsys, "predict", "runs/sines", "--trust", "cosines.npy", "--out", f"answers.{ending}")
    assert (said["rows"], said["step"]) == (11, 10)
    assert said["columns"] == ["output", "class", "probability"][: 1 if ending.lower() == "npy" else 3]
    likely, code = expected.softmax(dim=1).max(dim=1)
    if ending.lower() == "npy":
        assert torch.equal(torch.from_numpy(np.load(f"answers.{ending}")), expected)
    elif ending.lower() == "csv":
        found = pa.csv.read_csv(f"answers.{ending}")
        assert found.column_names == ["output_0", "output_1", "class", "probability"]
        assert np.allclose(found["output_1"], expected[:, 1], atol=1e-6)
        assert found["class"].to_pylist() == code.tolist()
    else:
        table = hr.open_table(f"answers.{ending}")
        batch = table.rows(0, 11)
        assert torch.equal(batch["output"], expected)
        assert torch.equal(batch["class"].long(), code)
        assert torch.allclose(batch["probability"], likely)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["csv", "arrow", "parquet"])
@pytest.mark.parametrize("lacks", [[], ["kind"], ["kind", "noise"]])
def test_a_file_is_read_as_the_training_data_were_and_classes_have_their_names(
    kind: str, lacks: list[str], capsys: Any
) -> None:
    made = loaded("runs/flowers", "garden.py:flowers", {"drawn": False})
    table = flowers(10).drop_columns(lacks)
    file = f"new.{kind}"
    if kind == "csv":
        pa.csv.write_csv(table, file)
    elif kind == "parquet":
        pa.parquet.write_table(table, file)
    else:
        with pa.OSFile(file, "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
            writer.write_table(table)
    answer(capsys, "predict", "runs/flowers", "--trust", file, "--out", "named.csv")
    x = torch.stack([torch.from_numpy(flowers(10)[name].to_numpy().copy()) for name in ("long", "wide")], dim=1)
    expected = made.trainer.predict((x - 3) / 2)
    found = pa.csv.read_csv("named.csv")
    assert np.allclose(found["output_0"], expected[:, 0], atol=1e-5)
    assert found["class"].to_pylist() == [NAMES[code] for code in expected.argmax(dim=1)]
    answer(capsys, "predict", "runs/flowers", "--trust", file, "--out", "named.arrow")
    assert list(hr.open_table("named.arrow").categories["class"]) == NAMES


def test_classes_have_the_names_of_the_run_although_the_training_file_has_lost_one(capsys: Any) -> None:
    whole = Path("flowers.csv").read_bytes()
    try:
        table = flowers()
        pa.csv.write_csv(table.filter([kind != "iris" for kind in table["kind"].to_pylist()]), "flowers.csv")
        pa.csv.write_csv(table, "whole.csv")
        for data in ("flowers.csv", "whole.csv"):
            answer(capsys, "predict", "runs/flowers", "--trust", data, "--out", "again.csv")
            assert set(pa.csv.read_csv("again.csv")["class"].to_pylist()) <= set(NAMES)
            assert answer(capsys, "validate", "runs/flowers", "--trust", data)["val/accuracy"] > 0.5
        assert "'kind' than the training data: 3 strings there and 2" in refused(
            capsys, "validate", "runs/flowers", "--trust"
        )
    finally:
        Path("flowers.csv").write_bytes(whole)


def test_columns_side_by_side_are_the_only_stream_of_a_model(capsys: Any) -> None:
    x, y = loaded("runs/sines", "sines.py:small", {"width": 6}).test
    columns = {f"feature {k}": x[:, k].numpy() for k in range(5)}
    pa.csv.write_csv(pa.table({"y": y.numpy(), **columns}), "features.csv")
    found, expected = (
        answer(capsys, "validate", "--on", "test", "runs/sines", "--trust", *more) for more in (["features.csv"], [])
    )
    assert found["test/loss"] == pytest.approx(expected["test/loss"], rel=1e-5)
    columns["y"] = np.full(len(y), "unknown")
    pa.csv.write_csv(pa.table(columns), "unlabelled.csv")
    answer(capsys, "predict", "runs/sines", "--trust", "unlabelled.csv", "--out", "features_out.csv")


@pytest.mark.parametrize("kind", [["", ""], ["", "rose"], ["lily", "rose"], ["1.5", "rose"]])
def test_what_a_target_holds_is_nothing_to_a_prediction(kind: list[str], capsys: Any) -> None:
    table = flowers(2).set_column(1, "kind", [kind])
    pa.csv.write_csv(table, "held.csv")
    pa.csv.write_csv(table.drop_columns(["kind"]), "bare.csv")
    for name in ("held", "bare"):
        answer(capsys, "predict", "runs/flowers", "--trust", f"{name}.csv", "--out", f"{name}_out.csv")
    assert Path("held_out.csv").read_bytes() == Path("bare_out.csv").read_bytes()
    refused(capsys, "validate", "runs/flowers", "--trust", "held.csv")


def test_a_map_that_reads_the_targets_gets_them(tmp_path: Path, capsys: Any) -> None:
    text = FLOWERS.replace('(fields["x"] - 3) / 2}', '(fields["x"] - 3) / 2, "kind": fields["kind"] * 1}')
    assert text != FLOWERS
    (tmp_path / "reading.py").write_text(text)
    named = ["--recipe", f"{tmp_path / 'reading.py'}:flowers"]
    answer(capsys, "predict", "runs/flowers", "--trust", "flowers.csv", "--out", "with_targets.csv", *named)
    pa.csv.write_csv(flowers().drop_columns(["kind"]), "without.csv")
    assert "scaled failed" in refused(
        capsys, "predict", "runs/flowers", "--trust", "without.csv", "--out", "no.csv", *named
    )


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("long,wide,kind\n", "new.csv has no rows."),
        ("long,wide\n1.5,\n2.5,\n", "column 'wide' of new.csv is empty in every row."),
        ("1.5,2.5,rose\n1.5,3,iris\n", "no column 'long' for the stream 'x'"),
        ("1,2\n3,4\n", "new.csv: the first line holds numbers: a CSV begins with the names of its columns."),
    ],
)
def test_a_file_without_rows_or_names_is_told(text: str, told: str, capsys: Any) -> None:
    Path("new.csv").write_text(text)
    said = refused(capsys, "predict", "runs/flowers", "--trust", "new.csv", "--out", "none.csv")
    assert told in said
    assert "columns=" not in said


def test_columns_side_by_side_have_names(capsys: Any) -> None:
    Path("rows.csv").write_text("0.5,1,1,-2,3\n1,2,3,4,5\n")
    told = "the first line holds numbers: a CSV begins with the names of its columns."
    assert told in refused(capsys, "predict", "runs/sines", "--trust", "rows.csv", "--out", "none.csv")
    Path("rows.csv").write_text("0,1,2,3,4\n1,2,3,4,5\n")
    assert answer(capsys, "predict", "runs/sines", "--trust", "rows.csv", "--out", "none.csv")["rows"] == 1, (
        "names as pandas has them"
    )
    with pytest.raises(hr.DataError, match="the first line holds numbers"):
        hr.open_table(_written("numbers.csv", "0.5,1\n1,2\n"))


def _written(name: str, text: str) -> str:
    Path(name).write_text(text)
    return name


def test_what_the_model_is_not_given_may_be_missing(tmp_path: Path, capsys: Any) -> None:
    text = """
import torch
import headrace as hr

class Sum(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)

    def forward(self, b, a):
        return self.layer((a - b)[:, None])[:, 0]

def pair() -> hr.Recipe:
    rows = torch.arange(16.0)
    model = Sum()
    data = {"a": rows, "unused": rows, "y": rows, "b": rows / 2}
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    trainer = hr.Trainer(model, hr.MSE(), optimizer, batch_size=8, inputs=("b", "a"))
    return hr.Recipe(trainer, data, fit={"epochs": 1, "progress": False})
"""
    (tmp_path / "pairs.py").write_text(text)
    assert headrace("fit", tmp_path / "pairs.py", "--run", tmp_path / "run", "--json") == 0
    capsys.readouterr()
    np.savez(tmp_path / "new.npz", b=np.ones(3, dtype=np.float32), a=np.full(3, 4, dtype=np.float32))
    answer(capsys, "predict", tmp_path / "run", "--trust", tmp_path / "new.npz", "--out", tmp_path / "out.csv")
    model = loaded(str(tmp_path / "run"), str(tmp_path / "pairs.py")).trainer.model
    found = pa.csv.read_csv(tmp_path / "out.csv")
    assert found.column_names == ["output"]
    assert np.allclose(found["output"], model(torch.ones(3), torch.full((3,), 4.0)).detach())


def test_a_model_that_says_yes_or_no_gets_a_class_and_its_probability(capsys: Any) -> None:
    x = torch.randn(9, 2, generator=torch.Generator().manual_seed(1))
    pa.csv.write_csv(pa.table({"a": x[:, 0].numpy(), "b": x[:, 1].numpy()}), "two.csv")
    answer(capsys, "predict", "runs/more/sure", "--trust", "two.csv", "--out", "sure.csv")
    yes = loaded("runs/more/sure", "garden.py:sure").trainer.predict(x).sigmoid()
    found = pa.csv.read_csv("sure.csv")
    assert found["class"].to_pylist() == (yes > 0.5).long().tolist()
    assert np.allclose(found["probability"], torch.maximum(yes, 1 - yes), atol=1e-5)


def test_python_does_what_predict_does(capsys: Any) -> None:
    recipe = hr.load("runs/flowers", trust=True)
    assert (
        recipe.step
        == answer(capsys, "predict", "runs/flowers", "--trust", "flowers.csv", "--out", "told.arrow")["step"]
    )
    found, told = recipe.predict("flowers.csv", batch_size=7), hr.open_table("told.arrow")
    assert [stream.name for stream in found.streams] == ["output", "class", "probability"]
    assert found.categories == told.categories == {"class": NAMES}
    for name in ("output", "class", "probability"):
        torch.testing.assert_close(found.rows(0, 60)[name], told.rows(0, 60)[name])
    assert torch.equal(found.rows(0, 60)["output"].argmax(dim=1), found.rows(0, 60)["class"].long())


def test_a_recipe_of_a_run_takes_arrays_and_other_weights(tmp_path: Path) -> None:
    x = torch.cos(torch.arange(55.0)).reshape(11, 5)
    for which, step in ((None, 10), ("last", 10), (5, 5)):
        recipe = hr.load("runs/sines", which=which, trust=True)
        assert recipe.step == step
        assert torch.equal(recipe.predict(x).rows(0, 11)["output"], recipe.trainer.predict(x))
    with pytest.raises(hr.RunError, match="there is no run"):
        hr.load(tmp_path / "nowhere", trust=True)
    load_recipe("garden.py:sure").run(run=tmp_path / "script", progress=False)
    with pytest.raises(hr.RunError, match="does not say what its recipe is"):
        hr.load(tmp_path / "script", trust=True)
    named = hr.load(tmp_path / "script", recipe="garden.py:sure").predict(torch.zeros(3, 2))
    assert named.rows(0, 3)["probability"].shape == (3,)


@pytest.mark.parametrize(
    ("out", "status", "told"),
    [
        ("answers.txt", 2, "unknown ending '.txt'. Choose one of: .arrow, .csv, .npy, .parquet."),
        ("answers.cvs", 2, "unknown ending '.cvs'. Did you mean '.csv'?"),
        ("nowhere/answers.csv", 1, "there is no directory nowhere"),
        ("flowers.csv", 1, "is the file to be read"),
    ],
)
def test_what_cannot_be_written_is_known_before_work_starts(out: str, status: int, told: str, capsys: Any) -> None:
    before = Path("flowers.csv").read_bytes()
    assert told in refused(capsys, "predict", "runs/that/is/none", "flowers.csv", "--out", out, status=status)
    assert Path("flowers.csv").read_bytes() == before


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("predict runs/sines none.npy --out nowhere/p.arrow", "there is no directory nowhere"),
        ("report nowhere --out nowhere/page.html", "cannot be written to nowhere/page.html"),
        ("rehearse none.py --workers 2 --strategy diloco --out runs.png", "cannot write runs.png: it is a directory"),
        ("checkpoint export runs/sines --out flowers.csv/m", "there is no directory flowers.csv"),
        (f"predict runs/sines none.npy --out {'x' * 300}.npy", "File name too long"),
        (f"report nowhere --out {'x' * 300}.html", "cannot be written to xxx"),
    ],
)
def test_where_a_command_writes_is_looked_at_before_what_it_reads(words: str, told: str, capsys: Any) -> None:
    Path("runs.png").mkdir(exist_ok=True)
    assert told in refused(capsys, *words.split())


TWO_OUTPUTS = """
import torch
from torch import nn
import headrace as hr

class Both(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(2, 1)

    def forward(self, x):
        with open("seen.txt", "a") as file:
            file.write(f"{len(x)} ")
        return {"y": self.linear(x), "x": x}

def both() -> hr.Recipe:
    \"\"\"A model with two outputs.\"\"\"
    model = Both()
    trainer = hr.Trainer(model, hr.MSE(output="y"), torch.optim.SGD(model.parameters(), lr=0.1))
    return hr.Recipe(trainer, (torch.ones(8, 2), torch.ones(8, 1)), fit={"epochs": 1, "progress": False})
"""


def test_what_a_kind_of_file_cannot_hold_is_known_by_the_first_row(tmp_path: Path, capsys: Any) -> None:
    Path("both.py").write_text(TWO_OUTPUTS)
    assert headrace("fit", "both.py", "--run", tmp_path / "run", "--json") == 0
    np.save("pairs.npy", np.ones((9, 2), np.float32))
    Path("seen.txt").unlink()
    capsys.readouterr()
    said = refused(capsys, "predict", tmp_path / "run", "--trust", "pairs.npy", "--out", "p.npy")
    assert ".npy holds one array, and the model returns y, x. Use .arrow." in said
    assert Path("seen.txt").read_text() == "1 "
    assert not Path("p.npy").exists()


def test_a_file_of_other_columns_is_told(capsys: Any) -> None:
    pa.csv.write_csv(flowers(5).drop_columns(["wide"]), "narrow.csv")
    said = refused(capsys, "predict", "runs/flowers", "--trust", "narrow.csv", "--out", "p.csv")
    assert "no column 'wide' for the stream 'x'" in said
    np.save("narrow.npy", np.zeros((3, 4), dtype=np.float32))
    assert "must agree" in refused(capsys, "predict", "runs/sines", "--trust", "narrow.npy", "--out", "p.csv")
    assert not Path("p.csv").exists()


# --- looking ----------------------------------------------------------------------------------------------


def test_runs_are_listed_in_whatever_state_they_are(tmp_path: Path, capsys: Any) -> None:
    found = answer(capsys, "runs")
    assert all(datetime.fromisoformat(each["changed"]).tzinfo is not None for each in found)
    written = answer(capsys, "checkpoint", "list", "runs/sines")[0]["written"]
    assert datetime.fromisoformat(written).tzinfo is not None
    assert [each["run"] for each in found] == ["runs/flowers", "runs/more/sure", "runs/sines"]
    assert headrace("runs") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["run", "state", "epochs", "best", "last", "change"]
    assert lines[3].split()[:5] == ["runs/sines", "finished", "2", "val/loss", f"{_best('runs/sines'):.4g}"]
    for name, text in (("empty", "{}"), ("broken", "{")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "run.json").write_text(text)
    (tmp_path / "broken" / "metrics.jsonl").write_text('{"step": 1, "epoch": 1, "val/lo')
    assert [each["best"]["value"] for each in answer(capsys, "runs", tmp_path)] == [None, None]
    (tmp_path / "none").mkdir()
    assert answer(capsys, "runs", tmp_path / "none") == []
    assert "there is no directory" in refused(capsys, "runs", tmp_path / "nowhere")


def test_runs_show_the_arguments_that_differ(tmp_path: Path, capsys: Any) -> None:
    given = {
        "a": {"lr": 0.1, "width": 8, "kind": "sgd", "name": "\x1b[31mred"},
        "b": {"lr": 0.1, "width": 16, "kind": "sgd", "name": "blue"},
        "c": {"lr": 0.1, "depth": 3, "\x1b[2J": 1},
        "d": None,
        "e": "torn",
        "f": {"lr": 0.1, "\x1b[2J": 2},
    }
    for name, arguments in given.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "run.json").write_text("{}")
        if arguments is not None:
            document = {"recipe": "a.py", "arguments": arguments, "fit": {}}
            (tmp_path / name / "recipe.json").write_text(json.dumps(document))
    assert headrace("runs", tmp_path) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines[0][-3:] == ["change", "--width", "--name"]
    assert [line[-2:] for line in lines[1:]] == [["8", '"\\u001b[31mred"'], ["16", "blue"], *[["-", "-"]] * 4]
    (tmp_path / "b" / "recipe.json").write_text(json.dumps({"recipe": "a.py", "arguments": given["a"], "fit": {}}))
    found = answer(capsys, "runs", tmp_path)
    assert [each["arguments"] for each in found] == [given["a"], given["a"], given["c"], {}, {}, given["f"]]
    assert headrace("runs", tmp_path) == 0
    assert "--" not in capsys.readouterr().out, "what is the same in all runs is left out"


def _best(run: str) -> float:
    rows = [json.loads(line) for line in (Path(run) / "metrics.jsonl").read_text().splitlines()]
    return float(min(row["val/loss"] for row in rows if "val/loss" in row))


def test_a_run_that_was_left_is_interrupted(tmp_path: Path, capsys: Any) -> None:
    made = load_recipe("garden.py:sure")
    for info in made.trainer.steps(made.train, epochs=2, run=tmp_path / "left"):
        if info.step == 3:
            assert answer(capsys, "runs", tmp_path)[0]["state"] == "running"
            break
    del info
    (found,) = answer(capsys, "runs", tmp_path)
    assert (found["state"], found["best"]["value"]) == ("interrupted", None)


@pytest.mark.skipif(not (shutil.which("unshare") and shutil.which("flock")), reason="needs util-linux")
def test_a_run_is_not_running_because_a_lock_on_another_disk_has_the_same_number(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    mounted = "mount -t tmpfs none one && mount -t tmpfs none two"
    script = f"""
        cd {tmp_path} && {mounted} || exit 77
        cp -r "$1" one/run && cp -r "$1" two/run
        [ $(stat -c %i one/run/lock) = $(stat -c %i two/run/lock) ] || exit 78
        exec flock two/run/lock {shlex.quote(sys.executable)} -m headrace runs . --json
    """
    command = ["unshare", "--map-root-user", "--mount", "sh", "-c", script, "sh", str(Path("runs/sines").absolute())]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, env=environment())
    if "unshare" in done.stderr or done.returncode == 77:
        pytest.skip(f"nothing can be mounted here: {done.stderr}")
    assert done.returncode == 0, done.stderr
    assert [each["state"] for each in json.loads(done.stdout)] == ["finished", "running"]


def test_a_report_is_written(capsys: Any) -> None:
    found = answer(capsys, "report", "runs/sines")
    assert Path(found["report"]).read_text().startswith("<!doctype html>")
    assert headrace("report", "runs/sines", "--out", "page.html") == 0
    assert "page.html" in capsys.readouterr().out
    assert "unknown ending '.pdf'" in refused(capsys, "report", "runs/sines", "--out", "page.pdf", status=2)
    assert "is not a run" in refused(capsys, "report", ".")


def test_a_report_to_share_names_neither_host_nor_directory(capsys: Any) -> None:
    """The control: the page that is not for sharing has both."""
    places = [platform.node(), str(Path.cwd())]
    for flags, named in (([], True), (["--share"], False)):
        assert headrace("report", "runs/sines", "--out", "page.html", *flags) == 0
        page = Path("page.html").read_text()
        assert [place in page for place in places] == [named, named]


@pytest.mark.parametrize("command", ["validate", "predict", "report", "resume"])
def test_a_run_that_is_none_is_told_in_a_sentence(command: str, tmp_path: Path, capsys: Any) -> None:
    more = ["flowers.csv", "--out", "p.csv"] if command == "predict" else []
    assert str(tmp_path / "nowhere") in refused(capsys, command, tmp_path / "nowhere", *more)
    (tmp_path / "run.json").write_text("{")
    said = refused(capsys, command, tmp_path, *more) if command != "report" else str(tmp_path)
    assert str(tmp_path) in said


# --- runs that explain themselves ----------------------------------------------------------------------------


@pytest.fixture
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A place with two runs of flowers, new data, and neither the recipe nor the training data."""
    for run in ("plain", "flowers"):
        shutil.copytree("plain" if run == "plain" else f"runs/{run}", tmp_path / run)
        document = tmp_path / run / "recipe.json"
        document.write_text(document.read_text().replace("garden.py", "gone.py"))
    pa.csv.write_csv(flowers(20).drop_columns(["kind", "noise"]), tmp_path / "new.csv")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_run_predicts_without_recipe_and_training_data(alone: Path, trained: Path, capsys: Any) -> None:
    assert "trust=True (--trust)" in refused(capsys, "predict", "plain", "new.csv", "--out", "out.csv")
    found = answer(capsys, "predict", "plain", "--trust", "new.csv", "--out", "out.csv")
    assert (found["rows"], found["columns"]) == (20, ["output", "class", "probability"])
    os.chdir(trained)
    answer(capsys, "predict", "plain", "--trust", alone / "new.csv", "--out", alone / "beside.csv")
    assert (alone / "out.csv").read_text() == (alone / "beside.csv").read_text()


def test_what_needs_data_that_are_not_there_is_refused(alone: Path, capsys: Any) -> None:
    assert "there is no file flowers.csv" in refused(capsys, "validate", "plain", "--trust")
    said = refused(capsys, "predict", "flowers", "--trust", "new.csv", "--out", "out.csv")
    assert "there is no file flowers.csv" in said, "it was mapped, and the maps come with its data"


def test_a_recipe_that_is_named_needs_no_trust(alone: Path, trained: Path) -> None:
    answers = hr.load("plain", recipe=trained / "garden.py:flowers").predict("new.csv")  # the data are not there
    expected = hr.load("plain", trust=True).predict("new.csv")
    assert torch.equal(answers.rows(0, 20)["output"], expected.rows(0, 20)["output"])
    (alone / "plain" / "recipe.py").unlink()
    with pytest.raises(hr.RunError, match="has kept no source"):
        hr.load("plain", trust=True)


def test_a_run_maps_and_fills_nulls_as_it_was_trained(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    Path("fares.py").write_text(FARES)
    Path("fares.csv").write_text("age,home,y\n1,Bonn,a\n,Ulm,b\n4,,a\n5,Ulm,b\n")
    assert headrace("fit", "fares.py", "--run", "run", "--progress", "off") == 0
    Path("new.csv").write_text("home,age\nUlm,\n,2\nBonn,3\n")
    made = hr.load("run", trust=True)
    found = made.predict("new.csv")
    assert found.categories == {"class": ["a", "b"]}
    expected = made.trainer.model(torch.tensor([[10 / 3, 1.0], [2.0, 2.0], [3.0, 0.0]]))
    assert torch.allclose(found.rows(0, 3)["output"], expected)
    Path("fares.csv").unlink()
    with pytest.raises(hr.RunError, match=r"no file fares\.csv[\s\S]*let the recipe give its data as a function"):
        hr.load("run", trust=True)


ONE = """
import torch
from torch import nn
import headrace as hr

FLOATS = {"x": "float32", "y": "float32"}

def one(stacked: bool = False) -> hr.Recipe:
    \"\"\"Trains on one number.

    Args:
        stacked: whether the training data are a file.
    \"\"\"
    torch.manual_seed(0)
    x = torch.linspace(-1, 1, 16)[:, None]
    data = hr.open_table("t.csv", columns={"x": ["age"], "y": ["y"]}, dtypes=FLOATS) if stacked else (x, 2 * x)
    model = nn.Linear(1, 1)
    trainer = hr.Trainer(model, hr.MSE(), torch.optim.SGD(model.parameters(), lr=0.1), batch_size=4)
    return hr.Recipe(trainer, data, fit={"epochs": 1, "progress": False})
"""


@pytest.mark.parametrize("stacked", [[], ["--stacked"]])
def test_a_column_is_the_only_number_of_a_row(
    stacked: list[str], tmp_path: Path, monkeypatch: Any, capsys: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("one.py").write_text(ONE)
    Path("t.csv").write_text("age,y\n1,0\n2.5,1\n3,1\n4,0\n")
    assert headrace("fit", "one.py", *stacked, "--run", "run", "--progress", "off") == 0
    capsys.readouterr()
    Path("new.csv").write_text("age\n1\n2\n")
    answer(capsys, "predict", "run", "--trust", "new.csv", "--out", "out.csv")
    expected = hr.load("run", trust=True).trainer.predict(torch.tensor([[1.0], [2.0]]))
    assert np.allclose(pa.csv.read_csv("out.csv")["output_0"], expected[:, 0])


def test_what_is_missing_in_a_file_is_filled_by_the_numbers_of_the_training_data(
    tmp_path: Path, monkeypatch: Any, capsys: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("people.py").write_text(MISSING)
    Path("people.csv").write_text("home.town,age,a,b,y\nBonn,1,1,1,yes\n,,,,no\nUlm,4,3,5,yes\nUlm,5,7,,no\n")
    assert headrace("fit", "people.py", "--run", "run", "--progress", "off") == 0
    capsys.readouterr()
    files = {
        "some": ("home.town,age,a,b\n,,,\nBonn,2,2,1\n", [[2, 10 / 3, 3, -1, 1, 1], [0, 2, 2, 1, 0, 0]]),
        "none": ("b,a,age,home.town,y\n,,,,\n,,,,\n", [[2, 10 / 3, 3, -1, 1, 1]] * 2),
        "no_more": ("home.town,age,a,b\nUlm,2,2,1\nBonn,3,2.5,1\n", [[1, 2, 2, 1, 0, 0], [0, 3, 2.5, 1, 0, 0]]),
    }
    last = hr.load("run", trust=True).trainer.model.last
    for name, (text, inputs) in files.items():
        Path(f"{name}.csv").write_text(text)
        answer(capsys, "predict", "run", "--trust", f"{name}.csv", "--out", "out.csv")
        found = pa.csv.read_csv("out.csv")
        expected = last(torch.tensor(inputs, dtype=torch.float32)).detach()
        assert np.allclose(np.stack([found["output_0"], found["output_1"]], 1), expected, atol=1e-5), name
    Path("scored.csv").write_text("home.town,age,a,b,y\nUlm,2,2,1,yes\n,,,,yes\n")
    scored = torch.tensor([files["no_more"][1][0], files["some"][1][0]], dtype=torch.float32)
    loss = torch.nn.functional.cross_entropy(last(scored), torch.tensor([1, 1]))
    assert answer(capsys, "validate", "run", "--trust", "scored.csv")["val/loss"] == pytest.approx(
        loss.item(), rel=1e-5
    )
