"""Data sets of Hugging Face as tables and sources."""

from typing import Any

import pytest
import torch
from kit.foreign import first

import headrace as hr
from headrace.adapters.adapt import as_data
from headrace.adapters.iterables import SampleSource


@pytest.fixture
def hugging() -> Any:
    return pytest.importorskip("datasets", reason="needs datasets: pip install datasets")


def rows_of(hugging: Any) -> Any:
    kinds = hugging.Features(
        {
            "a": hugging.Value("float32"),
            "label": hugging.ClassLabel(names=["no", "yes"]),
            "words": hugging.List(hugging.Value("int32")),
            "f": hugging.List(hugging.Value("float64"), length=2),
            "g": hugging.Array2D((2, 2), "float32"),
        }
    )
    rows = range(12)
    columns = {
        "a": [i / 2 for i in rows],
        "label": [i % 2 for i in rows],
        "words": [list(range(i)) for i in rows],
        "f": [[i, -i] for i in rows],
        "g": [[[i, 1], [2, 3]] for i in rows],
    }
    return hugging.Dataset.from_dict(columns, features=kinds)


def test_a_hugging_face_dataset_is_read_from_its_arrow_table(hugging: Any) -> None:
    data = rows_of(hugging)
    table = as_data(data)
    assert isinstance(table, hr.ArrayTable)
    buffer = data.data.table.column("a").chunk(0).buffers()[1]
    assert table.columns["a"].data_ptr() == buffer.address
    assert [str(s) for s in table.streams] == [
        "a: float32[]",
        "label: int64[]",
        "words: sequences of int32[]",
        "f: float64[2]",
        "g: float32[2, 2]",
    ]
    assert dict(table.categories) == {"label": ["no", "yes"]}
    found = first(table, 3, 0)
    assert found["a"].tolist() == [1.5, 0]
    assert [w.tolist() for w in found["words"]] == [[0, 1, 2], []]
    assert found["g"].tolist() == [[[3, 1], [2, 3]], [[0, 1], [2, 3]]]


def test_the_order_and_the_columns_of_a_hugging_face_dataset_hold(hugging: Any) -> None:
    data = rows_of(hugging).shuffle(seed=1).select(range(5))
    table = as_data(data.select_columns(["a", "label"]))
    assert table.rows(0, 5)["a"].tolist() == data["a"][:5]  # type: ignore[union-attr]
    shown = as_data(data.with_format("torch", columns=["f", "label"]))
    assert [str(s) for s in shown.streams] == ["label: int64[]", "f: float32[2]"]
    assert shown.rows(0, 5)["f"].tolist() == data["f"][:5]  # type: ignore[union-attr]


def test_a_hugging_face_dataset_with_a_transform_is_asked_for_its_rows(hugging: Any) -> None:
    data = rows_of(hugging).with_transform(lambda rows: {"x": [torch.tensor(a) * 2 for a in rows["a"]]})
    assert first(as_data(data), 3, 1)["x"].tolist() == [3.0, 1.0]  # type: ignore[arg-type]


def test_large_chunks_stay_where_they_are(hugging: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.adapters.huggingface.IN_ONE_PIECE", 1)
    table = as_data(hugging.concatenate_datasets([rows_of(hugging), rows_of(hugging)]))
    assert first(table, 13, 2)["a"].tolist() == [0.5, 1.0]  # type: ignore[arg-type]
    assert dict(table.categories) == {"label": ["no", "yes"]}  # type: ignore[union-attr]


def test_what_of_hugging_face_cannot_be_read_is_explained(hugging: Any) -> None:
    data = rows_of(hugging)
    with pytest.raises(hr.DataError, match=r"a dict of data sets: train, test.*data\['train'\]"):
        as_data(hugging.DatasetDict({"train": data, "test": data}))
    with pytest.raises(hr.DataError, match=r"'t' of this Dataset holds text.*remove_columns"):
        as_data(data.add_column("t", ["x"] * 12))
    with pytest.raises(hr.DataError, match="has no rows"):
        as_data(data.select([]))


@pytest.mark.parametrize("shuffled", [False, True])
@pytest.mark.parametrize("shards", [1, 3])
def test_a_hugging_face_stream_resumes_after_any_batch(hugging: Any, shards: int, shuffled: bool) -> None:
    """Its own state forgets what is in a shuffle buffer, so that one is replayed."""

    def make() -> hr.Source:
        data = rows_of(hugging).to_iterable_dataset(num_shards=shards)
        source = as_data(data.shuffle(seed=3, buffer_size=5) if shuffled else data)
        assert isinstance(source, SampleSource)
        return source

    source = make()
    assert ("replay" in source.level) == shuffled
    pulled = [source.pull(5) for _ in range(9)]  # three epochs
    assert sorted(n for b in pulled[3:6] for n in b["a"].tolist()) == [i / 2 for i in range(12)]  # type: ignore[index]
    assert [b.ends_epoch for b in pulled[:3]] == [False, False, True]  # type: ignore[union-attr]
    for k in (0, 2, 4, 7):
        fresh = make()
        fresh.load_state_dict(pulled[k].cursor)  # type: ignore[union-attr]
        rest = [fresh.pull(5) for _ in pulled[k + 1 :]]
        expected = pulled[k + 1 :]
        assert [b["a"].tolist() for b in rest] == [b["a"].tolist() for b in expected]  # type: ignore[index]
        assert [b["words"].values.tolist() for b in rest] == [b["words"].values.tolist() for b in expected]  # type: ignore[index]
