"""What knows how the training data were read, and data that cannot be read so. See `test_later_data.py`."""

from pathlib import Path
from typing import Any

import pytest
import torch
from kit.late import pandas as pd

import headrace as hr

pytestmark = pytest.mark.usefixtures("in_tmp_path")

ROWS = ["wide,high,kind,note", "1,2,a,u", "2,,b,v", "3,4,b,w", "4,5,a,x"]
OTHERS = ["note,kind,high,wide", "q,b,5,4", "r,b,,3"]


class Flowers(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(2, 2)
        torch.nn.init.constant_(self.linear.weight, 0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.linear(x)
        return result


def trainer() -> hr.Trainer:
    model = Flowers()
    return hr.Trainer(model, hr.CrossEntropy(), torch.optim.SGD(model.parameters(), 0.1), batch_size=4)


def write(name: str, lines: list[str]) -> str:
    Path(name).write_text("\n".join(lines) + "\n")
    return name


def table(name: str) -> hr.Table:
    columns: dict[str, Any] = {"x": ["wide", "high"], "y": "kind"}
    return hr.open_table(name, columns=columns, dtypes={"x": "float32"}, nulls={"x": [9.0, 3.0]})


@pytest.fixture
def fitted() -> hr.Trainer:
    made = trainer()
    made.fit(table(write("train.csv", ROWS)), val=write("val.csv", OTHERS), epochs=1, run="run", progress=False)
    return made


def test_columns_of_a_frame_beside_an_array_are_found_by_their_names() -> None:
    frame = pd.DataFrame({"wide": [1.0, 2.0], "Sepal.High": [3.0, 4.0]})
    made = hr.Trainer(torch.nn.Linear(2, 1).double(), hr.MSE(), lambda p: torch.optim.SGD(p, 0.01))
    made.fit((frame, torch.zeros(2, 1).double()), epochs=1, progress=False)
    turned = frame[["Sepal.High", "wide"]]
    labels = torch.zeros(2, 1).double()
    assert made.validate((turned, labels)) == made.validate((frame, labels))
    torch.testing.assert_close(made.predict(turned), made.predict(torch.tensor(frame.to_numpy())))
    with pytest.raises(hr.DataError, match="this frame has no column 'wide', as the training data have"):
        made.validate((frame.drop(columns="wide"), labels))


def test_a_file_with_none_of_the_columns_is_refused(fitted: hr.Trainer) -> None:
    write("other.csv", ["a,b", "1,2"])
    with pytest.raises(hr.DataError, match=r"other\.csv has none of the columns of the training data, high, kind, w"):
        fitted.predict("other.csv")


class Sum(torch.nn.Linear):
    """A model whose last arguments may be missing."""

    def forward(self, wide: Any, high: Any, more: Any = None) -> torch.Tensor:  # type: ignore[override]
        return super().forward(wide[:, None] + 10 * high[:, None]).squeeze(1) + (0 if more is None else more)


def test_a_column_that_is_missing_is_not_replaced_by_the_one_after_it() -> None:
    frame = pd.DataFrame({name: [1.0, 2.0] for name in ("wide", "high", "more", "y")}).astype("float32")
    made = hr.Trainer(Sum(1, 1), hr.MSE(), lambda p: torch.optim.SGD(p, 0.01))
    made.fit(frame, epochs=1, run="run", progress=False)
    again = hr.load("run", hr.Trainer(Sum(1, 1), hr.MSE())).trainer
    for each in (made, again):
        assert len(each.predict(frame[["wide", "high"]])) == 2
        for use in (each.predict, each.validate):
            with pytest.raises(
                hr.DataError, match=r"streams wide, high, more, by their order, .* as wide, more\. Give"
            ):
                use(frame.drop(columns="high"))
