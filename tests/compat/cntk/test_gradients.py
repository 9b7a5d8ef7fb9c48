"""Minibatches of samples pass through `hr.Trainer`, with its tape, and come to the numbers that autograd finds."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import headrace.compat.cntk as C
from headrace.compat.cntk.train.gradients import Gradients

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")
RNG = np.random.default_rng(0)
X = RNG.standard_normal((512, 6)).astype(np.float32)
Y = np.eye(3, dtype=np.float32)[RNG.integers(0, 3, 512)]
Learners = Callable[[Any], Any]


def dense() -> Any:
    return C.layers.Sequential([C.layers.Dense(16, activation=C.tanh), C.layers.Dense(3)])


def normalised() -> Any:
    return C.layers.Sequential([C.layers.Dense(8), C.layers.BatchNormalization(), C.relu, C.layers.Dense(3)])


def dropping() -> Any:
    return C.layers.Sequential([C.layers.Dense(16, activation=C.relu), C.layers.Dropout(0.3), C.layers.Dense(3)])


def scaled() -> Any:
    scale, fixed = C.parameter((), init=0.5), C.constant([1.0, 2.0, 3.0])
    return C.layers.Sequential([C.layers.Dense(3), lambda z: z * scale * fixed])


def momentum(parameters: Any) -> Any:
    return C.momentum_sgd(parameters, 0.1, 0.9)


def made(layers: Callable[[], Any], learner: Learners) -> tuple[Any, Any, Any]:
    torch.manual_seed(0)
    x, y = C.input_variable(6), C.input_variable(3)
    z = layers()(x)
    trainer = C.Trainer(z, (C.cross_entropy_with_softmax(z, y), C.classification_error(z, y)), [learner(z.parameters)])
    return trainer, x, y


def trained(layers: Callable[[], Any], learner: Learners, rows: int = 512) -> tuple[Any, list[float], list[Any]]:
    """Several passes in minibatches of 50, the last one short: losses and errors, and the parameters."""
    trainer, x, y = made(layers, learner)
    numbers = []
    for start in [*range(0, rows, 50)] * 4:
        trainer.train_minibatch({x: X[start : start + 50], y: Y[start : start + 50]})
        numbers += [trainer.previous_minibatch_loss_average, trainer.previous_minibatch_evaluation_average]
    return trainer, numbers, [p.value for p in trainer.model.parameters]


@pytest.mark.parametrize(
    "learner",
    [
        momentum,
        lambda p: C.adam(p, 0.01, 0.9, gradient_clipping_threshold_per_sample=0.01, l2_regularization_weight=1e-3),
        lambda p: C.nesterov(p, 0.1, 0.9, l1_regularization_weight=1e-4),
        lambda p: C.fsadagrad(p, 0.01, 0.9),
        lambda p: C.adadelta(p, 1.0),
        lambda p: C.adagrad(p, 0.01, need_ave_multiplier=False),
        lambda p: C.rmsprop(p, 0.01, 0.9, 1.2, 0.7, 10, 1e-8),
        lambda p: C.rmsprop(p, 0.01, 0.9, 1.2, 0.7, 10, 1e-8, need_ave_multiplier=False),
    ],
)
@pytest.mark.parametrize("layers", [dense, normalised, dropping, scaled])
def test_weights_and_numbers_are_those_of_autograd(
    layers: Callable[[], Any], learner: Learners, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, numbers, weights = trained(layers, learner)
    monkeypatch.setattr(Gradients, "__call__", lambda self, *fed: None)
    _, wanted, others = trained(layers, learner)
    np.testing.assert_allclose(numbers, wanted, rtol=1e-6, atol=1e-7)
    for own, other in zip(weights, others, strict=True):
        np.testing.assert_allclose(own, other, rtol=1e-5, atol=1e-7)


def in_vectors(trainer: Any) -> bool:
    """Whether learners update the vectors that parameters are stored in."""
    return all(learner.home is not None for learner in trainer.parameter_learners)


def partly() -> Any:
    hidden, out = C.layers.Dense(8, activation=C.tanh), C.layers.Dense(3)
    return lambda x: out(C.stop_gradient(hidden(x)))


@pytest.mark.parametrize(
    ("learner", "layers", "wanted"),
    [
        (momentum, dense, True),
        (lambda p: C.adadelta(p, 1.0), normalised, True),
        (lambda p: C.rmsprop(p, 0.01, 0.9, 1.2, 0.7, 10, 1e-8), dense, False),
        (lambda p: C.sgd(p, 0.1, gaussian_noise_injection_std_dev=0.01), dense, False),
        (momentum, partly, False),
    ],
)
def test_learners_that_update_each_number_by_itself_update_vectors(
    learner: Learners, layers: Callable[[], Any], wanted: bool
) -> None:
    trainer, x, y = made(layers, learner)
    for start in range(0, 200, 50):
        trainer.train_minibatch({x: X[start : start + 50], y: Y[start : start + 50]})
    assert in_vectors(trainer) is wanted


def test_values_that_are_asked_for_and_gradients_of_ones_own_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def train() -> tuple[Any, list[Any]]:
        trainer, x, y = made(dense, momentum)
        learner, found = trainer.parameter_learners[0], []
        for k, start in enumerate([*range(0, 512, 64)] * 2):
            rows = {x: X[start : start + 64], y: Y[start : start + 64]}
            trainer.train_minibatch(rows, outputs=[trainer.loss_function] if k % 3 == 1 else None)
            found.append(in_vectors(trainer))
            if k == 10:
                learner.update({p: np.full(p.shape, 2.0, np.float32) for p in learner.parameters}, 64)
                found.append(in_vectors(trainer))
            if k == 13:
                learner.reset_smoothed_gradients()
        return found, [p.value for p in trainer.model.parameters]

    found, weights = train()
    assert [k for k, there in enumerate(found) if not there] == [11]
    monkeypatch.setattr(Gradients, "__call__", lambda self, *fed: None)
    alone, others = train()
    assert not any(alone)
    for own, other in zip(weights, others, strict=True):
        np.testing.assert_allclose(own, other, rtol=1e-5, atol=1e-7)


def test_a_checkpoint_of_vectors_is_one_of_parameters(tmp_path: Path) -> None:
    first, x, y = made(dense, momentum)
    rows = {x: X[:64], y: Y[:64]}
    for _ in range(4):
        first.train_minibatch(rows)
    first.save_checkpoint(str(tmp_path / "model"))
    assert in_vectors(first)
    kept = first.parameter_learners[0].state_dict()["kept"]["smoothed"]
    assert [tuple(each.shape) for each in kept] == [p.shape for p in first.parameter_learners[0].parameters]
    second, x2, y2 = made(dense, momentum)
    second.train_minibatch({x2: X[64:128], y2: Y[64:128]})
    second.restore_from_checkpoint(str(tmp_path / "model"))
    for trainer, fed in ((first, rows), (second, {x2: X[:64], y2: Y[:64]})):
        for _ in range(3):
            trainer.train_minibatch(fed)
    for own, other in zip(first.model.parameters, second.model.parameters, strict=True):
        np.testing.assert_array_equal(own.value, other.value)


def test_a_small_model_is_replayed_from_a_tape() -> None:
    trainer, _, _ = trained(dense, momentum)
    note = trainer._gradients.note
    assert "replayed from a tape" in note or "of an eager pass" in note  # proven, if not always quicker


def test_trainers_of_the_same_parameters_take_turns() -> None:
    first, x, y = made(dense, momentum)
    z = first.model
    loss = C.squared_error(C.softmax(z), y)
    second = C.Trainer(z, (loss, None), [C.sgd(z.parameters, 0.05)])
    losses = []
    for start in [*range(0, 512, 64)] * 3:
        for trainer in (first, second):
            before = z.parameters[0].value
            trainer.train_minibatch({x: X[start : start + 64], y: Y[start : start + 64]})
            losses.append(trainer.previous_minibatch_loss_average)
            assert not np.array_equal(before, z.parameters[0].value)
    assert losses[-2] < losses[0]
    assert losses[-1] < losses[1]


def test_a_loss_that_is_not_finite_goes_into_the_weights_as_it_did() -> None:
    trainer, x, y = made(dense, momentum)
    for _ in range(8):
        trainer.train_minibatch({x: X[:50], y: Y[:50]})
    assert trainer.train_minibatch({x: X[:50] * np.inf, y: Y[:50]})
    assert np.isnan(trainer.previous_minibatch_loss_average)
    assert np.isnan(trainer.model.parameters[0].value).any()


def in_sessions(sizes: int = 4, end: Any = None) -> list[Any]:
    """Parameters after several sessions, between which the first one's memory is exchanged."""
    trainer, x, y = made(dense, momentum)
    source = C.io.MinibatchSourceFromData({"x": X, "y": Y})
    streams = {x: source.streams["x"], y: source.streams["y"]}
    for k in range(1, sizes):
        session = C.training_session(trainer, source, 16, streams, max_samples=512 * k)
        if end is not None:
            session.on_minibatch_end = lambda: end(trainer)
        session.train()
        tensor = trainer.model.parameters[0].tensor
        tensor.data = tensor.data.clone() * 0.5
    return [p.value for p in trainer.model.parameters]


def halved_at_times(trainer: Any) -> bool:
    """Exchanges the memory of a parameter at some minibatches."""
    if trainer.total_number_of_samples_seen % 160 == 0:
        tensor = trainer.model.parameters[2].tensor
        tensor.data = tensor.data.clone() * 0.5
    return True


@pytest.mark.parametrize("end", [None, halved_at_times])
def test_what_changes_between_sessions_or_minibatches_is_seen(end: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    found = in_sessions(end=end)
    monkeypatch.setattr(Gradients, "__call__", lambda self, *fed: None)
    for here, there in zip(found, in_sessions(end=end), strict=True):
        np.testing.assert_array_equal(here, there)
