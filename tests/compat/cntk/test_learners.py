"""Update rules, schedules and clipping, each against numbers computed by hand."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import headrace.compat.cntk as C
from headrace.compat.cntk.learners import IGNORE, UnitType

G = np.array([[0.5, -2.0], [1.0, 4.0]])
W = np.array([[1.0, 2.0], [3.0, 4.0]])
SAMPLES = 4


def updated(make: Callable[[Any], Any], gradients: Any = (G, 2 * G), samples: int = SAMPLES) -> Any:
    weight = C.parameter(init=W)
    learner = make([weight])
    for gradient in gradients:
        assert learner.update({weight: gradient}, samples)
    return weight.value


def close(found: Any, wanted: Any) -> None:
    np.testing.assert_allclose(found, wanted, rtol=2e-6, atol=1e-7)


@pytest.mark.parametrize(
    ("rate", "size", "factor"),
    [
        (C.learning_rate_schedule(0.1, UnitType.sample), None, 0.1),
        (C.learning_rate_schedule(0.1, UnitType.minibatch), None, 0.1 / SAMPLES),
        (C.learning_parameter_schedule_per_sample(0.1), None, 0.1),
        (C.learning_parameter_schedule(0.1, minibatch_size=8), None, 0.1 / 8),
        (0.1, None, 0.1 / SAMPLES),
        (0.1, 8, 0.1 / 8),
        (0.1, IGNORE, 0.1 / SAMPLES),  # of the mean gradient
        (C.learning_parameter_schedule(0.1, minibatch_size=8), IGNORE, 0.1 * (SAMPLES / 8) / SAMPLES),
    ],
)
def test_a_rate_is_of_a_sample_of_a_minibatch_or_of_a_reference_size(rate: Any, size: Any, factor: float) -> None:
    close(updated(lambda p: C.sgd(p, rate, minibatch_size=size), [G]), W - factor * G)


def test_the_mean_gradient_is_taken_where_that_is_asked_for() -> None:
    close(updated(lambda p: C.sgd(p, 0.1, use_mean_gradient=True), [G]), W - 0.1 * G / SAMPLES)
    per_sample = C.learning_rate_schedule(0.1, UnitType.sample)
    close(updated(lambda p: C.sgd(p, per_sample, use_mean_gradient=True), [G]), W - 0.1 * G / SAMPLES)


@pytest.mark.parametrize("unit_gain", [True, False])
@pytest.mark.parametrize(
    ("momentum", "beta"),
    [
        (C.momentum_schedule(0.9), 0.9),
        (C.momentum_schedule(0.9, minibatch_size=2), 0.9**2),
        (C.momentum_schedule_per_sample(0.9), 0.9**4),
        (C.momentum_as_time_constant_schedule(10), math.exp(-4 / 10)),
        (0.9, 0.9),
    ],
)
def test_momentum_follows_the_size_of_the_minibatch(momentum: Any, beta: float, unit_gain: bool) -> None:
    rate = C.learning_parameter_schedule_per_sample(0.1)
    gain = 1 - beta if unit_gain else 1.0
    first = gain * 0.1 * G
    second = beta * first + gain * 0.1 * 2 * G
    close(updated(lambda p: C.momentum_sgd(p, rate, momentum, unit_gain)), W - first - second)


def test_the_rate_is_within_the_velocity() -> None:
    rates = C.learning_parameter_schedule_per_sample([0.1, 1.0], epoch_size=SAMPLES)
    first = 0.1 * G
    close(updated(lambda p: C.momentum_sgd(p, rates, 0.5, False)), W - first - (0.5 * first + 2 * G))


@pytest.mark.parametrize("unit_gain", [True, False])
def test_nesterovs_momentum_looks_ahead(unit_gain: bool) -> None:
    rate, beta = C.learning_parameter_schedule_per_sample(0.1), 0.5
    gain = 0.5 if unit_gain else 1.0
    w, v = W, np.zeros_like(W)
    for g in (G, 2 * G):
        v = beta * v + 0.1 * gain * g
        w = w - beta * v - 0.1 * gain * g
    close(updated(lambda p: C.nesterov(p, rate, C.momentum_schedule(beta), unit_gain)), w)


@pytest.mark.parametrize("adamax", [False, True])
@pytest.mark.parametrize("unit_gain", [False, True])
def test_adam_is_that_of_cntk(adamax: bool, unit_gain: bool) -> None:
    rate = C.learning_parameter_schedule_per_sample(0.01)
    w, m, v, beta, keep = tuple[Any, ...]((W, 0.0, 0.0, 0.9, 0.99))
    for t, g in enumerate((G, 2 * G), 1):
        v = np.maximum(keep * v, abs(g)) if adamax else keep * v + (1 - keep) * g * g
        m = beta * m + (1 - beta if unit_gain else 1.0) * g
        unbiased = 1 / (1 - beta**t) * (1 if adamax else math.sqrt(1 - keep**t))
        w = w - 0.01 * unbiased * m / ((v if adamax else np.sqrt(v)) + 1e-8)
    momenta = C.momentum_schedule(beta), unit_gain, C.momentum_schedule(keep)
    close(updated(lambda p: C.adam(p, rate, *momenta, adamax=adamax)), w)


def test_the_variance_momentum_of_adam_is_of_a_sample_by_default() -> None:
    w, m, v, beta, keep = tuple[Any, ...]((W, 0.0, 0.0, 0.9, 0.9999986111120757**SAMPLES))
    for t, g in enumerate((G, 2 * G), 1):
        v, m = keep * v + (1 - keep) * g * g, beta * m + (1 - beta) * g
        w = w - 0.01 / SAMPLES * math.sqrt(1 - keep**t) / (1 - beta**t) * m / (np.sqrt(v) + 1e-8)
    np.testing.assert_allclose(updated(lambda p: C.adam(p, 0.01, 0.9)), w, rtol=1e-5)


def test_fsadagrad_scales_by_the_samples_that_count() -> None:
    w, m, v, count, beta, keep = W, 0.0, 0.0, 0.0, 0.9, 0.99
    for g in (G, 2 * G):
        count = keep * count + (1 - keep) * SAMPLES
        v = keep * v + (1 - keep) * g * g
        m = beta * m + (1 - beta) * g * np.minimum(math.sqrt(count) / np.sqrt(v), 10)
        w = w - 0.01 * m
    rate = C.learning_parameter_schedule_per_sample(0.01)
    make = lambda p: C.fsadagrad(p, rate, C.momentum_schedule(beta), True, C.momentum_schedule(keep))  # noqa: E731
    close(updated(make), w)


@pytest.mark.parametrize("average", [True, False])
def test_adagrad_divides_by_the_mean_of_its_factors(average: bool) -> None:
    w, total = W, np.zeros_like(W)
    for g in (G, 2 * G):
        total = total + g * g
        root = np.sqrt(total + 1e-16)
        w = w - 0.1 * g / root / ((1 / root).mean() if average else 1)
    rate = C.learning_parameter_schedule_per_sample(0.1)
    close(updated(lambda p: C.adagrad(p, rate, need_ave_multiplier=average)), w)


@pytest.mark.parametrize("average", [True, False])
def test_rmsprop_has_steps_that_grow_while_the_sign_stays(average: bool) -> None:
    gamma, inc, dec, most, least = 0.9, 1.2, 0.7, 10.0, 1e-8
    gradients = (G, 2 * G, -G)
    w, squares, steps, signs = W, G * G, np.full_like(W, 0.02), np.zeros_like(W)
    for g in gradients:
        squares = gamma * squares + (1 - gamma) * g * g
        steps = np.where(signs * np.sign(g) > 0, np.minimum(steps * inc, most), np.maximum(steps * dec, least))
        signs = np.sign(g)
        factor = steps / np.sqrt(squares + 1e-6)
        w = w - 0.1 * g * factor / (factor.mean() if average else 1)
    rate = C.learning_parameter_schedule_per_sample(0.1)
    close(updated(lambda p: C.rmsprop(p, rate, gamma, inc, dec, most, least, average), gradients), w)
    with pytest.raises(ValueError, match=r"inc= is greater than 1, got 0.1"):
        C.rmsprop([C.parameter(init=W)], rate, 0.1, 0.1, 0.1, 0.1, 0.01)


def test_adadelta_needs_no_rate() -> None:
    w, squares, changes = W, np.zeros_like(W), np.zeros_like(W)
    for g in (G, 2 * G):
        squares = 0.95 * squares + 0.05 * g * g
        change = -np.sqrt(changes + 1e-8) / np.sqrt(squares + 1e-8) * g
        changes = 0.95 * changes + 0.05 * change**2
        w = w + change
    close(updated(C.adadelta), w)


# --- clipping and priors -------------------------------------------------------------------------------------


def test_gradients_are_clipped_to_a_threshold_for_each_sample() -> None:
    rate = C.learning_parameter_schedule_per_sample(0.1)
    clipped = np.clip(G, -0.25 * SAMPLES, 0.25 * SAMPLES)
    close(updated(lambda p: C.sgd(p, rate, gradient_clipping_threshold_per_sample=0.25), [G]), W - 0.1 * clipped)
    scaled = G * min(1, 0.25 * SAMPLES / np.linalg.norm(G))
    options = {"gradient_clipping_threshold_per_sample": 0.25, "gradient_clipping_with_truncation": False}
    close(updated(lambda p: C.sgd(p, rate, **options), [G]), W - 0.1 * scaled)
    mean = np.clip(G / SAMPLES, -0.25, 0.25)
    options = {"gradient_clipping_threshold_per_sample": 0.25, "minibatch_size": IGNORE}
    close(updated(lambda p: C.sgd(p, 0.1, **options), [G]), W - 0.1 * mean)


def test_priors_draw_weights_to_zero_sample_by_sample() -> None:
    rate = C.learning_parameter_schedule_per_sample(0.1)
    close(updated(lambda p: C.sgd(p, rate, l2_regularization_weight=0.5), [G]), W - 0.1 * (G + 0.5 * SAMPLES * W))
    stepped = W - 0.1 * G
    edge = 0.1 * 0.75 * SAMPLES
    soft = np.sign(stepped) * np.maximum(abs(stepped) - edge, 0)
    close(updated(lambda p: C.sgd(p, rate, l1_regularization_weight=0.75), [G]), soft)


def test_noise_has_the_deviation_that_is_asked_for() -> None:
    weight = C.parameter((200, 200))
    learner = C.sgd([weight], 0.1, gaussian_noise_injection_std_dev=0.5)
    learner.update({weight: np.zeros((200, 200), np.float32)}, 1)
    assert abs(weight.value.std() - 0.5) < 0.02
    assert abs(weight.value.mean()) < 0.02


# --- schedules -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("schedule", "values"),
    [
        (C.learning_rate_schedule(0.2, UnitType.sample), [0.2] * 4),
        (C.learning_rate_schedule([0.2, 0.4], UnitType.sample, 5), [0.2] * 5 + [0.4] * 20),
        (
            C.learning_rate_schedule([(3, 0.2), (2, 0.4), (1, 0.8)], UnitType.sample, 5),
            [0.2] * 15 + [0.4] * 10 + [0.8] * 9,
        ),
        (C.momentum_schedule([0.99, 0.9], 3), [0.99] * 3 + [0.9] * 3),
        (C.momentum_schedule([(2, 0.99), (3, 0.88), (0, 0.77)]), [0.99] * 2 + [0.88] * 3 + [0.77] * 2),
        (C.minibatch_size_schedule(32), [32, 32]),
        (C.minibatch_size_schedule([32, 64], 3), [32] * 3 + [64] * 3),
    ],
)
def test_a_schedule_has_a_value_for_every_count(schedule: Any, values: list[float]) -> None:
    assert [schedule[k] for k in range(len(values))] == values


def test_sizes_change_where_they_are_said_to() -> None:
    sizes = C.minibatch_size_schedule([(12, 32), (15, 64), (1, 128)], 100)
    assert [sizes[k] for k in (0, 1199, 1200, 2699, 2700, 5000)] == [32, 32, 64, 64, 128, 128]
    with pytest.raises(ValueError, match="epoch_size is ignored"):
        C.minibatch_size_schedule(32, 100)


def test_a_time_constant_is_a_momentum_of_a_sample() -> None:
    assert C.momentum_as_time_constant_schedule(2500)[0] == math.exp(-1 / 2500)
    found = C.momentum_as_time_constant_schedule([980, 520])
    assert [found[0], found[1]] == [math.exp(-1 / 980), math.exp(-1 / 520)]


def test_the_rate_at_hand_follows_the_samples_and_may_be_reset() -> None:
    weight = C.parameter(init=1.0, shape=(1,))
    learner = C.sgd([weight], C.learning_rate_schedule([0.1] * 50 + [0.2] * 50, UnitType.sample, 1))
    assert learner.learning_rate() == 0.1
    learner.update({weight: np.array([2.0], np.float32)}, 100)
    assert learner.learning_rate() == 0.2
    assert weight.value < 1
    learner.reset_learning_rate(C.learning_rate_schedule([0.3] * 50 + [0.4] * 50, UnitType.sample, 1))
    assert learner.learning_rate() == 0.3
    learner.update({weight: np.array([2.0], np.float32)}, 100)
    assert learner.learning_rate() == 0.4
    learner.reset_learning_rate(C.learning_rate_schedule([1, 2, 3], UnitType.minibatch))
    assert learner.learning_rate() == 1.0


def test_a_rate_of_zero_ends_learning_and_counts_nothing() -> None:
    weight = C.parameter(init=W)
    learner = C.sgd([weight], C.learning_parameter_schedule_per_sample([0.1, 0.0], epoch_size=4))
    assert learner.update({weight: G}, 4) is True
    before = weight.value
    assert learner.update({weight: G}, 4) is False
    assert np.array_equal(weight.value, before)
    assert learner.total_number_of_samples_seen == 4


def test_means_of_gradients_have_a_default_that_may_be_set() -> None:
    def step(**options: Any) -> Any:
        return updated(lambda p: C.sgd(p, C.learning_parameter_schedule_per_sample(0.1), **options))

    plain, means = step(), step(use_mean_gradient=True)
    assert not np.allclose(plain, means)
    C.learners.set_default_use_mean_gradient_value(True)
    try:
        close(step(), means)
        close(step(use_mean_gradient=False), plain)
    finally:
        C.learners.set_default_use_mean_gradient_value(False)
    close(step(), plain)


def test_unit_gain_has_a_default_that_may_be_set() -> None:
    assert C.default_unit_gain_value()
    C.learners.set_default_unit_gain_value(False)
    try:
        rate = C.learning_parameter_schedule_per_sample(0.1)
        close(updated(lambda p: C.momentum_sgd(p, rate, 0.5), [G]), W - 0.1 * G)
    finally:
        C.learners.set_default_unit_gain_value(True)


def test_learners_without_or_with_doubled_parameters_are_refused() -> None:
    weight = C.parameter(init=W)
    for given, said in (
        ([], "at least one"),
        ([weight, weight], "once each"),
        ([C.input_variable(1)], "updates parameters"),
    ):
        with pytest.raises(ValueError, match=said):
            C.sgd(given, 0.1)
    with pytest.raises(ValueError, match="a training parameter is a number"):
        C.sgd([weight], "fast")
