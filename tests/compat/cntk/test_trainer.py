"""The trainer: what a sample is, what is counted, tested, fetched and saved."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import headrace.compat.cntk as C
from headrace.compat.cntk.learners import UnitType, UserLearner

X = np.array([[1.0, 2.0], [3.0, 4.0], [5.0, 7.0]], np.float32)
Y = np.array([[1.0], [0.0], [2.0]], np.float32)


def linear(rate: Any = 0.01, **options: Any) -> tuple[Any, Any, Any, Any]:
    x, y = C.input_variable(2, name="x"), C.input_variable(1, name="y")
    w = C.parameter(init=np.array([[0.5], [-0.5]], np.float32), name="w")
    z = C.times(x, w)
    error = C.squared_error(z, y)
    trainer = C.Trainer(z, (error, C.reduce_sum(C.abs(z - y))), [C.sgd(z.parameters, rate)], **options)
    return trainer, x, y, w


def test_an_update_is_that_of_the_sum_over_samples() -> None:
    trainer, x, y, w = linear(C.learning_rate_schedule(0.01, UnitType.sample))
    start = np.array([[0.5], [-0.5]])
    assert trainer.train_minibatch({x: X, y: Y}) is True
    np.testing.assert_allclose(w.value, start - 0.01 * 2 * X.T @ (X @ start - Y), rtol=1e-5)
    assert trainer.previous_minibatch_sample_count == 3 == trainer.total_number_of_samples_seen
    assert trainer.previous_minibatch_loss_average == pytest.approx(float(((X @ start - Y) ** 2).mean()))
    assert trainer.previous_minibatch_evaluation_average == pytest.approx(float(abs(X @ start - Y).mean()))


def test_outputs_are_those_before_the_update() -> None:
    trainer, x, y, _ = linear()
    z = trainer.model.output
    going, values = trainer.train_minibatch({x: X, y: Y}, outputs=[z])
    assert going is True
    np.testing.assert_allclose(values[z], X @ [[0.5], [-0.5]])


def test_arguments_may_be_named_and_a_missing_one_is_told() -> None:
    trainer, x, _, _ = linear()
    trainer.train_minibatch({"x": X, "y": Y})
    with pytest.raises(ValueError, match=r"Input.*'y'.*is given no value"):
        trainer.train_minibatch({x: X})
    with pytest.raises(ValueError, match=r"takes samples of shape \(2,\), got \(3,\)"):
        trainer.train_minibatch({"x": np.zeros((4, 3)), "y": Y})
    with pytest.raises(ValueError, match="unknown argument 'z'"):
        trainer.train_minibatch({"z": X})


def test_an_empty_minibatch_ends_training() -> None:
    trainer, x, y, _ = linear()
    with pytest.raises(ValueError, match="no minibatch has been trained on"):
        _ = trainer.previous_minibatch_loss_average
    trainer.train_minibatch({x: X, y: Y})
    loss = trainer.previous_minibatch_loss_average
    assert trainer.train_minibatch({}) is False
    assert trainer.previous_minibatch_loss_average == loss > 0
    assert trainer.previous_minibatch_sample_count == 0


def test_the_samples_of_a_loss_of_sequences_are_their_items() -> None:
    x, y = C.sequence.input_variable(2), C.sequence.input_variable(2)
    b = C.parameter(2)
    z = x + b
    trainer = C.Trainer(z, C.cross_entropy_with_softmax(z, y), [C.sgd([b], 0.1)])
    sequences = [np.ones((3, 2), np.float32), np.ones((2, 2), np.float32)]
    trainer.train_minibatch({x: sequences, y: sequences})
    assert trainer.total_number_of_samples_seen == 5


def test_the_samples_of_a_loss_that_is_one_number_are_those_that_it_sums() -> None:
    x, y = C.input_variable(1), C.input_variable(2)
    z = C.layers.Dense(2)(x)
    loss = C.reduce_sum(C.cross_entropy_with_softmax(z, y), axis=C.Axis.all_axes()) * 1.0
    trainer = C.Trainer(None, (loss, None), C.sgd(loss.parameters, 0.1))
    assert trainer.train_minibatch({x: [[0.1], [-0.1]], y: [[0, 1], [1, 0]]})
    assert trainer.total_number_of_samples_seen == 2


def test_a_test_gives_the_mean_and_changes_nothing() -> None:
    trainer, x, y, w = linear()
    before = w.value
    found = trainer.test_minibatch({x: X, y: Y})
    assert found == pytest.approx(float(abs(X @ before - Y).mean()))
    assert np.array_equal(w.value, before)
    assert trainer.total_number_of_samples_seen == 0
    plain = C.Trainer(trainer.model, trainer.loss_function, trainer.parameter_learners)
    with pytest.raises(ValueError, match="there is no metric"):
        plain.test_minibatch({x: X, y: Y})


def test_parameters_without_a_learner_stay() -> None:
    x, y = C.input_variable(2), C.input_variable(2)
    w, b = C.parameter((2, 2), C.glorot_uniform()), C.parameter(2, 1.0)
    z = C.times(x, w) + b
    trainer = C.Trainer(z, (C.cross_entropy_with_softmax(z, y), None), C.sgd([w], 0.1))
    before = w.value
    trainer.train_minibatch({x: [[1, 1], [2, 2]], y: [[0, 1], [1, 0]]})
    assert np.array_equal(b.value, [1, 1])
    assert not np.array_equal(w.value, before)


def test_several_learners_update_their_own_and_go_on_while_one_does() -> None:
    x, y = C.input_variable(2), C.input_variable(2)
    w, b = C.parameter((2, 2), C.glorot_uniform()), C.parameter(2)
    z = C.times(x, w) + b
    loss = C.cross_entropy_with_softmax(z, y)
    trainer = C.Trainer(z, loss, [C.sgd([w], 0.1), C.sgd([b], 0.0)])
    assert trainer.train_minibatch({x: [[1, 2]], y: [[0, 1]]}) is True
    assert np.array_equal(b.value, [0, 0])
    with pytest.raises(ValueError, match="updated by one learner"):
        C.Trainer(z, loss, [C.sgd([w], 0.1), C.sgd([w, b], 0.1)])


class Halving(UserLearner):  # type: ignore[misc]
    """Steps against the sign of the gradient, three times."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, C.learning_parameter_schedule_per_sample(1))
        self.ends: list[bool] = []

    def update(self, gradient_values: Any, training_sample_count: int, sweep_end: bool) -> bool:
        self.ends.append(sweep_end)
        for parameter, gradient in gradient_values.items():
            parameter.value = parameter.value - 0.5 * np.sign(gradient)
        return len(self.ends) < 3


def test_a_learner_of_ones_own_gets_arrays_counts_and_the_ends_of_sweeps() -> None:
    x, y = C.input_variable(2), C.input_variable(1)
    w = C.parameter((2, 1))
    error = C.squared_error(C.times(x, w), y)
    learner = Halving([w])
    trainer = C.Trainer(None, error, [learner])
    going = [trainer.train_minibatch({x: X, y: Y}, is_sweep_end=end) for end in (False, True, False)]
    assert going == [True, True, False]
    assert learner.ends == [False, True, False]


def test_rates_by_sweep_follow_what_the_source_says(tmp_path: Path) -> None:
    path = tmp_path / "two.txt"
    path.write_text("".join(f"0 |S0 {k}:1 |S1 {k}:1\n" for k in range(7)) + "2 |S0 7:1 |S1 7:1\n2 |S0 8:1 |S1 8:1\n")
    streams = C.io.StreamDefs(
        features=C.io.StreamDef(field="S0", shape=9, is_sparse=True),
        labels=C.io.StreamDef(field="S1", shape=9, is_sparse=True),
    )
    source = C.io.MinibatchSource(C.io.CTFDeserializer(str(path), streams), randomize=False)
    x, y = C.sequence.input_variable(9), C.sequence.input_variable(9)
    z = C.plus(x, C.reduce_sum(C.parameter(9, init=10)))
    learner = C.sgd(z.parameters, C.learning_rate_schedule([0.3, 0.2, 0.1, 0.0], UnitType.sample))
    trainer = C.Trainer(z, (C.cross_entropy_with_softmax(z, y), C.classification_error(z, y)), [learner])
    mapped = {x: source.streams.features, y: source.streams.labels}
    rates = []
    for size in (1, 1, 9, 30):
        trainer.train_minibatch(source.next_minibatch(size, input_map=mapped))
        rates.append(learner.learning_rate())
    assert rates == [0.3, 0.2, 0.1, 0.0]


# --- checkpoints -----------------------------------------------------------------------------------------------


def adam_with_dropout() -> tuple[Any, Any]:
    x, y = C.input_variable(2), C.input_variable(3)
    torch.manual_seed(7)
    z = C.layers.Sequential([C.layers.Dense(8, activation=C.relu), C.layers.Dropout(0.3), C.layers.Dense(3)])(x)
    trainer = C.Trainer(z, (C.cross_entropy_with_softmax(z, y), None), C.adam(z.parameters, 0.05, 0.9))
    data = {x: X, y: np.eye(3, dtype=np.float32)}
    return trainer, data


def test_a_trainer_goes_on_from_its_files_to_the_bit(tmp_path: Path) -> None:
    trainer, data = adam_with_dropout()
    for step in range(6):
        if step == 3:
            trainer.save_checkpoint(str(tmp_path / "here"), {"mine": 5})
        trainer.train_minibatch(data)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["here", "here.ckp"]
    wanted = [p.value for p in trainer.model.parameters]
    other, data = adam_with_dropout()
    assert other.restore_from_checkpoint(tmp_path / "here") == {"mine": 5}
    assert other.total_number_of_samples_seen == 9
    for _ in range(3):
        other.train_minibatch(data)
    assert all(np.array_equal(a, p.value) for a, p in zip(wanted, other.model.parameters, strict=True))


def test_a_model_is_restored_from_its_file_and_from_that_of_a_trainer(tmp_path: Path) -> None:
    trainer, data = adam_with_dropout()
    trainer.train_minibatch(data)
    trainer.save_checkpoint(tmp_path / "here")
    trainer.model.save(tmp_path / "model")
    for name in ("here", "model"):
        other = adam_with_dropout()[0].model
        other.restore(tmp_path / name)
        assert all(
            np.array_equal(a.value, b.value) for a, b in zip(trainer.model.parameters, other.parameters, strict=True)
        )
    with pytest.raises(ValueError, match=r"Function\.load is not offered"):
        C.Function.load(tmp_path / "model")


def test_a_checkpoint_of_another_model_is_refused(tmp_path: Path) -> None:
    trainer, _ = adam_with_dropout()
    trainer.save_checkpoint(tmp_path / "here")
    other, *_ = linear()
    with pytest.raises(ValueError, match="of another model"):
        other.restore_from_checkpoint(tmp_path / "here")
    with pytest.raises(ValueError, match="there is no checkpoint"):
        other.restore_from_checkpoint(tmp_path / "nowhere")


def test_a_damaged_checkpoint_is_refused(tmp_path: Path) -> None:
    trainer, _ = adam_with_dropout()
    trainer.save_checkpoint(tmp_path / "here")
    whole = (tmp_path / "here.ckp").read_bytes()
    (tmp_path / "here.ckp").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match=r"here\.ckp"):
        trainer.restore_from_checkpoint(tmp_path / "here")


# --- wrong ------------------------------------------------------------------------------------------------------


def test_what_a_trainer_cannot_work_with_is_refused() -> None:
    x = C.input_variable(2)
    z = C.layers.Dense(2)(x)
    loss = C.squared_error(z, [1, 2])
    foreign = C.sgd([C.parameter(2)], 0.1)
    for learners, said in (([], "are learners"), ([3], "are learners"), ([foreign], "is not in the loss")):
        with pytest.raises(ValueError, match=said):
            C.Trainer(z, loss, learners)
    with pytest.raises(ValueError, match="got 3 functions"):
        C.Trainer(z, (loss, loss, loss), [C.sgd(z.parameters, 0.1)])


def test_a_loss_that_is_not_finite_goes_into_the_weights() -> None:
    x, y = C.input_variable(6), C.input_variable(3)
    z = C.layers.Dense(3)(x)
    trainer = C.Trainer(z, (C.cross_entropy_with_softmax(z, y), None), [C.momentum_sgd(z.parameters, 0.1, 0.9)])
    rows, labels = np.ones((4, 6), np.float32), np.eye(3, dtype=np.float32)[[0, 1, 2, 0]]
    assert trainer.train_minibatch({x: rows * np.inf, y: labels})
    assert np.isnan(trainer.previous_minibatch_loss_average)
    assert np.isnan(trainer.model.parameters[0].value).any()
