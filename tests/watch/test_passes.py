"""Callbacks of `validate` and `predict`: they are called batch by batch and learn where the pass stands."""

from typing import Any

import pytest
import torch
from kit.sums import X, Y, make

import headrace as hr


class Places(hr.Callback):
    def __init__(self) -> None:
        self.batches: list[Any] = []
        self.macrobatches: list[Any] = []

    def on_step_end(self, info: hr.Info) -> None:
        self.batches.append((info.batch, info.batches, info.samples))

    def on_macrobatch_end(self, info: hr.Info) -> None:
        self.macrobatches.append((info.macrobatch, info.macrobatches, info.batch))


@pytest.mark.parametrize("call", ["predict", "validate", "test"])
def test_callbacks_learn_where_the_pass_stands(call: str) -> None:
    places, trainer = Places(), make(macrobatch=16)
    data = X if call == "predict" else (X, Y)
    found = getattr(trainer, call)(data, callbacks=[places])
    plain = getattr(trainer, call)(data)
    assert torch.equal(found, plain) if call == "predict" else found == plain
    assert places.batches == [(k, 5, 8 * k) for k in range(1, 6)]
    assert places.macrobatches == [(1, 3, 2), (2, 3, 4), (3, 3, 5)]


def test_a_limit_and_several_sets_have_passes_of_their_own() -> None:
    places = Places()
    make().validate({"a": (X, Y), "b": (X[:9], Y[:9])}, limit=16, callbacks=[places])
    assert [place[0] for place in places.batches] == [1, 2, 1, 2]


def test_a_prediction_within_a_pass_is_not_part_of_it() -> None:
    places, trainer = Places(), make()
    within = hr.Lambda(on_step_end=lambda info: info.trainer.predict(X[:3]))
    trainer.predict(X, callbacks=[places, within])
    assert len(places.batches) == 5
    trainer.fit((X, Y), (X, Y), epochs=1, progress=False)
    assert len(places.batches) == 5


def test_requests_are_refused_in_a_pass() -> None:
    for ask in (lambda info: info.set_rate(1.0), lambda info: info.stop("enough"), lambda info: info.log({"a": 1.0})):
        with pytest.raises(hr.ConfigError, match="validate and predict make none"):
            make().predict(X, callbacks=[hr.Lambda(on_step_end=ask)])
    with pytest.raises(hr.ConfigError, match="callbacks= takes a list of Callback objects"):
        make().predict(X, callbacks=Places())  # type: ignore[arg-type]


def test_the_running_mean_is_there_at_every_macrobatch() -> None:
    means: list[float] = []
    each: list[float] = []
    look = hr.Lambda(
        on_step_end=lambda info: each.append(info.losses["total_loss"]),
        on_macrobatch_end=lambda info: means.append(info.means["total_loss"]),
    )
    options: dict[str, Any] = {"epochs": 2, "progress": False}
    history = make(macrobatch=16).fit((X, Y), callbacks=[look], **options)
    assert history.rows == make(macrobatch=16).fit((X, Y), **options).rows
    assert means[:3] == pytest.approx([sum(each[:k]) / k for k in (2, 4, 5)], rel=1e-5)
    assert means[2::3] == pytest.approx(history["train/loss"], rel=1e-6)
