"""Sources that never end, and those whose batches have a size of their own."""

from pathlib import Path
from typing import Any

import pytest
import torch
from kit.sampled import sampled
from kit.small import model, same, stop_and_resume, trainer

import headrace as hr
from headrace.adapters import compose


class Stream(hr.Source):
    """Rows drawn for ever, by a generator that is its state."""

    endless = True

    def __init__(self, seed: int = 7) -> None:
        self._generator = torch.Generator().manual_seed(seed)
        self.pulled = 0

    @property
    def streams(self) -> list[hr.Stream]:
        return [hr.Stream("x", (8,)), hr.Stream("y", (), "int64")]

    def next_batch(self, size: int, shard: hr.Shard = hr.Shard()) -> hr.Batch | None:
        self.pulled += 1
        x = torch.randn(size, 8, generator=self._generator)
        return hr.Batch({"x": x, "y": x[:, :3].argmax(dim=1)})

    def state_dict(self) -> dict[str, Any] | None:
        return {"generator": self._generator.get_state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._generator.set_state(state["generator"])


class Ahead(Stream):
    """Read ahead by a thread."""

    thread_safe = True
    shards = True


class Stateless(Stream):
    def state_dict(self) -> None:
        return None


class Sized(Stream):
    """Batches of six rows, five of them to an epoch, as a loader gives them."""

    endless = False
    own_size = True
    marks_ends = True

    def next_batch(self, size: int, shard: hr.Shard = hr.Shard()) -> hr.Batch | None:
        batch = super().next_batch(6)
        assert batch is not None
        batch.ends_epoch = self.pulled % 5 == 0
        return batch


def make(**options: Any) -> hr.Trainer:
    return trainer(model(features=8, dropout=0.2), **{"batch_size": 4, **options})


# --- limits ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("limit", [{}, {"epochs": 3}])
@pytest.mark.parametrize("kind", [Stream, Ahead, Stateless])
def test_a_source_without_end_and_without_limit_is_refused_before_anything_is_pulled(
    kind: type[Stream], limit: Any, tmp_path: Path
) -> None:
    source, trainer = kind(), make()
    with pytest.raises(
        hr.ConfigError, match=rf"{kind.__name__}, which never ends.*steps=, samples=.*head\(source, n\)"
    ):
        trainer.fit(source, run=tmp_path / "run", progress=False, **limit)
    assert source.pulled == 0
    assert not (tmp_path / "run").exists()
    assert same(trainer, make())


@pytest.mark.parametrize(
    ("limit", "steps", "kind", "macrobatch"),
    sampled(
        [
            (limit, steps, kind, macrobatch)
            for limit, steps in (({"steps": 7}, 7), ({"samples": 30}, 8), ({"steps": 7, "epochs": 1}, 7))
            for kind in (Stream, Ahead, Stateless)
            for macrobatch in (1, 12, "4 kB")
        ],
        keep=[({"samples": 30}, 8, Ahead, 12), ({"steps": 7}, 7, Stream, 12), ({"steps": 7}, 7, Stateless, 1)],
        of=6,
    ),
)
def test_a_limit_in_steps_or_samples_ends_it(kind: type[Stream], limit: Any, steps: int, macrobatch: int | str) -> None:
    trainer = make(macrobatch=macrobatch)
    history = trainer.fit(kind(), progress=False, **limit)
    assert (history.last["step"], history.last["samples"], history.last["epoch"]) == (steps, 4 * steps, 0)
    plain = make(macrobatch=1)
    plain.fit(Stream(), steps=steps, progress=False)
    assert same(trainer, plain)


def test_a_source_that_says_that_it_never_ends_and_does_is_told() -> None:
    class Liar(Stream):
        def next_batch(self, size: int, shard: hr.Shard = hr.Shard()) -> hr.Batch | None:
            return None

    with pytest.raises(hr.SourceError, match="Liar has ended after 0 rows, and says that it is endless"):
        make().fit(Liar(), steps=5, progress=False)

    class Ends(Stream):
        def next_batch(self, size: int, shard: hr.Shard = hr.Shard()) -> hr.Batch | None:
            return super().next_batch(size) if self.pulled < 3 else None

        def load_state_dict(self, state: dict[str, Any]) -> None:
            super().load_state_dict(state)
            self.pulled = 0

    with pytest.raises(hr.SourceError, match="Ends has ended after 12 rows"):
        make().fit(Ends(), steps=5, progress=False)
    history = make().fit(compose.head(Ends(), 22), epochs=1, progress=False)  # goes on from its beginning
    assert history.last["samples"] == 22


def test_a_validation_on_what_never_ends_is_refused_or_limited() -> None:
    with pytest.raises(hr.ConfigError, match="never ends"):
        make().fit(Stream(), Stream(1), steps=5, progress=False)
    with pytest.raises(hr.ConfigError, match="never ends"):
        make().validate(Stream())
    with pytest.raises(hr.ConfigError, match="never ends"):
        make().predict(Stream())
    assert make().validate(Stream(), limit=20)["val/loss"] > 0
    history = make().fit(Stream(), compose.head(Stream(1), 20), steps=10, validate_every="5 steps", progress=False)
    assert len(history["val/loss"]) == 2


# --- epochs of n rows --------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [Stream, Ahead, Stateless])
@pytest.mark.parametrize("macrobatch", [1, 12, "4 kB"])
def test_epochs_of_n_rows_are_trained(kind: type[Stream], macrobatch: int | str) -> None:
    trainer = make(macrobatch=macrobatch)
    source = compose.head(kind(), 22)
    seen = [(i.epoch, i.batch, i.batches, i.samples) for i in trainer.steps(source, epochs=3)]
    expected = [(e + (b == 6), b, 6, 22 * e + min(22, 4 * b)) for e in range(3) for b in range(1, 7)]
    assert seen == expected
    plain = make(macrobatch=1)
    rows = Stream()
    for _, b, _, _ in expected:
        plain.step(rows.next_batch(2 if b == 6 else 4))
    assert same(trainer, plain)
    assert not same(trainer, make())


@pytest.mark.slow
@pytest.mark.parametrize("kind", [Stream, Ahead])
@pytest.mark.parametrize("batch_size", [4, {0: 4, "1 epoch": 8}])
def test_a_training_in_epochs_of_n_rows_is_resumed_bit_for_bit(
    kind: type[Stream], batch_size: Any, tmp_path: Path
) -> None:
    def made() -> hr.Trainer:
        return make(batch_size=batch_size, macrobatch=8)

    # of 6 or 3 steps in an epoch
    stop_and_resume(made, [1, 5, 6, 11], tmp_path, lambda: compose.head(kind(), 22), epochs=3)


def test_without_state_a_run_says_what_it_cannot_keep(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="no state_dict"):
        make().fit(compose.head(Stateless(), 22), epochs=1, run=tmp_path / "run", progress=False)


def test_a_validation_on_epochs_of_n_rows_sees_the_same_rows_every_time() -> None:
    trainer, source = make(), compose.head(Stream(), 22)
    assert trainer.validate(source) == trainer.validate(source)
    assert trainer.predict(source).shape == (22, 3)


# --- batches of their own size -----------------------------------------------------------------------------


@pytest.mark.parametrize("batch_size", [6, {0: 6, "1 epoch": 8}])
def test_a_source_with_batches_of_its_own_refuses_a_size(batch_size: Any) -> None:
    source = Sized()
    with pytest.raises(hr.ConfigError, match=r"Sized with batches of its own. Leave batch_size= out"):
        make(batch_size=batch_size).fit(source, epochs=1, progress=False)
    assert source.pulled == 0


def test_a_source_with_batches_of_its_own_trains_with_them() -> None:
    for macrobatch in (1, 100, "auto"):
        trainer = make(batch_size=None, macrobatch=macrobatch)
        seen = [(i.samples, i.epoch) for i in trainer.steps(Sized(), epochs=2)]
        assert seen == [(6 * k, k // 5) for k in range(1, 11)]


def test_epochs_of_n_rows_of_such_a_source_end_with_a_whole_batch() -> None:
    trainer = make(batch_size=None)
    seen = [(i.samples, i.epoch) for i in trainer.steps(compose.head(Sized(), 10), epochs=2)]
    assert seen == [(6, 0), (12, 1), (18, 1), (24, 2)]
    with pytest.raises(hr.ConfigError, match="batches of its own"):
        make(batch_size=6).fit(compose.head(Sized(), 10), epochs=1, progress=False)


def test_validation_data_may_have_a_size_of_their_own_beside_a_batch_size() -> None:
    history = make(batch_size=4).fit(compose.head(Stream(), 20), Sized(), epochs=1, progress=False)
    assert history.last["val/loss"] > 0
