"""Workers that share the rows of their data notice before the first update if these are not the same."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import ConcatDataset, DataLoader, Dataset, Subset, TensorDataset, random_split

import headrace as hr
from headrace.workers.here import here

X = torch.arange(200.0).reshape(100, 2).cos()
Y = X.sum(dim=1, keepdim=True)
Both = tuple[Any, Any]


class Rows(Dataset[Any]):
    """A dataset of one's own; `noise` is drawn from a generator that nobody knows."""

    def __init__(self, rows: list[int], noise: float = 0.0) -> None:
        self.rows, self.noise, self._draw = rows, noise, np.random.default_rng(here().shard.index)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, row: int) -> tuple[Tensor, Tensor]:
        return X[self.rows[row]] + self.noise * self._draw.random(), Y[self.rows[row]]


class Table(hr.Table):
    """A table of one's own."""

    streams = (hr.Stream("x", (2,)), hr.Stream("y", (1,)))

    def __init__(self, x: Tensor, y: Tensor) -> None:
        self.x, self.y = x, y

    def __len__(self) -> int:
        return len(self.x)

    def take(self, indices: Tensor) -> hr.Batch:
        return hr.Batch({"x": self.x[indices], "y": self.y[indices]}, len(indices))


class Wide(Table):
    streams = (hr.Stream("x", (3000,)), hr.Stream("y", (1,)))


def permuted(seed: int) -> Any:
    """Numbers of 80 rows for the training, and of 20 for the validation."""
    return torch.randperm(100, generator=torch.Generator().manual_seed(seed)).tolist()


def arrays(seed: int) -> Both:
    rows = permuted(seed)
    return (X[rows[:80]], Y[rows[:80]]), (X[rows[80:]], Y[rows[80:]])


def subsets(seed: int) -> Both:
    rows = permuted(seed)
    return Subset(TensorDataset(X, Y), rows[:80]), Subset(TensorDataset(X, Y), rows[80:])


def random_splits(seed: int) -> Both:
    first, second = random_split(TensorDataset(X, Y), [80, 20], torch.Generator().manual_seed(seed))
    return first, second


def swapped_subsets(seed: int) -> Both:
    """Two rows of the many change places."""
    rows = [*range(80)]
    if seed:
        rows[30], rows[31] = rows[31], rows[30]
    return Subset(Rows([*range(100)]), rows), None


def mapped(seed: int) -> Both:
    (train, val), twice = arrays(seed), lambda fields: {"x": fields["x"] * 2, "y": fields["y"]}
    return hr.map(hr.ArrayTable(dict(zip("xy", train, strict=True))), twice), val


CASES: dict[str, tuple[Callable[[int], Both], str]] = {
    "arrays": (arrays, "train"),
    "subsets": (subsets, "train"),
    "random splits": (random_splits, "train"),
    "swapped rows": (swapped_subsets, "train"),
    "joined": (lambda seed: (ConcatDataset(subsets(seed)), None), "train"),
    "tables": (lambda seed: (Table(*arrays(seed)[0]), Table(*arrays(seed)[1])), "train"),
    "splits": (lambda seed: hr.split(hr.ArrayTable({"x": X, "y": Y}), 0.8, 0.2, seed=seed), "train"),  # type: ignore[dict-item, return-value]
    "mapped": (mapped, "train"),
    "val": (lambda seed: (arrays(0)[0], arrays(seed)[1]), "val"),
    "val by name": (lambda seed: (arrays(0)[0], {"clean": arrays(0)[1], "noisy": arrays(seed)[1]}), "val/noisy"),
}


def train(name: str, odd: tuple[int, ...], strategy: hr.Strategy | None = None, test: bool = False) -> int:
    """On the odd workers the seed is another; how many updates were made."""
    return fit(CASES[name][0], odd, strategy, test)


def fit(
    make: Callable[[int], Both], odd: tuple[int, ...], strategy: hr.Strategy | None = None, test: bool = False
) -> int:
    torch.manual_seed(0)
    given, val = make(here().shard.index if here().shard.index in odd else 0)
    model = nn.Linear(given.x.shape[1] if isinstance(given, Wide) else 2, 1)
    trainer = hr.Trainer(model, hr.MSE(), torch.optim.SGD(model.parameters(), 0.1), batch_size=16, strategy=strategy)
    started = []
    count = hr.Lambda(on_step_end=lambda info: started.append(info.step))
    more = {"test": arrays(here().shard.index)[1]} if test else {}
    try:
        trainer.fit(given, val, epochs=1, progress=False, callbacks=[count], **more)
    except hr.DataError as error:
        known_only_when_read = isinstance(error, hr.SourceError)
        assert known_only_when_read or not started, "the error comes before the first update"
        raise
    return len(started)


@pytest.mark.parametrize("case", CASES)
def test_data_that_differ_between_workers_are_refused_before_the_first_update(case: str) -> None:
    text = rf"worker 1 has other {CASES[case][1]} data than worker 0.* seed what draws, splits or shuffles"
    with pytest.raises(hr.DataError, match=text):
        hr.launch(train, case, (1,), workers=2)
    assert hr.launch(train, case, (), workers=2) >= 5


def test_the_last_number_of_a_wide_row_counts() -> None:
    def wide(seed: int) -> Both:
        x = torch.zeros(80, 3000)
        x[:, -1] = seed
        return Wide(x, Y[:80]), None

    with pytest.raises(hr.DataError, match="worker 1 has other train data than worker 0"):
        hr.launch(fit, wide, (1,), workers=2)


def test_all_workers_whose_data_differ_are_named_and_the_data_of_a_test_are_compared_too() -> None:
    with pytest.raises(hr.DataError, match="workers 1 and 3 have other train data than worker 0"):
        hr.launch(train, "arrays", (1, 3), workers=4)
    with pytest.raises(hr.DataError, match="worker 1 has other test data than worker 0"):
        hr.launch(train, "arrays", (), None, True, workers=2)


@pytest.mark.parametrize("strategy", [hr.Periodic("2 steps"), hr.Elastic("2 steps")])
def test_workers_with_models_of_their_own_compare_their_data(strategy: hr.Strategy) -> None:
    with pytest.raises(hr.DataError, match="worker 1 has other train data than worker 0"):
        hr.launch(train, "arrays", (1,), strategy, workers=2)
    hr.launch(train, "arrays", (), strategy, workers=2)


def test_files_of_other_contents_are_refused(tmp_path: Path) -> None:
    for seed in (0, 1):
        np.savez(tmp_path / f"{seed}.npz", **{n: part.numpy() for n, part in zip("xy", arrays(seed)[0], strict=True)})

    with pytest.raises(hr.DataError, match="worker 1 has other train data than worker 0"):
        hr.launch(fit, lambda seed: (tmp_path / f"{seed}.npz", None), (1,), workers=2)
    hr.launch(fit, lambda seed: (tmp_path / f"{seed}.npz", None), (), workers=2)


def test_rows_that_cannot_be_compared_are_named_in_a_warning() -> None:
    with pytest.warns(UserWarning, match="the train data: rows that are read twice differ"):
        hr.launch(fit, lambda seed: (Rows([*range(80)], noise=0.1), None), (1,), workers=2)


@pytest.mark.filterwarnings("ignore:.*does not shard")
def test_a_loader_to_validate_with_that_shuffles_anew_on_every_worker_is_refused() -> None:
    def loaders(seed: int) -> Both:
        generator = torch.Generator().manual_seed(seed)
        return arrays(0)[0], DataLoader(TensorDataset(X, Y), batch_size=10, shuffle=True, generator=generator)

    with pytest.raises(hr.SourceError, match="worker 1 has read another batch from its val data than worker 0"):
        hr.launch(fit, loaders, (1,), workers=2)
    hr.launch(fit, loaders, (), workers=2)
