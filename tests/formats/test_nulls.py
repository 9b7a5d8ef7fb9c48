"""Nulls in tables and frames: what stands for them, where they were, and that other data take it from the training."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet as pq
import pytest
import torch
from kit.file_tables import text
from kit.late import pandas as pd
from torch import nn

import headrace as hr

pytestmark = pytest.mark.usefixtures("in_tmp_path")

LINES = ("age,fare,home,alive", "22,7.25,york,0", ",8.5,,1", "38,,leeds,1", "30,9.0,york,0")
COLUMNS: dict[str, Any] = {
    "age": pa.array([22, None, 38, 30]),
    "fare": [7.25, 8.5, None, 9.0],
    "home": ["york", None, "leeds", "york"],
    "alive": [0, 1, 1, 0],
}
NULLS = {"age": ["mean", "indicate"], "fare": "median", "home": "unknown"}


class ArrowOnly:
    """A frame that gives its columns as Arrow's, as one of Polars does."""

    def __init__(self, table: pa.Table) -> None:
        self._table = table

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        return self._table.__arrow_c_stream__(requested_schema)


def csv() -> str:
    return text("t.csv", *LINES)


def parquet() -> str:
    pq.write_table(pa.table(COLUMNS), "t.parquet", row_group_size=3)
    return "t.parquet"


def arrow() -> str:
    with pa.ipc.new_file("t.arrow", pa.table(COLUMNS).schema) as file:
        file.write_table(pa.table(COLUMNS), max_chunksize=2)
    return "t.arrow"


def feather() -> str:
    pyarrow.feather.write_feather(pa.table(COLUMNS), "t.feather", compression="lz4")
    return "t.feather"


def frame() -> Any:
    return pa.table(COLUMNS).to_pandas()


KINDS = [csv, parquet, arrow, feather, frame, lambda: ArrowOnly(pa.table(COLUMNS)), lambda: pa.table(COLUMNS)]


@pytest.mark.parametrize("kind", KINDS)
def test_nulls_are_filled_and_indicated_in_every_kind_of_table(kind: Callable[[], Any]) -> None:
    table = hr.open_table(kind(), nulls=NULLS)
    kinds = ("age: float64[]", "fare: float64[]", "home: int64[]", "alive: int64[]", "age_null: float32[]")
    assert [str(stream) for stream in table.streams] == list(kinds)
    for batch in (table.rows(0, 4), table.take(torch.arange(4))):
        assert batch["age"].tolist() == [22, 30, 38, 30]
        assert batch["age_null"].tolist() == [0, 1, 0, 0]
        assert batch["fare"].tolist() == [7.25, 8.5, 8.5, 9.0]
        assert batch["home"].tolist() == [1, 2, 0, 1]
    assert table.categories == {"home": ["leeds", "york", "unknown"]}
    assert table.nulls == {"age": [30.0, "indicate"], "fare": 8.5, "home": "unknown"}


def test_columns_side_by_side_are_filled_each_by_its_own_mean() -> None:
    table = hr.open_table(csv(), columns={"x": ["age", "fare"], "y": "alive"}, nulls={"x": ["mean", "indicate"]})
    assert table.nulls == {"x": [30.0, 8.25, "indicate"]}
    assert table.rows(1, 3)["x"].tolist() == [[30, 8.5], [38, 8.25]]
    assert table.rows(1, 3)["x_null"].tolist() == [[1, 0], [0, 1]]
    again = hr.open_table(frame(), columns={"x": ["age", "fare"], "y": "alive"}, nulls=table.nulls)
    assert again.nulls == table.nulls
    assert again.rows(0, 4)["x"].equal(table.rows(0, 4)["x"])


@pytest.mark.parametrize("kind", [csv, frame])
def test_where_nulls_were_has_the_shape_of_the_stream_also_of_one_column(kind: Callable[[], Any]) -> None:
    table = hr.open_table(kind(), columns={"x": ["age"], "age": "age"}, nulls={"x": ["mean", "indicate"]})
    assert [table.rows(0, 2)[name].tolist() for name in ("x", "x_null", "age")] == [[[22], [30]], [[0], [1]], [22, 30]]


def test_a_column_that_is_empty_in_one_file_is_filled_with_what_is_known_of_the_others() -> None:
    pq.write_table(pa.table({"a": [1.0, 3.0], "s": ["p", "q"]}), "t-0.parquet")
    pq.write_table(pa.table({"a": pa.nulls(2), "s": pa.nulls(2)}), "t-1.parquet")
    table = hr.open_table("t-*.parquet", nulls={"a": "mean", "s": "none"})
    assert table.rows(0, 4)["a"].tolist() == [1, 3, 2, 2]
    assert table.rows(0, 4)["s"].tolist() == [0, 1, 2, 2]
    assert hr.open_table("t-1.parquet", nulls={"a": 0.0, "s": "none"}).categories == {"s": ["none"]}
    assert hr.open_table(pd.DataFrame({"s": [None, None]}), nulls={"s": "none"}).rows(0, 2)["s"].tolist() == [0, 0]


def test_whole_numbers_stay_whole_where_whole_numbers_are_filled_in() -> None:
    table = hr.open_table(csv(), columns=["age"], nulls={"age": -1})
    assert [str(stream) for stream in table.streams] == ["age: int64[]"]
    assert table.rows(0, 4)["age"].tolist() == [22, -1, 38, 30]


def test_means_are_those_of_all_files_and_nan_is_missing() -> None:
    pq.write_table(pa.table({"a": [1.0, float("nan")]}), "t-0.parquet")
    pq.write_table(pa.table({"a": [None, 4.0]}), "t-1.parquet")
    table = hr.open_table("t-*.parquet", nulls={"a": "mean"})
    assert table.rows(0, 4)["a"].tolist() == [1, 2.5, 2.5, 4]


def test_a_table_with_filled_nulls_is_the_same_in_another_process_and_knows_its_fills_by_its_fingerprint() -> None:
    import pickle

    table = hr.open_table(csv(), nulls=NULLS)
    again = pickle.loads(pickle.dumps(table))
    assert again.nulls == table.nulls
    assert again.fingerprint() == table.fingerprint()
    assert hr.open_table("t.csv", nulls={**NULLS, "fare": 0.0}).fingerprint() != table.fingerprint()
    half, _ = hr.split(table, 0.5, 0.5, seed=0)
    assert half.nulls == hr.concat(half, half).nulls == hr.map(half, dict).nulls == table.nulls


@pytest.mark.parametrize(
    ("nulls", "message"),
    [
        ("mean", r"nulls= is \{stream: what stands for its nulls\}, got 'mean'. Write \{'age': 'mean'"),
        ({"age": None}, "stream 'age' takes 'mean', 'median', a number, a category or 'indicate', got None"),
        ({"age": float("nan")}, "stream 'age' takes .* got nan"),
        ({"age": [1, 2]}, "stream 'age' is made of 1 columns, and 2 values are to stand for its nulls"),
        ({"age": "unknown"}, "column 'age' .*holds int64, and 'unknown' is no number. Write 'mean'"),
        ({"home": "mean"}, r"column 'home' .*holds strings. Name the category .* \{'home': 'unknown'\}"),
        ({"home": "indicate"}, "column 'home' .*holds strings. Name the category"),
        ({"aeg": "mean"}, "unknown column 'aeg'. Did you mean 'age'"),
    ],
)
@pytest.mark.parametrize("kind", [parquet, frame, lambda: pa.table(COLUMNS)])
def test_what_cannot_stand_for_nulls_is_refused(kind: Callable[[], Any], nulls: Any, message: str) -> None:
    if kind is frame:
        message = message.replace("holds int64", "holds double")
    with pytest.raises(hr.ConfigError, match=message):
        hr.open_table(kind(), nulls={**NULLS, **nulls} if isinstance(nulls, dict) else nulls)


def test_more_that_cannot_be_filled_is_refused() -> None:
    with pytest.raises(hr.ConfigError, match="'unknown' stands for nulls of 'home', and is not among its categories="):
        hr.open_table(csv(), nulls={"home": "unknown"}, categories={"home": ["leeds", "york"]}, columns=["home"])
    with pytest.raises(hr.DataError, match=r"column 'a' of e.csv is empty in every row, and has no mean"):
        hr.open_table(text("e.csv", "a,b", ",1", ",2"), nulls={"a": "mean"})
    with pytest.raises(hr.ConfigError, match=r"needs a stream 'age_null' .* Rename that one"):
        hr.open_table(text("n.csv", "age,age_null", "1,2", ",2"), nulls={"age": "indicate"})
    for held in ("n.csv", pd.read_csv("n.csv")):
        with pytest.raises(hr.ConfigError, match="the stream 'a_null' is to say where nulls are, and columns= has a"):
            hr.open_table(held, columns={"a": "age", "a_null": "age"}, nulls={"a": ["mean", "indicate"]})
    with pytest.raises(hr.ConfigError, match="'none' stands for nulls of 'a', and is not among its categories="):
        hr.open_table(pd.DataFrame({"a": ["p", None]}), nulls={"a": "none"}, categories={"a": ["p"]})
    with pytest.raises(hr.DataError, match="column 'a' of this frame holds infinite numbers, and its mean is inf"):
        hr.open_table(pd.DataFrame({"a": [np.inf, None]}), nulls={"a": "mean"})
    with pytest.raises(hr.DataError, match="holds objects, a int in row 2 for example"):
        hr.open_table(pd.DataFrame({"a": ["p", None, 3]}), nulls={"a": "none"})
    np.save("x.npy", np.ones((2, 2)))
    with pytest.raises(hr.ConfigError, match=r"x.npy holds arrays, which have no nulls"):
        hr.open_table("x.npy", nulls={"x": 0})
    with pytest.raises(hr.DataError, match=r"column 'age' of .*t.csv has 1 nulls, .*nulls=\{'age': ...\}"):
        hr.open_table("t.csv", nulls={"fare": 0.0})


def test_strings_that_are_numbers_or_empty_are_categories_where_a_category_stands_for_nulls() -> None:
    table = hr.open_table(text("c.csv", "cabin,n", "12,1", ",2", "NA,3", "7,4"), nulls={"cabin": "none"})
    assert table.categories == {"cabin": ["12", "7", "none"]}
    assert table.rows(0, 4)["cabin"].tolist() == [0, 2, 2, 1]


# --- other data take what stands for nulls from the training ------------------------------------------------


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.home, self.out = nn.Embedding(3, 2), nn.Linear(5, 1)

    def forward(self, age: torch.Tensor, age_null: torch.Tensor, fare: torch.Tensor, home: torch.Tensor) -> Any:
        numbers = torch.stack([age.float(), age_null, fare.float()], 1)
        return self.out(torch.cat([numbers, self.home(home)], 1))[:, 0]


def trainer() -> hr.Trainer:
    torch.manual_seed(0)
    model = Net()
    inputs = ["age", "age_null", "fare", "home"]
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    return hr.Trainer(model, hr.MSE(), optimizer, batch_size=2, inputs=inputs, target="alive", device="cpu", seed=0)


def test_data_filled_with_other_values_than_the_training_s_are_refused(tmp_path: Path) -> None:
    train = hr.open_table(csv(), nulls=NULLS, dtypes={"alive": "float32"})
    val = hr.open_table("t.csv", nulls={**NULLS, "fare": 0.0}, dtypes={"alive": "float32"})
    with pytest.raises(hr.DataError, match=r"in the val data 0.0 stands for nulls of 'fare', .*nulls=train.nulls"):
        trainer().fit(train, val, epochs=1, progress=False)
    trainer().fit(train, epochs=1, run=tmp_path / "run", progress=False)
    with pytest.raises(hr.HeadraceError, match="fare"):
        trainer().fit(val, epochs=2, run=tmp_path / "run", progress=False)
    with pytest.warns(
        UserWarning, match="override=True: the run goes on all the same, although .* 0.0 stands for nulls"
    ):
        trainer().fit(val, epochs=2, run=hr.Run(tmp_path / "run", override=True), progress=False)


@pytest.mark.parametrize("cell", ["", '""', "NA", "null"])
def test_an_empty_cell_of_text_is_a_null_and_no_category(cell: str) -> None:
    path = text("t.csv", "home,y", "york,0", f"{cell},1", "leeds,1")
    with pytest.raises(hr.DataError, match=r"column 'home' of t\.csv has 1 nulls, the first in row 1\. .*nulls="):
        hr.open_table(path)
    filled = hr.open_table(path, nulls={"home": "unknown"})
    assert filled.categories["home"] == ["leeds", "york", "unknown"]
    assert hr.open_table(path, categories=filled.categories, nulls=filled.nulls).rows(0, 3)["home"].tolist() == [
        1,
        2,
        0,
    ]
    model = nn.Linear(1, 1)
    trainer = hr.Trainer(model, hr.MSE(), torch.optim.SGD(model.parameters(), 0.1), inputs="y")
    with pytest.raises(hr.DataError, match=r"column 'home' .* has 1 nulls"):
        trainer.fit(path, epochs=1, progress=False)
