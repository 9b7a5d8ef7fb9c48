"""What CNTK's manual on sources of one's own says, statement by statement, tried on the class that it shows."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import headrace.compat.cntk as C
from headrace.compat.cntk.io import MinibatchData, StreamInformation, UserMinibatchSource

WORDS, CLASSES = 1000, 5
MANUAL, _, _ = (Path(__file__).parent / "manual.txt").read_text().partition("input_dim = ")
NAMES: dict[str, Any] = {}
exec(re.sub(r"^(import|from) cntk", r"\1 headrace.compat.cntk", MANUAL, flags=re.MULTILINE), NAMES)


class Sentences(NAMES["MyMultiWorkerDataSource"]):  # type: ignore[misc, name-defined, valid-type]
    """The manual's four sentences for ever, whole ones only, with what it has been asked for."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, int, int]] = []
        super().__init__(WORDS, CLASSES)

    def next_minibatch(self, num_samples: int, number_of_workers: int, worker_rank: int, device: Any = None) -> Any:
        self.asked.append((num_samples, number_of_workers, worker_rank))
        return super().next_minibatch(num_samples, number_of_workers, worker_rank, device)


def a_training(source: Any, **options: Any) -> Any:
    """The manual's model, with its session."""
    torch.manual_seed(0)
    words, label = C.sequence.input_variable(shape=(WORDS,)), C.input_variable(shape=(CLASSES,))
    recurrent = C.layers.Recurrence(C.layers.LSTM(20), go_backwards=False)(words)
    z = C.layers.Dense(CLASSES)(C.sequence.last(recurrent))
    measures = C.cross_entropy_with_softmax(z, label), C.classification_error(z, label)
    local = C.sgd(z.parameters, C.learning_rate_schedule(0.5, unit=C.UnitType.sample))
    learner = C.distributed.data_parallel_distributed_learner(local)
    trainer = C.Trainer(z, measures, [learner], [C.logging.ProgressPrinter(tag="Training", num_epochs=10)])
    streams = {words: source.streams.features, label: source.streams.labels}
    options = {"mb_size": 7, "max_samples": 80, "progress_frequency": 20, **options}
    C.training_session(trainer=trainer, mb_source=source, model_inputs_to_streams=streams, **options).train()
    C.distributed.Communicator.finalize()
    return trainer, np.concatenate([p.value.ravel() for p in z.parameters])


def test_the_manuals_program_prints_its_four_epochs_and_learns(capsys: pytest.CaptureFixture[str]) -> None:
    source = Sentences()
    trainer, _ = a_training(source)
    out = capsys.readouterr().out.splitlines()
    assert out[0] == "Learning rate per 1 samples: 0.5"
    pattern = r"Finished Epoch\[\d of 10\]: \[Training\] loss = \d\.\d{6} \* 20, metric = [\d.]+% \* 20 .* samples/s\);"
    assert all(re.fullmatch(pattern, line) for line in out[1:])
    assert len(out) == 5
    assert all(" * 20, metric = " in line for line in out[1:])
    assert "metric = 0.00% * 20" in out[4]
    assert trainer.total_number_of_samples_seen == 80
    assert trainer.minibatches == 43
    assert [size for size, *_ in source.asked[-6:]] == [6, 5, 4, 3, 2, 1]
    assert set(source.asked[0][1:]) == {1, 0}


def test_a_source_without_the_two_methods_of_its_state_can_be_trained_with_and_not_be_resumed(tmp_path: Any) -> None:
    class Stateless(Sentences):
        get_checkpoint_state = UserMinibatchSource.get_checkpoint_state
        restore_from_checkpoint = UserMinibatchSource.restore_from_checkpoint

    a_training(Stateless(), max_samples=4, checkpoint_config=C.CheckpointConfig(str(tmp_path / "saved")))
    assert Stateless().get_checkpoint_state() == {}
    with pytest.raises(NotImplementedError, match="override restore_from_checkpoint"):
        Stateless().restore_from_checkpoint({"next_seq_idx": 1})


def test_a_state_goes_by_text(tmp_path: Any) -> None:
    class Numbered(Sentences):
        def get_checkpoint_state(self) -> Any:
            return {1: self.next_seq_idx}

    with pytest.raises(ValueError, match="keys of the checkpoint dictionary must be strings, got 1"):
        a_training(Numbered(), max_samples=4, checkpoint_config=C.CheckpointConfig(str(tmp_path / "saved")))


def test_what_a_source_has_to_write_is_told_where_it_is_missing() -> None:
    class Bare(UserMinibatchSource):  # type: ignore[misc]
        def stream_infos(self) -> list[StreamInformation]:
            return [StreamInformation("x", 0, "dense", np.float32, (1,))]

    with pytest.raises(NotImplementedError, match=r"override stream_infos\(\)"):
        UserMinibatchSource()
    with pytest.raises(NotImplementedError, match=r"override next_minibatch\(\)"):
        Bare().next_minibatch(1, 1, 0)
    with pytest.raises(ValueError, match="'dense' or 'sparse', got 'dens'"):
        StreamInformation("x", 0, "dens", np.float32, (1,))


def test_a_minibatch_without_the_stream_that_is_asked_for_is_refused() -> None:
    source = Sentences()
    other = StreamInformation("labels", 1, "dense", np.float32, (7,))
    source.streams["labels"] = other
    with pytest.raises(ValueError, match=r"the source has no stream labels\(shape: \(7,\), dense\)"):
        a_training(source)


@pytest.mark.parametrize(
    ("second", "said"),
    [
        (("b", 0, (3,)), r"the streams a\(.*\) and b\(.*\) both have the id 0. Give each its own."),
        (("a", 1, (3,)), r"the streams a\(.*\) and a\(.*\) are both called 'a'."),
    ],
)
def test_streams_have_ids_and_names_of_their_own(second: Any, said: str) -> None:
    class Twice(UserMinibatchSource):  # type: ignore[misc]
        def stream_infos(self) -> list[StreamInformation]:
            name, number, shape = second
            return [
                StreamInformation("a", 0, "dense", np.float32, (3,)),
                StreamInformation(name, number, "dense", np.float32, shape),
            ]

    with pytest.raises(ValueError, match=f"Twice: {said}"):
        Twice()


def data(rows: int = 2, wide: int = 4, sequences: int | None = None, samples: int | None = None) -> MinibatchData:
    count = rows if sequences is None else sequences
    return MinibatchData(C.Value(np.zeros((rows, wide), np.float32)), count, samples or count, False)


@pytest.mark.parametrize(
    ("x", "y", "said"),
    [
        (
            data(wide=3),
            data(),
            r"the stream x\(shape: \(4,\), dense\) has samples of shape \(4,\), and returned \(3,\)",
        ),
        (data(rows=9), data(rows=9), r"was asked for 8 samples, and returned 9 of x.* Return at most as many, or one"),
        (data(sequences=3), data(), r"x.* says 3 sequences with 3 samples, and has 2 with 3"),
        (data(rows=3), data(), r"streams have as many sequences as each other, got \{'x': 3, 'y': 2\}"),
        (np.zeros((2, 4)), data(), r"returned a ndarray for x.*Return MinibatchData by StreamInformation"),
    ],
)
def test_a_minibatch_that_is_not_as_it_is_said_to_be_is_refused(x: Any, y: Any, said: str) -> None:
    class Wrong(UserMinibatchSource):  # type: ignore[misc]
        infos = [StreamInformation(name, k, "dense", np.float32, (4,)) for k, name in enumerate("xy")]  # noqa: RUF012

        def stream_infos(self) -> list[StreamInformation]:
            return self.infos

        def next_minibatch(self, num_samples: int, number_of_workers: int, worker_rank: int, device: Any = None) -> Any:
            return dict(zip(self.infos, (x, y), strict=True))

    source, z = Wrong(), C.input_variable(4)
    model = C.layers.Dense(4)(z)
    target = C.input_variable(4)
    trainer = C.Trainer(model, C.squared_error(model, target), [C.sgd(model.parameters, 0.1)])
    streams = {z: source.streams["x"], target: source.streams["y"]}
    with pytest.raises(ValueError, match=f"Wrong.*{said}"):
        C.training_session(trainer, source, 8, streams, max_samples=16).train()
