"""What CNTK's manual on sources of one's own says, statement by statement."""

import re
from typing import Any

import numpy as np
import pytest
import torch

import headrace as hr
import headrace.compat.cntk as C
from headrace.compat.cntk.io import MinibatchData, StreamInformation, UserMinibatchSource
from headrace.compat.cntk.io.native import check_user_source

SENTENCES = {0: ([560, 0, 0], 0), 1: ([560, 0, 0, 424], 1), 2: ([160, 5, 6], 2), 3: ([460, 3, 3, 425], 3)}
WORDS, CLASSES = 1000, 5


class Sentences(UserMinibatchSource):
    """Four sentences for ever, whole ones only; a worker passes over those of the others without going on."""

    def __init__(self) -> None:
        self.words = StreamInformation("features", 0, "sparse", np.float32, (WORDS,))
        self.label = StreamInformation("labels", 1, "dense", np.float32, (CLASSES,))
        self.place, self.asked = 0, []  # type: ignore[var-annotated]
        super().__init__()

    def stream_infos(self) -> list[StreamInformation]:
        return [self.words, self.label]

    def next_minibatch(self, num_samples: int, number_of_workers: int, worker_rank: int, device: Any = None) -> Any:
        self.asked.append((num_samples, number_of_workers, worker_rank))
        words: list[list[int]] = []
        labels: list[Any] = []
        count, ends = 0, False
        while count < num_samples:
            if self.place == len(SENTENCES):
                self.place, ends = 0, True
            if self.place % number_of_workers != worker_rank:
                continue
            sentence, label = SENTENCES[self.place]
            if words and count + len(sentence) > num_samples:
                break
            count += len(sentence)
            words.append(sentence)
            labels.append([np.eye(CLASSES)[label]])
            self.place += 1
        return {
            self.words: MinibatchData(C.Value.one_hot(words, WORDS, device=device), len(words), count, ends),
            self.label: MinibatchData(
                C.Value(batch=np.asarray(labels, np.float32), device=device), len(words), len(words), ends
            ),
        }

    def get_checkpoint_state(self) -> dict[str, int]:
        return {"place": self.place}

    def restore_from_checkpoint(self, state: Any) -> None:
        self.place = state["place"]


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


def test_a_source_is_known_by_its_streams() -> None:
    source = Sentences()
    assert list(source.streams) == ["features", "labels"]
    assert source["features"] is source.words
    assert source.words.stream_id == 0
    assert source.words.storage_format == "sparse"
    assert source.words.sample_shape == (WORDS,)
    assert source.stream_info("labels").dtype is np.float32
    assert not source.is_infinite()


def test_a_minibatch_is_a_dict_by_stream_of_at_most_so_many_samples() -> None:
    source = Sentences()
    first, second = source.next_minibatch(7, 1, 0), source.next_minibatch(7, 1, 0)
    assert set(first) == {source.words, source.label}
    assert [first[source.words].num_samples, second[source.words].num_samples] == [7, 7]
    assert first[source.words].num_sequences == 2
    assert first[source.label].num_samples == 2
    assert not second[source.words].end_of_sweep
    assert source.next_minibatch(7, 1, 0)[source.words].end_of_sweep
    assert [each.indices.tolist() for each in first[source.words].as_sequences()] == [[560, 0, 0], [560, 0, 0, 424]]


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


@pytest.mark.filterwarnings("ignore:Sentences is asked as worker 0 of 1")
def test_the_manuals_program_ends_with_two_workers_too(capsys: pytest.CaptureFixture[str]) -> None:
    _, alone = a_training(Sentences())
    told = [line.split(" * 20, ")[0] for line in capsys.readouterr().out.splitlines()]

    def main() -> Any:
        trainer, weights = a_training(Sentences())
        return trainer.total_number_of_samples_seen, weights

    seen, together = hr.launch(main, workers=2)
    assert seen == 80
    assert [line.split(" * 20, ")[0] for line in capsys.readouterr().out.splitlines()] == told
    np.testing.assert_allclose(together, alone, rtol=1e-4, atol=1e-6)


def test_without_workers_a_source_is_worker_0_of_1_and_the_device_is_passed_on() -> None:
    class Watching(Sentences):
        devices: list[Any] = []  # noqa: RUF012

        def next_minibatch(self, num_samples: int, number_of_workers: int, worker_rank: int, device: Any = None) -> Any:
            self.devices.append(device)
            return super().next_minibatch(num_samples, number_of_workers, worker_rank, device)

    source = Watching()
    session = {"max_samples": 4, "progress_frequency": None}
    a_training(source, **session)
    assert {each[1:] for each in source.asked} == {(1, 0)}
    assert set(source.devices) == {C.device.use_default_device()}


def test_a_source_without_the_two_methods_of_its_state_can_be_trained_with_and_not_be_resumed(tmp_path: Any) -> None:
    class Stateless(Sentences):
        get_checkpoint_state = UserMinibatchSource.get_checkpoint_state
        restore_from_checkpoint = UserMinibatchSource.restore_from_checkpoint

    a_training(Stateless(), max_samples=4, checkpoint_config=C.CheckpointConfig(str(tmp_path / "saved")))
    assert Stateless().get_checkpoint_state() == {}
    with pytest.raises(NotImplementedError, match="override restore_from_checkpoint"):
        Stateless().restore_from_checkpoint({"place": 1})


def test_a_state_goes_by_text(tmp_path: Any) -> None:
    class Numbered(Sentences):
        def get_checkpoint_state(self) -> Any:
            return {1: self.place}

    with pytest.raises(ValueError, match="keys of the checkpoint dictionary must be strings, got 1"):
        a_training(Numbered(), max_samples=4, checkpoint_config=C.CheckpointConfig(str(tmp_path / "saved")))


def test_a_training_goes_on_where_the_source_stood(tmp_path: Any) -> None:
    _, whole = a_training(Sentences(), max_samples=40)
    saved = C.CheckpointConfig(str(tmp_path / "saved"), 10)
    a_training(Sentences(), max_samples=20, checkpoint_config=saved)
    source = Sentences()
    _, resumed = a_training(source, max_samples=40, checkpoint_config=saved)
    assert len(source.asked) < 25
    shorter = Sentences()
    _, reference = a_training(shorter, max_samples=20)
    assert not np.array_equal(resumed, reference)
    assert resumed.shape == whole.shape


def test_what_a_source_has_to_write_is_told_where_it_is_missing() -> None:
    class Bare(UserMinibatchSource):
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


class Forgetful(Sentences):
    """Does not call the constructor of its base."""

    def __init__(self) -> None:
        self.words = StreamInformation("features", 0, "sparse", np.float32, (WORDS,))
        self.label = StreamInformation("labels", 1, "dense", np.float32, (CLASSES,))
        self.place, self.asked = 0, []


def test_a_source_that_does_not_call_the_constructor_of_its_base_has_its_streams() -> None:
    assert a_training(Forgetful(), max_samples=4)[0].total_number_of_samples_seen == 4


@pytest.mark.parametrize(
    ("second", "said"),
    [
        (("b", 0, (3,)), r"the streams a\(.*\) and b\(.*\) both have the id 0. Give each its own."),
        (("a", 1, (3,)), r"the streams a\(.*\) and a\(.*\) are both called 'a'."),
    ],
)
def test_streams_have_ids_and_names_of_their_own(second: Any, said: str) -> None:
    class Twice(UserMinibatchSource):
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
    class Wrong(UserMinibatchSource):
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


def test_the_manuals_source_is_told_that_it_never_returns_to_one_of_two_workers() -> None:
    with pytest.raises(ValueError, match=r"does not return to worker 0 of 2: it is at line \d+ of .*test_seed"):
        check_user_source(Sentences, sequences=["features"], endless=True)


@pytest.mark.slow
def test_a_source_that_goes_on_past_the_sequences_of_others_keeps_the_promises_of_a_source() -> None:
    class Fair(Sentences):
        def next_minibatch(self, num_samples: int, number_of_workers: int, worker_rank: int, device: Any = None) -> Any:
            found = super().next_minibatch(num_samples, 1, 0, device)
            return {} if number_of_workers > 1 and worker_rank else found

    report = check_user_source(Fair, sequences=["features"], endless=True, batches=5, sizes=(7,))
    assert report
