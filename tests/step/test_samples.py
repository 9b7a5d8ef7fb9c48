"""A list of samples is read alike by `step`, `predict` and `validate`; a batch is its fields by name."""

from collections import namedtuple
from typing import Any

import pytest
import torch
from kit.sums import X, Y, make

import headrace as hr

Row = namedtuple("Row", ["x", "y"])
DICTS = [{"x": x, "y": float(y)} for x, y in zip(X, Y, strict=True)]
LISTS: dict[str, list[Any]] = {
    "dicts": DICTS,
    "tuples": [(each["x"], each["y"]) for each in DICTS],
    "named tuples": [Row(**each) for each in DICTS],
    "arrays": [{"x": each["x"].numpy(), "y": each["y"]} for each in DICTS],
}


@pytest.mark.parametrize("kind", LISTS)
def test_a_list_of_samples_is_what_its_rows_are_together(kind: str) -> None:
    ours, other = make(), make()
    assert ours.step(LISTS[kind]) == other.step((X, Y))
    assert torch.equal(ours.predict(LISTS[kind]), other.predict(X))
    assert ours.validate(LISTS[kind]) == other.validate((X, Y))
    assert ours.test(LISTS[kind]) == other.test((X, Y))


def test_samples_need_no_target_to_be_predicted() -> None:
    trainer = make()
    assert torch.equal(trainer.predict([{"x": x} for x in X[:5]]), trainer.predict(X[:5]))
    assert torch.equal(trainer.predict([(x,) for x in X[:5]]), trainer.predict(X[:5]))


def test_sequences_of_samples_may_differ_in_length() -> None:
    class Lengths(torch.nn.Module):
        def forward(self, words: hr.Ragged) -> torch.Tensor:
            return words.host_offsets.diff().float()

    model = torch.nn.ModuleList([Lengths(), torch.nn.Linear(1, 1)])
    model.forward = lambda words: model[0](words)  # type: ignore[method-assign]
    trainer = hr.Trainer(model, hr.MSE(), torch.optim.SGD(model.parameters(), 0.1), device="cpu")
    assert trainer.predict([{"words": [1, 2, 3]}, {"words": [4]}]).tolist() == [3, 1]


def test_a_list_of_batches_is_told_from_samples_once_the_streams_are_known() -> None:
    trainer = make()
    trainer.fit((X, Y), epochs=1, progress=False)
    batches: list[Any] = [{"x": X[:8], "y": Y[:8]}, {"x": X[8:], "y": Y[8:]}]
    for given in (batches, [tuple(batch.values()) for batch in batches]):
        assert torch.equal(trainer.predict(given), trainer.predict(X))
    assert torch.equal(trainer.predict(LISTS["dicts"]), trainer.predict(X))


def test_samples_that_are_none_are_refused() -> None:
    for use in (make().step, make().predict, make().validate):
        with pytest.raises(hr.DataError, match=r"at least one row|empty: there is nothing to read"):
            use([])
        with pytest.raises(hr.DataError, match=r"sample 1 has the keys \['x'\], sample 0 has \['x', 'y'\]"):
            use([DICTS[0], {"x": X[1]}])
        with pytest.raises(hr.DataError, match=r"stream 'y': sample 1 holds text"):
            use([DICTS[0], {"x": X[1], "y": "one"}])
        with pytest.raises(hr.DataError, match=r"sample 0 is a tuple of 3 parts, and \(x, y\) has two. Name them"):
            use([(X[0], 1.0, 2.0)])
    with pytest.raises(hr.DataError, match="the val data: sample 1 has the keys"):
        make().validate([DICTS[0], {"x": X[1]}])


def test_a_batch_is_its_fields_by_name() -> None:
    batch = hr.Batch({"x": X, "y": Y})
    assert list(batch) == ["x", "y"]
    assert dict.fromkeys(batch) == {"x": None, "y": None}
    assert "x" in batch
    for unpack in (lambda: [y for x, y in [batch]], lambda: [rest for _, *rest in [batch]]):
        with pytest.raises(hr.DataError, match=r"a batch is not unpacked.*x, y = batch\['x'\], batch\['y'\]"):
            unpack()
