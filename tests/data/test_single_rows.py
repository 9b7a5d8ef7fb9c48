"""Batch normalisation and a last batch of a single row: an error, unless the model can do it."""

import warnings
from typing import Any

import pytest
import torch
from kit.sums import X, Y
from torch import nn

import headrace as hr


def normalised() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 1), nn.Flatten(0))


def trainer_of(model: nn.Module, **options: Any) -> hr.Trainer:
    return hr.Trainer(model, hr.MSE(), torch.optim.SGD(model.parameters(), 0.01), **{"batch_size": 8} | options)


ALONE = {
    "a row more than whole batches": (33, {}),
    "a row more than whole microbatches": (40, {"microbatch": 7}),
    "one of the last": (36, {"microbatch": 3}),
}


@pytest.mark.parametrize("how", ALONE)
def test_a_last_batch_that_cannot_be_normalised_is_refused_and_leaves_no_trace(how: str) -> None:
    rows, options = ALONE[how]
    model = normalised()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # statistics of microbatches are theirs
        trainer = trainer_of(model, **options)
    states = [{k: v.clone() for k, v in model.state_dict().items()}]
    keeps = hr.Lambda(on_step_end=lambda info: states.append({k: v.clone() for k, v in model.state_dict().items()}))
    with pytest.raises(hr.DataError, match=r"has a single row.*Choose another batch_size="):
        trainer.fit((X[:rows], Y[:rows]), epochs=2, progress=False, callbacks=[keeps])
    assert all(torch.equal(value, states[-1][name]) for name, value in model.state_dict().items())


def test_where_nobody_knows_the_rows_the_batch_itself_says_so() -> None:
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(X[:33], Y[:33]), batch_size=8)
    with pytest.raises(hr.DataError, match=r"this batch, .*, has a single row"):
        trainer_of(normalised(), batch_size=None).fit(loader, epochs=1, progress=False)
    with pytest.raises(hr.DataError, match=r"this batch, .*, has a single row"):
        trainer_of(normalised()).step((X[:1], Y[:1]))


def test_a_training_that_never_comes_to_its_last_batch_is_not_refused() -> None:
    for limits in list[Any]([{"steps": 4}, {"samples": 32}, {"epochs": 3, "steps": 4}]):
        trainer_of(normalised()).fit((X[:33], Y[:33]), progress=False, **limits)
    reader = hr.Reader(hr.ArrayTable({"x": X[:33], "y": Y[:33]}), cross_epochs=True)
    trainer_of(normalised()).fit(reader, epochs=2, progress=False)


def test_a_model_that_can_normalise_one_row_trains_as_a_loop_of_ones_own() -> None:
    def model() -> nn.Sequential:
        torch.manual_seed(0)
        layers = [nn.Unflatten(1, (1, 3)), nn.BatchNorm1d(1), nn.Dropout(0.2), nn.Flatten(), nn.Linear(3, 1)]
        return nn.Sequential(*layers, nn.Flatten(0))

    ours, raw = model(), model()
    torch.manual_seed(1)
    trainer_of(ours, order="none").fit((X[:33], Y[:33]), epochs=2, progress=False)
    torch.manual_seed(1)
    optimizer = torch.optim.SGD(raw.parameters(), 0.01)
    for x, y in 2 * [*zip(X[:33].split(8), Y[:33].split(8), strict=True)]:
        optimizer.zero_grad()
        nn.functional.mse_loss(raw(x), y).backward()
        optimizer.step()
    assert all(map(torch.equal, ours.state_dict().values(), raw.state_dict().values()))


def test_a_model_that_normalises_more_values_than_rows_is_trained_on_a_last_batch_of_one_row() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(0, 1), nn.BatchNorm1d(4), nn.Linear(4, 1), nn.Unflatten(0, (-1, 7)), nn.Flatten(1))
    x = torch.randn(33, 7, 4)
    history = trainer_of(model, batch_size=32).fit((x, x.mean(2)), epochs=1, progress=False)
    assert history.last["step"] == 2
