"""Nulls in tables and frames: what stands for them, where they were, and that other data take it from the training."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

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
NULLS = {"age": "mean", "fare": "median", "home": "unknown"}


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
def test_nulls_are_filled_in_every_kind_of_table(kind: Callable[[], Any]) -> None:
    table = hr.open_table(kind(), nulls=NULLS)
    kinds = ("age: float64[]", "fare: float64[]", "home: int64[]", "alive: int64[]")
    assert [str(stream) for stream in table.streams] == list(kinds)
    for batch in (table.rows(0, 4), table.take(torch.arange(4))):
        assert batch["age"].tolist() == [22, 30, 38, 30]
        assert batch["fare"].tolist() == [7.25, 8.5, 8.5, 9.0]
        assert batch["home"].tolist() == [1, 2, 0, 1]
    assert table.categories == {"home": ["leeds", "york", "unknown"]}
    assert table.nulls == {"age": 30.0, "fare": 8.5, "home": "unknown"}


def test_columns_side_by_side_are_filled_each_by_its_own_mean() -> None:
    table = hr.open_table(csv(), columns={"x": ["age", "fare"], "y": "alive"}, nulls={"x": "mean"})
    assert table.nulls == {"x": [30.0, 8.25]}
    assert table.rows(1, 3)["x"].tolist() == [[30, 8.5], [38, 8.25]]
    again = hr.open_table(frame(), columns={"x": ["age", "fare"], "y": "alive"}, nulls=table.nulls)
    assert again.nulls == table.nulls
    assert again.rows(0, 4)["x"].equal(table.rows(0, 4)["x"])


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


def test_strings_that_are_numbers_or_empty_are_categories_where_a_category_stands_for_nulls() -> None:
    table = hr.open_table(text("c.csv", "cabin,n", "12,1", ",2", "NA,3", "7,4"), nulls={"cabin": "none"})
    assert table.categories == {"cabin": ["12", "7", "none"]}
    assert table.rows(0, 4)["cabin"].tolist() == [0, 2, 2, 1]


# --- other data take what stands for nulls from the training ------------------------------------------------


def trainer() -> hr.Trainer:
    model = nn.Sequential(nn.Unflatten(0, (-1, 1)), nn.Linear(1, 1).double(), nn.Flatten(0))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    return hr.Trainer(model, hr.MSE(), optimizer, batch_size=2, inputs="fare", target="alive")


def test_data_filled_with_other_values_than_the_training_s_are_refused(tmp_path: Path) -> None:
    train = hr.open_table(csv(), nulls=NULLS, dtypes={"alive": "float64"})
    val = hr.open_table("t.csv", nulls={**NULLS, "fare": 0.0}, dtypes={"alive": "float64"})
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
    again = hr.open_table(path, categories=filled.categories, nulls=filled.nulls)
    assert again.rows(0, 3)["home"].tolist() == [1, 2, 0]
