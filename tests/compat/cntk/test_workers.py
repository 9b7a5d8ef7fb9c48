"""Distributed learners: several workers make the updates of one, or average blocks of their own."""

import math
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

import headrace as hr
import headrace.compat.cntk as C
from headrace.compat.cntk.io import MinibatchData, StreamInformation, UserMinibatchSource

ROWS = np.random.default_rng(0).random((23, 4)).astype(np.float32)
CLASSES = np.eye(3, dtype=np.float32)[np.random.default_rng(1).integers(0, 3, 23)]


def a_training(make_learner: Any, source: Any = None, samples: int = 46, sizes: int = 6, **configs: Any) -> Any:
    torch.manual_seed(5)
    x, y = C.input_variable(4), C.input_variable(3)
    z = C.layers.Dense(3)(x)
    measures = C.cross_entropy_with_softmax(z, y), C.classification_error(z, y)
    trainer = C.Trainer(z, measures, [make_learner(z.parameters)], configs.pop("writer", None))
    source = source() if source else C.io.MinibatchSourceFromData({"x": ROWS, "y": CLASSES})
    streams = {x: source.streams["x"], y: source.streams["y"]}
    C.training_session(trainer, source, sizes, streams, max_samples=samples, **configs).train()
    C.distributed.Communicator.finalize()
    return trainer, np.concatenate([p.value.ravel() for p in z.parameters])


def shared(parameters: Any) -> Any:
    rate = C.learning_parameter_schedule_per_sample([0.1, 0.02])  # by sweeps
    return C.distributed.data_parallel_distributed_learner(C.momentum_sgd(parameters, rate, 0.9))


class Blind(UserMinibatchSource):  # type: ignore[misc]
    """Gives every worker all rows."""

    def __init__(self) -> None:
        self.place = 0
        self.infos = [
            StreamInformation("x", 0, "dense", np.float32, (4,)),
            StreamInformation("y", 1, "dense", np.float32, (3,)),
        ]
        super().__init__()

    def stream_infos(self) -> list[StreamInformation]:
        return self.infos

    def next_minibatch(self, num_samples: int, number_of_workers: int, worker_rank: int, device: Any = None) -> Any:
        return self.rows(num_samples, 1, 0)

    def rows(self, size: int, every: int, first: int) -> dict[StreamInformation, MinibatchData]:
        """Each so manieth of the next rows."""
        begin, stop = self.place, min(self.place + size, len(ROWS))
        end = stop == len(ROWS)
        self.place = 0 if end else stop
        part = slice(begin + first, stop, every)
        count = len(ROWS[part])
        return {
            info: MinibatchData(C.Value(rows[part]), count, count, end)
            for info, rows in zip(self.infos, (ROWS, CLASSES), strict=True)
        }


class Fair(Blind):
    """Gives each worker rows of its own, as many as it asks for."""

    asked: ClassVar[set[tuple[int, int]]] = set()

    def next_minibatch(self, num_samples: int, number_of_workers: int, worker_rank: int, device: Any = None) -> Any:
        self.asked.add((number_of_workers, worker_rank))
        return self.rows(num_samples * number_of_workers, number_of_workers, worker_rank)


class Waiting(Fair):
    """Waits for ever for a row of its own at the end of its data, if it is asked as one of several workers."""

    def next_minibatch(self, num_samples: int, number_of_workers: int, worker_rank: int, device: Any = None) -> Any:
        while number_of_workers > 1 and self.place >= 12:
            continue
        return self.rows(num_samples * number_of_workers, number_of_workers, worker_rank)

    def get_checkpoint_state(self) -> dict[str, int]:
        return {"place": self.place}

    def restore_from_checkpoint(self, state: Any) -> None:
        self.place = state["place"]


def weights_of(workers: int, *given: Any, **options: Any) -> Any:
    def main() -> Any:
        trainer, weights = a_training(*given, **options)
        return trainer.total_number_of_samples_seen, trainer.minibatches, weights

    return hr.launch(main, workers=workers)


@pytest.mark.parametrize("workers", [2, 3])
def test_workers_make_the_updates_of_one(workers: int) -> None:
    alone, together = weights_of(1, shared), weights_of(workers, shared)
    assert alone[:2] == together[:2] == (46, 8)
    np.testing.assert_allclose(together[2], alone[2], rtol=1e-5, atol=1e-6)


def test_smoothed_gradients_of_a_distributed_learner_can_be_reset() -> None:
    x = C.input_variable(4)
    z = C.layers.Dense(3, init=0)(x)
    learner = C.distributed.data_parallel_distributed_learner(C.momentum_sgd(z.parameters, 0.1, 0.9))
    ones = {p: np.ones(p.shape, np.float32) for p in z.parameters}
    moved = []
    for reset in (False, False, True):
        if reset:
            learner.reset_smoothed_gradients()
        before = z.parameters[0].value.copy()
        learner.update(ones, 4)
        moved.append(float(abs(z.parameters[0].value - before).max()))
    assert moved[1] > 1.5 * moved[0]
    assert moved[2] == pytest.approx(moved[0], rel=1e-4)


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_a_source_of_ones_own_is_asked_with_the_number_of_workers_and_that_of_its_worker(workers: int) -> None:
    Fair.asked.clear()
    together = weights_of(workers, shared, Fair, sizes=6 // workers)
    assert Fair.asked == {(workers, own) for own in range(workers)}
    alone = weights_of(1, shared, Blind)
    assert together[:2] == alone[:2] == (46, 8)
    np.testing.assert_allclose(together[2], alone[2], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("source", "why"), [(Blind, ""), (Waiting, "It does not return to worker [01] of 2: it loops at")]
)
def test_a_source_that_does_not_share_is_asked_as_worker_0_of_1_and_its_minibatches_are_split(
    source: Any, why: str
) -> None:
    with pytest.warns(UserWarning, match=f"is asked as worker 0 of 1, and each worker keeps a part.* {why}"):
        together = weights_of(2, shared, source)
    alone = weights_of(1, shared, source)
    assert alone[:2] == together[:2] == (46, 8)
    np.testing.assert_allclose(together[2], alone[2], rtol=1e-5, atol=1e-6)


def test_with_block_momentum_a_source_of_ones_own_is_asked_for_the_minibatch_of_a_worker() -> None:
    sizes: set[int] = set()

    class Sized(Fair):
        def next_minibatch(self, num_samples: int, number_of_workers: int, worker_rank: int, device: Any = None) -> Any:
            sizes.add(num_samples)
            return super().next_minibatch(num_samples, number_of_workers, worker_rank, device)

    def blocks(parameters: Any) -> Any:
        return C.distributed.block_momentum_distributed_learner(C.sgd(parameters, 0.1), 24)

    weights_of(2, blocks, Sized, samples=46, sizes=6)
    assert max(sizes) == 6


def ends_once(source: Any) -> Any:
    """A source of this kind that ends after its rows."""

    class Ends(source):  # type: ignore[misc]
        def rows(self, size: int, every: int, first: int) -> Any:
            if self.place == 0 and self.infos[0] in getattr(self, "given", {}):
                return {}
            self.given = super().rows(size, every, first)
            return self.given

    return Ends()


def validated(workers: int, source: Any, make: Any = shared, **options: Any) -> list[Any]:
    """What a callback is called with at each validation, by any worker."""
    told: list[Any] = []

    def main() -> None:
        a_training(
            make, cv_config=C.CrossValidationConfig(source(), 23, 5, lambda *given: told.append(given)), **options
        )

    hr.launch(main, workers=workers)
    return told


def in_memory() -> Any:
    return C.io.MinibatchSourceFromData({"x": ROWS, "y": CLASSES}, 23)


@pytest.mark.filterwarnings("ignore:Ends is asked as worker 0 of 1")
@pytest.mark.parametrize("source", [in_memory, lambda: ends_once(Fair), lambda: ends_once(Blind)])
def test_workers_validate_together(source: Any) -> None:
    alone, together = validated(1, source, samples=23), validated(2, source, samples=23)
    assert [each[2] for each in together] == [23] * 2
    assert [each[1] for each in together] == pytest.approx([alone[0][1]] * 2)


def test_workers_work_for_themselves_until_some_samples_are_seen() -> None:
    def later(parameters: Any) -> Any:
        rate = C.learning_parameter_schedule_per_sample(0.1)
        return C.distributed.data_parallel_distributed_learner(C.sgd(parameters, rate), distributed_after=12)

    alone, together = weights_of(1, later), weights_of(2, later)
    assert alone[:2] == together[:2]
    np.testing.assert_allclose(together[2], alone[2], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("blocks", [False, True])
def test_workers_go_on_from_a_checkpoint_each_where_its_source_stood(tmp_path: Path, blocks: bool) -> None:
    text = tmp_path / "rows.ctf"
    text.write_text(
        "".join(f"|x {' '.join(map(str, r))} |y {' '.join(map(str, c))}\n" for r, c in zip(ROWS, CLASSES, strict=True))
    )
    streams = C.io.StreamDefs(x=C.io.StreamDef(field="x", shape=4), y=C.io.StreamDef(field="y", shape=3))

    def source() -> Any:
        return C.io.MinibatchSource(C.io.CTFDeserializer(str(text), streams), randomize=False)

    def make(parameters: Any) -> Any:
        local = C.momentum_sgd(parameters, 0.1, 0.9)
        return C.distributed.block_momentum_distributed_learner(local, 12) if blocks else shared(parameters)

    def trained(folder: str) -> Any:
        config = C.CheckpointConfig(str(tmp_path / folder / "saved"), (2, C.DataUnit.minibatch), preserve_all=True)
        return weights_of(2, make, source, samples=46, sizes=5, checkpoint_config=config)

    whole = trained("whole")
    for number in (0, 1):
        there = tmp_path / f"from{number}"
        there.mkdir()
        for end in ("", ".ckp"):
            (there / f"saved{number}{end}").write_bytes((tmp_path / "whole" / f"saved{number}{end}").read_bytes())
        again = trained(there.name)
        assert again[:2] == whole[:2]
        assert np.array_equal(again[2], whole[2])


def test_only_worker_0_prints(capsys: pytest.CaptureFixture[str]) -> None:
    def main() -> None:
        a_training(shared, writer=C.logging.ProgressPrinter(tag="Training", num_epochs=2), progress_frequency=23)

    hr.launch(main, workers=2)
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("Finished")]
    assert [line.split(":")[0] for line in lines] == ["Finished Epoch[1 of 2]", "Finished Epoch[2 of 2]"]
    assert all(" * 23, metric = " in line for line in lines)


@pytest.mark.parametrize("nesterov", [False, True])
def test_blocks_of_several_updates_are_drawn_together_with_a_momentum(nesterov: bool) -> None:
    """Two workers, each with its half of every minibatch of 2·4 rows, and blocks of 16 samples: two updates each."""
    rate, constant, start = 0.1, 40.0, np.zeros(4)
    rows = ROWS[:16].astype(np.float64)
    target = rows.sum(1)

    def main() -> Any:
        x, y = C.input_variable(4), C.input_variable(1)
        w = C.parameter((4, 1))
        error = C.squared_error(C.times(x, w), y)
        local = C.sgd([w], C.learning_parameter_schedule_per_sample(rate / 8))
        learner = C.distributed.block_momentum_distributed_learner(local, 16, constant, nesterov)
        trainer = C.Trainer(None, error, [learner])
        source = C.io.MinibatchSourceFromData({"x": ROWS[:16], "y": ROWS[:16].sum(1, keepdims=True)}, 32)
        streams = {x: source.streams["x"], y: source.streams["y"]}
        C.training_session(trainer, source, 4, streams, max_samples=32).train()
        return trainer.total_number_of_samples_seen, w.value.ravel()

    momentum = math.exp(-8 / (constant / 2))
    w, velocity = start.copy(), np.zeros(4)
    shown = w
    for _ in range(2):
        own = [shown.copy(), shown.copy()]
        for begin in (0, 8):
            for k in range(2):
                part, wanted = rows[begin + k : begin + 8 : 2], target[begin + k : begin + 8 : 2]
                own[k] = own[k] - rate / 8 * 2 * part.T @ (part @ own[k] - wanted)
        moved = sum(w - each for each in own)
        velocity = momentum * velocity + (1 - momentum) * moved
        w = w - velocity
        shown = w - momentum * velocity if nesterov else w
    samples, found = hr.launch(main, workers=2)
    assert samples == 32
    np.testing.assert_allclose(found, shown, rtol=1e-4)


def test_block_momentum_ends_though_one_worker_has_no_data_left() -> None:
    def blocks(parameters: Any) -> Any:
        return C.distributed.block_momentum_distributed_learner(C.sgd(parameters, 0.1), block_size=8)

    samples, _, weights = weights_of(2, blocks, lambda: C.io.MinibatchSourceFromData({"x": ROWS, "y": CLASSES}, 23))
    assert samples == 23
    assert np.isfinite(weights).all()


def test_a_communicator_knows_the_workers() -> None:
    def main() -> Any:
        learner = C.distributed.data_parallel_distributed_learner(C.sgd([C.parameter(2)], 0.1))
        communicator = learner.communicator()
        communicator.barrier()
        ranks = [worker.global_rank for worker in communicator.workers()]
        return ranks, communicator.current_worker().global_rank, communicator.is_main(), C.Communicator.num_workers()

    assert hr.launch(main, workers=2) == ([0, 1], 0, True, 2)
    assert C.distributed.Communicator.rank() == 0


def test_what_distributed_learners_cannot_do_is_refused() -> None:
    plain = C.sgd([C.parameter(2)], 0.1)
    make = C.distributed.data_parallel_distributed_learner
    with pytest.raises(ValueError, match="use_async_buffered_parameter_update= is not offered"):
        make(plain, use_async_buffered_parameter_update=True)
    with pytest.raises(ValueError, match="made of a plain one"):
        make(make(plain))
    x = C.input_variable(2)
    w, b = C.parameter((2, 2)), C.parameter(2)
    loss = C.squared_error(C.times(x, w) + b, [1, 2])
    with pytest.raises(ValueError, match="either all learners are distributed or none"):
        C.Trainer(None, loss, [make(C.sgd([w], 0.1)), C.sgd([b], 0.1)])
