"""Estimators that are trained on part after part, and that validate with rows of their own."""

import pickle
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import headrace as hr

DRAWN = np.random.default_rng(0)
X = DRAWN.normal(size=(48, 3)).astype("float32")
Y = (X[:, 0] > 0).astype(int)


def classifier(**options: Any) -> Any:
    from headrace.sklearn import Classifier  # scikit-learn takes a second to import

    return Classifier(**{"hidden": (4,), "batch_size": 16, "random_state": 0, "lr": 0.01, "device": "cpu", **options})


def by_hand(parts: list[slice]) -> nn.Module:
    """The loop that partial_fit is to be: a step of one optimizer for each part."""
    torch.manual_seed(int(np.random.RandomState(0).randint(2**31 - 1)))
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for part in parts:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(torch.tensor(X[part])), torch.tensor(Y[part])).backward()
        optimizer.step()
    return model


def test_partial_fit_is_the_loop_that_one_would_write_with_one_optimizer() -> None:
    parts = [slice(start, start + 16) for start in (0, 16, 32, 0)]
    found = classifier()
    for part in parts:
        found.partial_fit(X[part], Y[part], classes=[0, 1])
    for one, other in zip(found.module_.parameters(), by_hand(parts).parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-6)
    once = classifier().partial_fit(X[:16], Y[:16], classes=[0, 1])
    assert not torch.allclose(once.module_[0].weight, found.module_[0].weight)
    assert found.n_iter_ == 4


def test_a_pickled_estimator_goes_on_as_the_original_does() -> None:
    first = classifier().partial_fit(X[:16], Y[:16], classes=[0, 1])
    again = pickle.loads(pickle.dumps(first))
    rows = [each.partial_fit(X[16:], Y[16:]).predict_proba(X) for each in (first, again)]
    assert np.array_equal(*rows)


def test_partial_fit_goes_on_from_a_fit_and_a_fit_begins_anew() -> None:
    fitted = classifier(epochs=3).fit(X, Y)
    before = fitted.predict_proba(X)
    fitted.partial_fit(X, Y)
    assert not np.array_equal(fitted.predict_proba(X), before)
    assert np.array_equal(fitted.fit(X, Y).predict_proba(X), before)


def test_settings_that_change_between_two_parts_are_in_effect_from_the_next_one() -> None:
    found = classifier().partial_fit(X, Y, classes=[0, 1])
    before = found.predict_proba(X)
    found.set_params(lr=0.0).partial_fit(X, Y)
    assert np.array_equal(found.predict_proba(X), before)
    found.set_params(lr=0.01, optimizer=torch.optim.SGD).partial_fit(X, Y)
    assert not np.array_equal(found.predict_proba(X), before)


def test_parts_are_trained_with_the_options_of_a_fit_that_concern_them() -> None:
    options = {"fit_options": {"log_every": "1 step", "epochs": 7, "run": "nowhere"}}
    found = classifier(validation=(X, Y), **options).partial_fit(X, Y, classes=[0, 1])
    assert [row["step"] for row in found.history_] == [1, 2, 3]
    assert found.history_.last["val/loss"] > 0
    assert found.run_ is None
    with pytest.raises(TypeError, match="nonsense"):
        classifier(fit_options={"nonsense": 1}).partial_fit(X, Y, classes=[0, 1])


def test_a_scheduler_goes_on_from_part_to_part() -> None:
    halves = {"schedule": hr.Schedule(lambda optimizer: torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5))}
    found = classifier(trainer_options=halves)
    rates = [found.partial_fit(X, Y, classes=[0, 1]).history_.last["rate"] for _ in range(3)]
    assert rates == [0.01, 0.005, 0.0025]


def test_what_partial_fit_cannot_do_is_refused() -> None:
    with pytest.raises(ValueError, match="classes must be passed on the first call to partial_fit"):
        classifier().partial_fit(X, Y)
    with pytest.raises(ValueError, match="class_weight='balanced' needs all rows"):
        classifier(class_weight="balanced").partial_fit(X, Y, classes=[0, 1])
    begun = classifier().partial_fit(X, Y, classes=[0, 1])
    with pytest.raises(ValueError, match="2 is none of the classes: 0, 1"):
        begun.partial_fit(X, Y + 1)


def test_rows_given_to_validate_with_are_scored_and_none_is_held_out() -> None:
    names = np.array(["no", "yes"])
    plain = classifier(epochs=3).fit(X[:32], names[Y[:32]])
    given = classifier(epochs=3, validation=(X[32:], names[Y[32:]]), patience=5).fit(X[:32], names[Y[:32]])
    last = given.history_.rows[-1]
    assert last["samples"] == 3 * 32
    assert np.array_equal(given.predict_proba(X), plain.predict_proba(X)) or given.history_.best is not None
    scores = torch.tensor(classifier(epochs=3).fit(X[:32], names[Y[:32]]).predict_proba(X[32:])).log()
    expected = nn.functional.nll_loss(scores, torch.tensor(Y[32:])).item()
    assert last["val/loss"] == pytest.approx(expected, abs=1e-6)
