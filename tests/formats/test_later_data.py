"""Whatever data are given later are read as the training data were: every way to give them, in every form.

The later file has its columns in another order, one more, other types, fewer strings, and nulls in other rows. Read by
itself, it would have other codes and other means.
"""

import runpy
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.feather
import pytest
import torch
from kit.cli_parts import headrace
from kit.late import pandas as pd

import headrace as hr

RECIPE = """
import torch
import headrace as hr

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(3, 2)

    def forward(self, x, home):
        return self.linear(torch.cat([x, home[:, None].float()], 1))

def leaves() -> hr.Recipe:
    columns = {"x": ["wide", "high"], "home": "home", "kind": "kind"}
    nulls = {"x": "mean", "home": "unknown"}
    table = hr.open_table("train.csv", columns=columns, dtypes={"x": "float32"}, nulls=nulls)
    torch.manual_seed(0)
    optimizer = torch.optim.SGD((model := Model()).parameters(), lr=0.1)
    trainer = hr.Trainer(model, hr.CrossEntropy(), optimizer, batch_size=2, target="kind")
    return hr.Recipe(trainer, table, fit={"epochs": 2, "progress": False})
"""
TRAIN = "wide,high,home,kind,note\n1,2,york,a,u\n2,,leeds,b,v\n3,4,,b,w\n4,5,bath,a,x\n"
LATER = "note,kind,home,high,wide\nq,b,york,5,4\nr,b,,3.0,\ns,b,leeds,,2\n"
X = torch.tensor([[4.0, 5.0], [2.5, 3.0], [2.0, 11 / 3]])  # 2.5 and 11/3 are the means of the training rows
HOME, KIND = torch.tensor([2, 3, 1]), torch.tensor([1, 1, 1])  # of bath, leeds, york, unknown, and of a, b
ARRAYS = {"x": X, "home": HOME, "kind": KIND}


def frame() -> Any:
    return pd.read_csv("later.csv")


def written(name: str, write: Callable[[str], Any]) -> str:
    write(name)
    return name


def two_files() -> str:
    for k, part in enumerate((frame()[:1], frame()[1:])):
        part.to_csv(f"part-{k}.csv", index=False)
    return "part-*.csv"


FORMS: dict[str, Callable[[], Any]] = {
    "CSV": lambda: "later.csv",
    "a path": lambda: Path("later.csv"),
    "two files": two_files,
    "a list of files": lambda: ["part-0.csv", "part-1.csv"] if two_files() else [],
    "packed": lambda: written("later.csv.gz", lambda name: frame().to_csv(name, index=False)),
    "Parquet": lambda: written("later.parquet", lambda name: frame().to_parquet(name)),
    "Arrow": lambda: written("later.arrow", lambda name: pyarrow.feather.write_feather(frame(), name)),
    "JSON lines": lambda: written("later.jsonl", lambda name: frame().to_json(name, orient="records", lines=True)),
    "a frame": frame,
    "a table of Arrow": lambda: pa.Table.from_pandas(frame()),
    "categories of pandas": lambda: frame().astype({"home": "category", "kind": "category"}),
    "like=": lambda: hr.open_table("later.csv", like=fitted().trainer.encoding),
}


def recipe() -> hr.Recipe:
    made: hr.Recipe = runpy.run_path("leaves.py")["leaves"]()
    return made


def fitted() -> hr.Recipe:
    return hr.load("run", recipe="leaves.py:leaves")


def validated_in_training(data: Any) -> Any:
    made = recipe()
    return made.trainer.fit(made.train, val=data, epochs=2, progress=False).last["val/loss"]


def trained_further(data: Any) -> Any:
    trainer = fitted().trainer
    trainer.step(data)
    return trainer.model.linear.weight.detach()


def predicted_by_command(data: Any) -> Any:
    if not isinstance(data, str):  # a shell gives text alone
        return fitted().trainer.predict(data)
    assert headrace("predict", "run", "--recipe", "leaves.py:leaves", data, "--out", "answers.arrow") == 0
    return hr.open_table("answers.arrow").rows(0, 3)["output"]


DOORS: dict[str, Callable[[Any], Any]] = {
    "fit(val=)": validated_in_training,
    "validate": lambda data: fitted().trainer.validate(data)["val/loss"],
    "predict": lambda data: fitted().trainer.predict(data),
    "step": trained_further,
    "predict of a run": lambda data: fitted().predict(data).columns["output"],
    "predict of a run with a model of one's own": lambda data: hr.load("run", recipe().trainer).trainer.predict(data),
    "the command line": predicted_by_command,
}
WITHOUT_TARGETS = [name for name in DOORS if "predict" in name or "command" in name]


@pytest.fixture(scope="module", autouse=True)
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("later"))
        for name, text in (("leaves.py", RECIPE), ("train.csv", TRAIN), ("later.csv", LATER)):
            Path(name).write_text(text)
        assert headrace("fit", "leaves.py:leaves", "--run", "run", "--progress", "off") == 0
        yield


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("door", DOORS)
def test_later_data_are_read_as_the_training_data_were(door: str, form: str) -> None:
    assert same(DOORS[door](FORMS[form]()), DOORS[door](ARRAYS))


@pytest.mark.parametrize("form", ["CSV", "Parquet", "JSON lines", "a frame", "a table of Arrow"])
@pytest.mark.parametrize("door", WITHOUT_TARGETS)
def test_the_target_may_be_missing_where_it_is_not_needed(
    door: str, form: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    lacking = frame().drop(columns="kind")
    for name in ("leaves.py", "train.csv"):
        (tmp_path / name).write_text(Path(name).read_text())
    (tmp_path / "run").symlink_to(Path("run").absolute())
    monkeypatch.chdir(tmp_path)
    lacking.to_csv("later.csv", index=False)
    assert same(DOORS[door](FORMS[form]()), DOORS[door](ARRAYS))


def test_read_by_themselves_they_would_have_other_numbers() -> None:
    """So that the tests above could fail."""
    columns: dict[str, Any] = {"x": ["wide", "high"], "home": "home", "kind": "kind"}
    table = hr.open_table("later.csv", columns=columns, nulls={"x": "mean", "home": "unknown"})
    rows = table.rows(0, 3)
    assert not any(torch.equal(rows[name].to(field.dtype), field) for name, field in ARRAYS.items())
    assert not same(DOORS["validate"]({**table.rows(0, 3).fields, "x": rows["x"].float()}), DOORS["validate"](ARRAYS))


def same(one: Any, other: Any) -> bool:
    return torch.equal(torch.as_tensor(one), torch.as_tensor(other))
