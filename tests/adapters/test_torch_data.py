"""Datasets of torch as tables, and what is recognised as data of others."""

import random
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from kit import trainees
from kit.foreign import Many, Pair, Samples, first
from torch.utils.data import (
    ConcatDataset,
    Subset,
    TensorDataset,
    random_split,
)

import headrace as hr
from headrace.adapters.samples import from_dataset
from headrace.data.ragged import Ragged
from headrace.data.views import Concat, View
from headrace.testing import check_source

pytestmark = pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")  # torchdata 0.11 calls it


# --- datasets as tables -----------------------------------------------------------------------------------


def test_a_tensor_dataset_is_used_in_place() -> None:
    x, y = torch.rand(6, 2), torch.arange(6)
    table = from_dataset(TensorDataset(x, y))
    assert isinstance(table, hr.ArrayTable)
    assert [(c.data_ptr(), name) for name, c in table.columns.items()] == [(x.data_ptr(), "x"), (y.data_ptr(), "y")]
    assert list(from_dataset(TensorDataset(x)).columns) == ["x"]
    assert list(from_dataset(TensorDataset(x, x, y), names=("a", "b", "y")).columns) == ["a", "b", "y"]


def test_parts_of_datasets_are_read_through_their_numbers() -> None:
    whole = TensorDataset(torch.arange(10), torch.arange(10) * 2)
    part = Subset(Subset(whole, [7, 3, 5]), np.array([2, 0]))  # type: ignore[arg-type]
    table = from_dataset(part)
    assert isinstance(table, View)
    assert first(table, 0, 1, 0)["y"].tolist() == [10, 14, 10]
    joined = from_dataset(ConcatDataset([whole, part]))
    assert isinstance(joined, Concat)
    assert first(joined, 11, 2)["x"].tolist() == [7, 2]
    train, val = (from_dataset(half) for half in random_split(whole, [0.7, 0.3]))
    assert sorted([*train.rows(0, 7)["x"].tolist(), *val.rows(0, 3)["x"].tolist()]) == list(range(10))


def test_a_subclass_that_reads_its_rows_in_its_own_way_is_asked_for_them() -> None:
    class Doubled(TensorDataset):
        def __getitem__(self, i: Any) -> Any:
            return super().__getitem__(i)[0] * 2  # type: ignore[no-untyped-call]

    assert first(from_dataset(Doubled(torch.arange(4))))["x"].tolist() == [6, 0]


@pytest.mark.parametrize(
    ("give", "expected"),
    [
        (lambda i: torch.tensor([i, i]), {"x": [[3, 3], [0, 0]]}),
        (lambda i: (i, float(i)), {"x": [3, 0], "y": [3.0, 0.0]}),
        (lambda i: [np.array([i]), True], {"x": [[3], [0]], "y": [True, True]}),
        (lambda i: {"a": i, "b": [i, 1]}, {"a": [3, 0], "b": [[3, 1], [0, 1]]}),
        (lambda i: Pair(i, np.float32(i)), {"left": [3, 0], "right": [3.0, 0.0]}),
        (lambda i: {"n": np.int64(i)}, {"n": [3, 0]}),
    ],
    ids=["tensor", "pair", "list", "dict", "named tuple", "numpy scalar"],
)
def test_samples_are_collated_into_streams(give: Callable[[int], Any], expected: dict[str, Any]) -> None:
    table = from_dataset(Samples(give))
    fields = first(table)
    assert {name: field.tolist() for name, field in fields.items()} == expected
    assert [hr.Stream.of(*item) for item in fields.items()] == list(table.streams)
    assert table.take(torch.empty(0, dtype=torch.int64)).rows == 0


def test_a_dataset_with_getitems_is_asked_for_many_rows_at_once() -> None:
    data = Many()
    table = from_dataset(data)
    data.asked.clear()
    assert first(table, 5, 2)["y"].tolist() == [5, 2]
    assert data.asked == [[5, 2]]


@pytest.mark.parametrize("mapped", [False, True])
def test_the_rows_of_a_dataset_are_read_by_the_thread_that_trains(mapped: bool) -> None:
    seen = set[threading.Thread]()

    def give(i: int) -> Any:
        seen.add(threading.current_thread())
        return torch.full((3,), i / 60), torch.tensor([float(i)])

    dataset = Samples(give, 60)
    train, val = Subset(dataset, range(50)), Subset(dataset, range(50, 60))
    given = [hr.map(from_dataset(part), dict) if mapped else part for part in (train, val)]
    model = torch.nn.Linear(3, 1)
    trainer = hr.Trainer(model, hr.MSE(), torch.optim.SGD(model.parameters(), lr=1e-6), batch_size=5, macrobatch=5)
    trainer.fit(given[0], val=given[1], epochs=3, progress=False)
    for _ in trainer.steps(given[0], epochs=1, progress=False):
        trainer.validate(given[1])
        trainer.predict(given[1])
    assert seen == {threading.current_thread()}


def test_sequences_become_ragged_streams() -> None:
    table = from_dataset(Samples(lambda i: {"words": torch.arange(i), "y": i}), sequences=("words",))
    words = first(table, 3, 0, 2)["words"]
    assert isinstance(words, Ragged)
    assert [row.tolist() for row in words] == [[0, 1, 2], [], [0, 1]]
    assert [s.sequence for s in table.streams] == [True, False]


def broken(i: int) -> Any:
    if i == 3:
        raise KeyError("not in the archive")
    return i


@pytest.mark.parametrize(
    ("data", "options", "message"),
    [
        (
            Samples(lambda i: (i, i, i)),
            {},
            r"Samples gives 3 parts and .* no names.*hr.from_dataset\(data, names=\('a', 'b', 'y'\)\)",
        ),
        (TensorDataset(*[torch.arange(3)] * 3), {}, r"TensorDataset gives 3 parts"),
        (Samples(), {"names": ("a",)}, "gives 2 parts and there are 1 names"),
        (Samples(lambda i: {"x": {"deep": i}}), {}, "'x' is a dict. Give each part a name of its own"),
        (
            Samples(lambda i: ((torch.tensor(i), i), i)),
            {},
            "'x' is a tuple of Tensor. Give each part a name of its own",
        ),
        (
            Samples(lambda i: {"name": "row"}),
            {},
            r"'name' is text. Make numbers of it, .* or leave it out: hr.from_dataset\(data, names=",
        ),
        (Samples(lambda i: {"x": i}), {"names": ("z",)}, "gives no 'z'. It has: x"),
        (Samples(lambda i: {1: i}), {}, "a dict with the key 1"),
        (Samples(lambda i: i), {"sequences": ("x",)}, "'x' is a int, not a sequence"),
        (Samples(lambda i: i), {"sequences": ("w",)}, "gives no 'w' that sequences="),
        (Samples(rows=0), {}, "Samples has no rows"),
    ],
)
def test_samples_that_are_no_streams_are_refused(data: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(hr.DataError, match=message):
        from_dataset(data, **options)


@pytest.mark.parametrize("kind", [Samples, Many])
def test_a_row_that_fails_is_named(kind: type[Samples]) -> None:
    table = from_dataset(kind(broken))
    with pytest.raises(hr.SourceError, match=r"failed at row 3: KeyError: 'not in the archive'") as caught:
        first(table, 1, 3, 2)
    assert isinstance(caught.value.__cause__, KeyError)


def test_rows_of_unequal_shapes_are_explained() -> None:
    table = from_dataset(Samples(lambda i: torch.arange(i + 1)))
    with pytest.raises(
        hr.SourceError,
        match=r"'x' cannot be stacked: it has the shape \[2\] in one row and \[5\] in another.*sequences=",
    ):
        first(table, 1, 4)


def test_samples_that_draw_random_numbers_are_warned_of_and_leave_no_trace() -> None:
    draws = [lambda i: torch.rand(2), lambda i: random.random(), lambda i: np.random.rand()]
    for give in draws:
        trainees.seed()
        before = torch.get_rng_state(), random.getstate()
        with pytest.warns(UserWarning, match=r"Samples draws random numbers.*Trainer\(augment=f\)") as caught:
            from_dataset(Samples(give))
        assert [each.filename for each in caught] == [__file__], "however deep in the library, the line is the user's"
        assert torch.equal(before[0], torch.get_rng_state())
        assert before[1] == random.getstate()


# --- a collate function in place of a DataLoader -------------------------------------------------------------


def padded(samples: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
    ids = [torch.as_tensor(sample["ids"]) for sample in samples]
    x = torch.nn.utils.rnn.pad_sequence(ids, batch_first=True).float().sum(1, keepdim=True)
    return {"x": x.expand(-1, 2), "y": torch.tensor([sample["y"] for sample in samples]), "ids": _pad(ids)}


def _pad(ids: list[torch.Tensor]) -> torch.Tensor:
    return torch.nn.utils.rnn.pad_sequence(ids, batch_first=True)


SENTENCES = [{"ids": [*range(1, 2 + k % 5)], "y": k % 2} for k in range(22)]


def hugging_face() -> Any:
    return pytest.importorskip("datasets").Dataset.from_list(SENTENCES)


class Sentences(torch.utils.data.Dataset[Any]):
    def __len__(self) -> int:
        return len(SENTENCES)

    def __getitem__(self, row: int) -> Any:
        return SENTENCES[row]


@pytest.mark.parametrize("make", [Sentences, hugging_face])
def test_a_dataset_with_a_collate_function_is_trained_on_and_resumes_after_any_batch(make: Any, tmp_path: Path) -> None:
    def trained(run: Path | None, steps: int | None = None) -> str:
        trainees.seed()
        model = torch.nn.Linear(2, 2)
        trainer = hr.Trainer(
            model, hr.CrossEntropy(), torch.optim.SGD(model.parameters(), 0.01), batch_size=4, inputs="x"
        )
        limit: Any = {"epochs": 2} if steps is None else {"steps": steps}
        trainer.fit(hr.from_dataset(make(), collate=padded), run=run, progress=False, **limit)
        return trainees.digest(trainer)

    whole = trained(None)
    for steps in (1, 6, 9):
        trained(tmp_path / "run", steps)
    assert trained(tmp_path / "run") == whole


def test_batches_of_a_collate_function_are_those_of_its_rows_and_shared_out() -> None:
    source = hr.from_dataset(Sentences(), collate=padded, order="none")
    assert [str(stream) for stream in source.streams][2] == "ids: int64[?]"
    expected = [padded(SENTENCES[k : k + 4]) for k in range(0, 22, 4)]
    found = list(hr.Feed(source, batch_size=4))
    assert [batch["ids"].tolist() for batch in found] == [batch["ids"].tolist() for batch in expected]
    parts = [hr.from_dataset(Sentences(), collate=padded, order="none") for _ in range(2)]
    halves = [part.pull(4, hr.Shard(k, 2)) for k, part in enumerate(parts)]
    assert [half["ids"].shape for half in halves] == [(2, 4), (2, 4)], "padded as in the batch"
    assert {half.total for half in halves} == {4}
    rows = [{"y": k, "x": float(k)} for k in range(22)]
    columns = lambda samples: {name: torch.tensor([each[name] for each in samples]) for name in ("x", "y")}  # noqa: E731
    check_source(lambda: hr.from_dataset(rows, collate=columns))


def test_predictions_of_a_shuffled_dataset_with_a_collate_function_stand_in_the_order_of_the_dataset() -> None:
    model = torch.nn.Identity()
    trainer = hr.Trainer(model, hr.CrossEntropy(), batch_size=4)
    rows = [(torch.tensor([float(k)]), k % 2) for k in range(22)]
    source = hr.from_dataset(rows, collate=torch.utils.data.default_collate)
    assert [number for batch in hr.Feed(source, batch_size=4) for number in batch["x"].view(-1).tolist()] != [
        *range(22)
    ]
    assert trainer.predict(source).view(-1).tolist() == [*range(22)]
