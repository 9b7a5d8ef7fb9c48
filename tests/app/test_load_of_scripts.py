"""`hr.load(run, model)`: a run of a script predicts without the script's training data."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import headrace as hr
from headrace.errors import CheckpointError, ConfigError, DataError, RunError

ROWS = "".join(f"{k % 5},{k % 3},{['red', 'green', ''][k % 3]},{['low', 'high'][k % 2]}\n" for k in range(40))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.out = nn.Embedding(3, 2), nn.Linear(4, 2)

    def forward(self, x: torch.Tensor, colour: torch.Tensor) -> Any:
        return self.out(torch.cat([x, self.embed(colour)], 1))


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_run_predicts_a_file_without_the_training_data(place: Path) -> None:
    Path("train.csv").write_text("a,b,c,d\n" + ROWS)
    columns = {"x": ["a", "b"], "colour": "c", "y": "d"}
    table = hr.open_table("train.csv", columns=columns, dtypes={"x": "float32"}, nulls={"colour": "none"})
    net = Net()
    trainer = hr.Trainer(net, hr.CrossEntropy(), torch.optim.SGD(net.parameters(), 0.1), batch_size=8)
    trainer.fit(table, epochs=2, run="run", progress=False)
    expected = trainer.predict(table)
    Path("train.csv").unlink()
    Path("new.csv").write_text("b,c,a\n" + "".join(f"{b},{c},{a}\n" for a, b, c, _ in map(split, ROWS.splitlines())))
    made = hr.load("run", Net())
    assert (made.step, made.trainer.nulls) == (10, {"colour": "none"})
    assert torch.equal(made.predict("new.csv", batch_size=8).rows(0, 40)["output"], expected)  # rounded alike
    named = hr.load("run", hr.Trainer(Net(), hr.CrossEntropy())).predict("new.csv")
    assert set(named.categories["class"]) == {"high", "low"}


def split(line: str) -> list[str]:
    return line.split(",")


def train(data: Any, run: str = "run", **options: Any) -> hr.Trainer:
    torch.manual_seed(0)
    model = nn.Linear(2, 1)
    trainer = hr.Trainer(model, hr.MSE(), torch.optim.SGD(model.parameters(), 0.1), **options)
    trainer.fit(data, epochs=1, run=run, progress=False)
    return trainer


def test_arrays_by_name_and_files_with_these_columns_are_predicted(place: Path) -> None:
    x, y = torch.rand(12, 2), torch.rand(12, 1)
    trainer = train({"y": y, "in": x})
    made = hr.load("run", nn.Linear(2, 1))
    expected = trainer.predict({"y": y, "in": x})
    assert torch.equal(made.predict({"in": x, "y": y}).rows(0, 12)["output"], expected)
    Path("new.csv").write_text("a,b\n" + "".join(f"{a!r},{b!r}\n" for a, b in x.tolist()))
    assert torch.equal(made.predict("new.csv").rows(0, 12)["output"], expected)


def test_what_does_not_fit_is_told(place: Path) -> None:
    train((torch.rand(12, 2), torch.rand(12, 1)))
    with pytest.raises(CheckpointError, match=r"weight \(float32\[1, 2\] there, float32\[1, 3\] here\)"):
        hr.load("run", nn.Linear(3, 1))
    with pytest.raises(ConfigError, match="takes a model, or a trainer with one, got a type"):
        hr.load("run", nn.Linear)  # type: ignore[arg-type]
    with pytest.raises(RunError, match="nowhere is not a run"):
        hr.load("nowhere", nn.Linear(2, 1))


def test_batches_and_maps_are_no_description_of_a_file(place: Path) -> None:
    train([{"x": torch.rand(4, 2), "y": torch.rand(4, 1)}], "batches")
    with pytest.raises(RunError, match=r"does not know how to read new\.csv: its training data were batches"):
        hr.load("batches", nn.Linear(2, 1)).predict("new.csv")
    table = hr.map(hr.ArrayTable({"a": torch.rand(8, 2), "y": torch.rand(8, 1)}), doubled)
    train(table, "mapped")
    made = hr.load("mapped", nn.Linear(2, 1))
    with pytest.raises(DataError, match=r"were changed by map\(.*doubled\), and new\.csv would be read without that"):
        made.predict("new.csv")
    assert made.predict({"x": torch.rand(3, 2)}).rows(0, 3)["output"].shape == (3, 1)


def doubled(fields: dict[str, Any]) -> dict[str, Any]:
    return {"x": fields["a"] * 2, "y": fields["y"]}
