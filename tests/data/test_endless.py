"""Sources that never end, and those whose batches have a size of their own."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from kit.own_data import Pulled
from kit.sampled import sampled
from kit.small import model, same, trainer

import headrace as hr
from headrace.adapters import compose

X = torch.randn(500, 8, generator=torch.Generator().manual_seed(7))
COLUMNS = {"x": X, "y": X[:, :3].argmax(dim=1)}


def stream(**options: Any) -> Pulled:
    return Pulled(COLUMNS, **{"endless": True, **options})


KINDS: dict[str, Callable[[], Pulled]] = {
    "plain": stream,
    "ahead": lambda: stream(thread_safe=True, shards=True),
    "stateless": lambda: stream(state=False),
}


class Sized(Pulled):
    """Batches of six rows, five of them to an epoch, as a loader gives them."""

    own_size = True

    def __init__(self) -> None:
        super().__init__({name: column[:30] for name, column in COLUMNS.items()}, ends="flag")

    def next_batch(self, size: int, shard: hr.Shard = hr.Shard()) -> hr.Batch | None:
        return super().next_batch(6)


def make(**options: Any) -> hr.Trainer:
    return trainer(model(features=8, dropout=0.2), **{"batch_size": 4, **options})


# --- limits ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("limit", [{}, {"epochs": 3}])
@pytest.mark.parametrize("kind", KINDS)
def test_a_source_without_end_and_without_limit_is_refused_before_anything_is_pulled(
    kind: str, limit: Any, tmp_path: Path
) -> None:
    source, trainer = KINDS[kind](), make()
    with pytest.raises(hr.ConfigError, match=r"Pulled, which never ends.*steps=, samples=.*head\(source, n\)"):
        trainer.fit(source, run=tmp_path / "run", progress=False, **limit)
    assert source.given == []
    assert not (tmp_path / "run").exists()
    assert same(trainer, make())


@pytest.mark.parametrize(
    ("limit", "steps", "kind", "macrobatch"),
    sampled(
        [
            (limit, steps, kind, macrobatch)
            for limit, steps in (({"steps": 7}, 7), ({"samples": 30}, 8), ({"steps": 7, "epochs": 1}, 7))
            for kind in KINDS
            for macrobatch in (1, 12, "auto")
        ],
        keep=[({"samples": 30}, 8, "ahead", 12), ({"steps": 7}, 7, "plain", 12), ({"steps": 7}, 7, "stateless", 1)],
        of=6,
    ),
)
def test_a_limit_in_steps_or_samples_ends_it(kind: str, limit: Any, steps: int, macrobatch: int | str) -> None:
    trainer = make(macrobatch=macrobatch)
    history = trainer.fit(KINDS[kind](), progress=False, **limit)
    assert (history.last["step"], history.last["samples"], history.last["epoch"]) == (steps, 4 * steps, 0)
    plain = make(macrobatch=1)
    plain.fit(stream(), steps=steps, progress=False)
    assert same(trainer, plain)


def test_a_source_that_says_that_it_never_ends_and_does_is_told() -> None:
    for rows in (0, 12):
        ends = Pulled({name: column[:rows] for name, column in COLUMNS.items()}, endless=True)
        with pytest.raises(hr.SourceError, match=f"Pulled has ended after {rows} rows, and says that it is endless"):
            make().fit(ends, steps=5, progress=False)
    ends.load_state_dict({"at": 0})
    history = make().fit(compose.head(ends, 22), epochs=1, progress=False)  # goes on from its beginning
    assert history.last["samples"] == 22


def test_a_validation_on_what_never_ends_is_refused_or_limited() -> None:
    for call in (
        lambda: make().fit(stream(), stream(), steps=5, progress=False),
        lambda: make().validate(stream()),
        lambda: make().predict(stream()),
    ):
        with pytest.raises(hr.ConfigError, match="never ends"):
            call()
    assert make().validate(stream(), limit=20)["val/loss"] > 0
    history = make().fit(stream(), compose.head(stream(), 20), steps=10, validate_every="5 steps", progress=False)
    assert len(history["val/loss"]) == 2


# --- epochs of n rows --------------------------------------------------------------------------------------


def test_without_state_a_run_says_what_it_cannot_keep(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="no state_dict"):
        make().fit(compose.head(stream(state=False), 22), epochs=1, run=tmp_path / "run", progress=False)


# --- batches of their own size -----------------------------------------------------------------------------


@pytest.mark.parametrize("batch_size", [6, {0: 6, "1 epoch": 8}])
def test_a_source_with_batches_of_its_own_refuses_a_size(batch_size: Any) -> None:
    source = Sized()
    for data in (source, compose.head(source, 10)):
        with pytest.raises(hr.ConfigError, match=r"with batches of its own. Leave batch_size= out"):
            make(batch_size=batch_size).fit(data, epochs=1, progress=False)
    assert source.given == []


def test_epochs_of_n_rows_of_such_a_source_end_with_a_whole_batch() -> None:
    trainer = make(batch_size=None)
    seen = [(i.samples, i.epoch) for i in trainer.steps(compose.head(Sized(), 10), epochs=2)]
    assert seen == [(6, 0), (12, 1), (18, 1), (24, 2)]
