"""What uses a run: `validate`, `predict`, `runs`, `report`."""

import json
import os
import platform
import shutil
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest
import torch
from kit.cli_parts import RECIPE, answer, headrace, refused

import headrace as hr
from headrace.app.recipe import load_recipe

GARDEN = '''
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

class Both(nn.Module):
    """Two outputs, of two of three streams."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(1, 1)

    def forward(self, b, a):
        return {"y": self.layer((a - b)[:, None])[:, 0], "a": a}

def both() -> hr.Recipe:
    rows, model = torch.arange(16.0), Both()
    data = {"a": rows, "unused": rows, "y": rows, "b": rows / 2}
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    trainer = hr.Trainer(model, hr.MSE(output="y"), optimizer, batch_size=8, inputs=("b", "a"))
    return hr.Recipe(trainer, data, fit={"epochs": 1, "progress": False})

def filled(fields):
    x = torch.stack([fields["long"].float(), fields["home"].float()], 1)
    return {"x": x} | {name: fields[name] for name in fields if name == "y"}

def fares() -> hr.Recipe:
    table = hr.open_table("fares.csv", nulls={"long": "mean", "home": "unknown"})
    torch.manual_seed(0)
    model = nn.Linear(2, len(table.categories["y"]))
    trainer = hr.Trainer(model, hr.CrossEntropy(), torch.optim.SGD(model.parameters(), lr=0.1), batch_size=2)
    return hr.Recipe(trainer, hr.map(table, filled), fit={"epochs": 1, "progress": False})
'''
NAMES = ["iris", "rose", "tulip"]
RUNS = {
    "runs/sines": "sines.py:small --width 6",
    "runs/flowers": "garden.py:flowers",
    "runs/more/sure": "garden.py:sure",
    "plain": "garden.py:flowers --no-mapped",
    "both": "garden.py:both",
    "fares": "garden.py:fares",
}


def flowers(count: int = 60) -> pa.Table:
    long, wide = torch.rand(2, count, generator=torch.Generator().manual_seed(0)) * 4 + 1
    kinds = [NAMES[code] for code in (long > 2).long() + (wide > 3).long()]
    return pa.table({"wide": wide.numpy(), "kind": kinds, "long": long.numpy(), "noise": np.arange(count)})


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with recipes, data, and a run of each recipe."""
    place = tmp_path_factory.mktemp("using")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        Path("sines.py").write_text(RECIPE)
        Path("garden.py").write_text(GARDEN)
        Path("fares.csv").write_text("long,home,y\n1,Bonn,a\n,Ulm,b\n4,,a\n5,Ulm,b\n")
        pa.csv.write_csv(flowers(), "flowers.csv")
        for run, words in RUNS.items():
            assert headrace("fit", *words.split(), "--run", run, "--progress", "off") == 0
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


def predicted(capsys: Any, run: str, data: object, *more: object) -> pa.Table:
    """What `predict` writes as CSV."""
    answer(capsys, "predict", run, data, "--out", "out.csv", *(more or ["--trust"]))
    return pa.csv.read_csv("out.csv")


# --- scores -----------------------------------------------------------------------------------------------


def test_scores_are_those_of_the_training_of_any_step_and_on_any_file(capsys: Any) -> None:
    rows = [json.loads(line) for line in Path("runs/sines/metrics.jsonl").read_text().splitlines()]
    last = {key: value for row in rows for key, value in row.items()}
    validate = ["validate", "runs/sines", "--trust"]
    for name in ("val", "test"):
        found = answer(capsys, *validate, "--on", name)
        assert found.pop("step") == 10
        assert found == {key: value for key, value in last.items() if key.startswith(f"{name}/")}
    found = answer(capsys, *validate, "--which", "5")
    assert (found["step"], found["val/loss"]) == (5, rows[0]["val/loss"])
    assert headrace("validate", "--on", "test", "runs/sines", "--trust") == 0
    assert capsys.readouterr().out.startswith("the weights of step 10\ntest/loss")
    x, y = loaded("runs/sines", "sines.py:small", {"width": 6}).test
    np.savez("sines.npz", y=y.numpy(), x=x.double().numpy())
    pa.csv.write_csv(pa.table({"y": y.numpy()} | {f"feature {k}": x[:, k].numpy() for k in range(5)}), "sines.csv")
    for file in ("sines.npz", "sines.csv"):
        scored = answer(capsys, *validate, "--on", "test", file)
        assert scored["test/loss"] == pytest.approx(last["test/loss"], rel=1e-5)


def test_a_file_is_scored_as_the_recipes_data_are(capsys: Any) -> None:
    made = loaded("runs/flowers", "garden.py:flowers", {"drawn": False})
    found = answer(capsys, "validate", "runs/flowers", "--trust", "flowers.csv")
    assert found["val/loss"] == pytest.approx(
        made.trainer.validate(hr.concat(made.train, made.val))["val/loss"], rel=1e-5
    )
    assert found["val/accuracy"] > 0.4


def test_a_recipe_that_has_moved_can_be_named_and_keeps_its_arguments(tmp_path: Path, capsys: Any) -> None:
    run = shutil.copytree("runs/sines", tmp_path / "run")
    document = run / "recipe.json"
    document.write_text(document.read_text().replace("sines.py", "moved.py"))
    assert "Name the recipe yourself: recipe='file.py' (--recipe file.py)" in refused(capsys, "validate", run)
    named = answer(capsys, "validate", run, "--recipe", "sines.py:small")
    assert named == answer(capsys, "validate", "runs/sines", "--trust"), "of width 6, as the run says"
    said = refused(capsys, "validate", run, "--recipe", "sine.py:small")
    assert "sine.py is not a Python file with a recipe: it does not exist." in said
    assert answer(capsys, "resume", run, "--recipe", "sines.py:small", "--epochs", "3")["epoch"] == 3


# --- predictions ------------------------------------------------------------------------------------------


def test_every_row_of_a_file_is_answered_in_order_in_every_kind_of_file(capsys: Any) -> None:
    x = torch.cos(torch.arange(55.0)).reshape(11, 5)
    np.save("cosines.npy", x.numpy())
    expected = loaded("runs/sines", "sines.py:small", {"width": 6}).trainer.predict(x)
    likely, code = expected.softmax(dim=1).max(dim=1)
    columns = ["output", "class", "probability"]
    for ending in ("arrow", "PARQUET", "csv"):
        said = answer(capsys, "predict", "runs/sines", "--trust", "cosines.npy", "--out", f"answers.{ending}")
        assert (said["rows"], said["step"], said["columns"]) == (11, 10, columns)
    for ending in ("arrow", "PARQUET"):
        batch = hr.open_table(f"answers.{ending}").rows(0, 11)
        assert torch.equal(batch["output"], expected)
        assert torch.equal(batch["class"].long(), code)
        assert torch.allclose(batch["probability"], likely)
    found = pa.csv.read_csv("answers.csv")
    assert found.column_names == ["output_0", "output_1", "class", "probability"]
    assert np.allclose(found["output_1"], expected[:, 1], atol=1e-6)
    assert found["class"].to_pylist() == code.tolist()


@pytest.mark.parametrize(("kind", "lacks"), [("csv", []), ("parquet", ["kind"]), ("csv", ["kind", "noise"])])
def test_a_file_is_read_as_the_training_data_were_and_classes_have_their_names(
    kind: str, lacks: list[str], capsys: Any
) -> None:
    table = flowers(10)
    write: Any = pa.csv.write_csv if kind == "csv" else pa.parquet.write_table
    write(table.drop_columns(lacks), f"new.{kind}")
    x = torch.stack([torch.from_numpy(table[name].to_numpy().copy()) for name in ("long", "wide")], dim=1)
    expected = loaded("runs/flowers", "garden.py:flowers").trainer.predict((x - 3) / 2)
    found = predicted(capsys, "runs/flowers", f"new.{kind}")
    assert np.allclose(found["output_0"], expected[:, 0], atol=1e-5)
    assert found["class"].to_pylist() == [NAMES[code] for code in expected.argmax(dim=1)]


def test_classes_have_the_names_of_the_run_although_the_training_file_has_lost_one(capsys: Any) -> None:
    all_rows = Path("flowers.csv").read_bytes()
    try:
        table = flowers()
        pa.csv.write_csv(table.filter([kind != "iris" for kind in table["kind"].to_pylist()]), "flowers.csv")
        pa.csv.write_csv(table, "whole.csv")
        for data in ("flowers.csv", "whole.csv"):
            assert {*predicted(capsys, "runs/flowers", data)["class"].to_pylist()} <= {*NAMES}
            assert answer(capsys, "validate", "runs/flowers", "--trust", data)["val/accuracy"] > 0.5
        said = refused(capsys, "validate", "runs/flowers", "--trust")
        assert "'kind' than the training data: 3 strings there and 2" in said
    finally:
        Path("flowers.csv").write_bytes(all_rows)


def test_what_a_target_holds_is_nothing_to_a_prediction(capsys: Any) -> None:
    bare = flowers(2).drop_columns(["kind"])
    pa.csv.write_csv(bare, "bare.csv")
    expected = predicted(capsys, "runs/flowers", "bare.csv")
    for kind in (["", ""], ["", "rose"], ["lily", "rose"], ["1.5", "rose"]):
        pa.csv.write_csv(bare.append_column("kind", [kind]), "held.csv")
        assert predicted(capsys, "runs/flowers", "held.csv") == expected
        refused(capsys, "validate", "runs/flowers", "--trust", "held.csv")


def test_what_the_model_is_not_given_may_be_missing(capsys: Any) -> None:
    np.savez("pairs.npz", b=np.ones(3, dtype=np.float32), a=np.full(3, 4, dtype=np.float32))
    found = predicted(capsys, "both", "pairs.npz")
    assert found.column_names == ["y", "a"]
    model = loaded("both", "garden.py:both").trainer.model
    assert np.allclose(found["y"], model(torch.ones(3), torch.full((3,), 4.0))["y"].detach())


def test_a_model_that_says_yes_or_no_gets_a_class_and_its_probability(capsys: Any) -> None:
    x = torch.randn(9, 2, generator=torch.Generator().manual_seed(1))
    pa.csv.write_csv(pa.table({"a": x[:, 0].numpy(), "b": x[:, 1].numpy()}), "two.csv")
    found = predicted(capsys, "runs/more/sure", "two.csv")
    yes = loaded("runs/more/sure", "garden.py:sure").trainer.predict(x).sigmoid()
    assert found["class"].to_pylist() == (yes > 0.5).long().tolist()
    assert np.allclose(found["probability"], torch.maximum(yes, 1 - yes), atol=1e-5)


def test_a_recipe_of_a_run_takes_arrays_and_other_weights(tmp_path: Path) -> None:
    x = torch.cos(torch.arange(55.0)).reshape(11, 5)
    for which, step in ((None, 10), ("last", 10), (5, 5)):
        recipe = hr.load("runs/sines", which=which, trust=True)
        assert recipe.step == step
        assert torch.equal(recipe.predict(x).rows(0, 11)["output"], recipe.trainer.predict(x))
    load_recipe("garden.py:sure").run(run=tmp_path / "script", progress=False)
    for run, why in ((tmp_path / "nowhere", "there is no run"), (tmp_path / "script", "does not say what its recipe")):
        with pytest.raises(hr.RunError, match=why):
            hr.load(run, trust=True)
    named = hr.load(tmp_path / "script", recipe="garden.py:sure").predict(torch.zeros(3, 2))
    assert named.rows(0, 3)["probability"].shape == (3,)


def test_rows_are_mapped_and_filled_as_in_the_training_for_which_its_data_have_to_be_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("new.csv").write_text("home,long\nUlm,\n,2\nBonn,3\n")
    made = hr.load("fares", trust=True)
    found = made.predict("new.csv")
    assert found.categories == {"class": ["a", "b"]}
    expected = made.trainer.model(torch.tensor([[10 / 3, 1.0], [2.0, 2.0], [3.0, 0.0]]))
    assert torch.allclose(found.rows(0, 3)["output"], expected)
    run = Path("fares").absolute()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(hr.RunError, match=r"no file fares\.csv[\s\S]*let the recipe give its data as a function"):
        hr.load(run, trust=True)


@pytest.fixture
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with two runs of flowers, new data, and neither the recipe nor the training data."""
    for run in ("plain", "runs/flowers"):
        shutil.copytree(run, tmp_path / run)
        document = tmp_path / run / "recipe.json"
        document.write_text(document.read_text().replace("garden.py", "gone.py"))
    pa.csv.write_csv(flowers(20).drop_columns(["kind", "noise"]), tmp_path / "new.csv")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_run_predicts_without_recipe_and_training_data(alone: Path, trained: Path, capsys: Any) -> None:
    predict = ["new.csv", "--out", "out.csv"]
    assert "trust=True (--trust)" in refused(capsys, "predict", "plain", *predict)
    found = predicted(capsys, "plain", "new.csv")
    assert (len(found), found.column_names[-2:]) == (20, ["class", "probability"])
    assert "there is no file flowers.csv" in refused(capsys, "validate", "plain", "--trust")
    said = refused(capsys, "predict", "runs/flowers", "--trust", *predict)
    assert "there is no file flowers.csv" in said, "it was mapped, and the maps come with its data"
    named = hr.load("plain", recipe=trained / "garden.py:flowers").predict("new.csv").rows(0, 20)  # needs no trust
    assert torch.equal(named["output"], hr.load("plain", trust=True).predict("new.csv").rows(0, 20)["output"])
    os.chdir(trained)
    assert predicted(capsys, "plain", alone / "new.csv") == found
    (alone / "plain" / "recipe.py").unlink()
    with pytest.raises(hr.RunError, match="has kept no source"):
        hr.load(alone / "plain", trust=True)


# --- what is refused --------------------------------------------------------------------------------------

FILES = {
    "empty.csv": "long,wide,kind\n",
    "nulls.csv": "long,wide\n1.5,\n2.5,\n",
    "unnamed.csv": "1.5,2.5,rose\n1.5,3,iris\n",
    "numbers.csv": "0.5,1,1,-2,3\n1,2,3,4,5\n",
    "narrow.csv": "long\n1\n",
    "torn/run.json": "{",
}
SINES, FLOWERS = "predict runs/sines --trust --out no.csv", "predict runs/flowers --trust --out no.csv"
WRONG = [
    (f"{FLOWERS} empty.csv", 1, "empty.csv has no rows."),
    (f"{FLOWERS} nulls.csv", 1, "column 'wide' of nulls.csv is empty in every row."),
    (f"{FLOWERS} unnamed.csv", 1, "no column 'long' for the stream 'x'"),
    (f"{FLOWERS} narrow.csv", 1, "no column 'wide' for the stream 'x'"),
    (f"{SINES} numbers.csv", 1, "the first line holds numbers: a CSV begins with the names of its columns."),
    (f"{SINES} narrow.npy", 1, "must agree"),
    ("validate runs/sines --trust --which 7", 1, "no checkpoint of step 7"),
    ("validate runs/sines --trust --which best", 1, "no best checkpoint: nothing told good from bad"),
    ("validate runs/sines --trust --which first", 2, "--which: expected int or best|last, got 'first'."),
    ("validate runs/sines --trust --batch-size 0", 2, "Must be >= 1."),
    ("validate runs/sines --trust --on test narrow.npy", 1, "the test data have no stream 'y'"),
    ("validate runs/sines --trust there.npz", 1, "there.npz"),
    ("validate runs/flowers --trust --on test", 1, "the recipe has no test data. Name a file"),
    ("predict none flowers.csv --out p.txt", 2, "unknown ending '.txt'. Choose one of: .arrow, .csv, .parquet."),
    ("predict none flowers.csv --out p.cvs", 2, "unknown ending '.cvs'. Did you mean '.csv'?"),
    ("predict none flowers.csv --out nowhere/p.csv", 1, "there is no directory nowhere"),
    ("predict none flowers.csv --out flowers.csv", 1, "is the file to be read"),
    (f"predict none flowers.csv --out {'x' * 300}.csv", 1, "File name too long"),
    ("report runs/sines --out page.pdf", 2, "unknown ending '.pdf'"),
    ("report nowhere --out nowhere/page.html", 1, "cannot be written to nowhere/page.html"),
    (f"report nowhere --out {'x' * 300}.html", 1, "cannot be written to xxx"),
    ("runs nowhere", 1, "there is no directory nowhere"),
    *((f"{command} nowhere", 1, "nowhere") for command in ("report", "resume", "validate", "checkpoint list")),
    ("predict nowhere new.csv --out no.csv", 1, "there is no run nowhere"),
    *((f"{command} torn", 1, "torn/run.json") for command in ("resume", "validate", "verify")),
]


@pytest.mark.parametrize(("words", "status", "told"), WRONG)
def test_what_cannot_be_is_said_in_a_sentence_before_work_starts(
    words: str, status: int, told: str, capsys: Any
) -> None:
    for name, text in FILES.items():
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).write_text(text)
    np.save("narrow.npy", np.zeros((3, 4), dtype=np.float32))
    before = Path("flowers.csv").read_bytes()
    assert told in refused(capsys, *words.split(), status=status)
    assert told in json.loads(refused(capsys, *words.split(), "--json", status=status))["error"]
    assert Path("flowers.csv").read_bytes() == before
    assert not Path("no.csv").exists()


# --- looking ----------------------------------------------------------------------------------------------


def test_runs_are_listed_in_whatever_state_they_are(tmp_path: Path, capsys: Any) -> None:
    found = answer(capsys, "runs")
    assert [each["run"] for each in found] == ["runs/flowers", "runs/more/sure", "runs/sines"]
    times = [each["changed"] for each in found] + [answer(capsys, "checkpoint", "list", "runs/sines")[0]["written"]]
    assert all(datetime.fromisoformat(time).tzinfo is not None for time in times)
    assert headrace("runs") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["run", "state", "epochs", "best", "last", "change"]
    rows = [json.loads(line) for line in Path("runs/sines/metrics.jsonl").read_text().splitlines()]
    best = min(row["val/loss"] for row in rows if "val/loss" in row)
    assert lines[3].split()[:5] == ["runs/sines", "finished", "2", "val/loss", f"{best:.4g}"]
    for name, text in (("empty", "{}"), ("broken", "{")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "run.json").write_text(text)
    (tmp_path / "broken" / "metrics.jsonl").write_text('{"step": 1, "epoch": 1, "val/lo')
    assert [each["best"]["value"] for each in answer(capsys, "runs", tmp_path)] == [None, None]
    (tmp_path / "none").mkdir()
    assert answer(capsys, "runs", tmp_path / "none") == []


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


def test_a_report_is_written_and_one_to_share_names_neither_host_nor_directory(capsys: Any) -> None:
    found = answer(capsys, "report", "runs/sines")
    assert Path(found["report"]).samefile("runs/sines/report.html")
    places = [platform.node(), str(Path.cwd())]
    for flags, named in (([], True), (["--share"], False)):  # the control: a page of one's own has both
        assert headrace("report", "runs/sines", "--out", "page.html", *flags) == 0
        assert "page.html" in capsys.readouterr().out
        page = Path("page.html").read_text()
        assert [place in page for place in places] == [named, named]
