"""After `fit` the model and the optimizer are ordinary: they copy, pickle, save, export, convert and train by hand."""

import copy
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
import torch.nn.functional as F
from kit import small
from kit.small import data, same
from torch import Tensor, nn

import headrace as hr

DATA = X, Y = data()

Ends = Callable[[hr.Trainer], Any]


class Fails(hr.Callback):
    def on_step_end(self, info: hr.Info) -> None:
        if info.step == 3:
            raise KeyError("on purpose")


def fits(trainer: hr.Trainer) -> None:
    trainer.fit(DATA, epochs=2, progress=False)


def fails(trainer: hr.Trainer) -> None:
    with pytest.raises(KeyError):
        trainer.fit(DATA, epochs=2, progress=False, callbacks=[Fails()])


def breaks(trainer: hr.Trainer) -> None:
    for info in trainer.steps(DATA):
        if info.step == 2:
            break


def releases(trainer: hr.Trainer) -> None:
    trainer.step(DATA)
    trainer.release()


ENDS = [fits, fails, breaks, releases]


def trained(end: Ends = fits, make: Callable[[Any], torch.optim.Optimizer] = torch.optim.Adam) -> hr.Trainer:
    model = small.model(norm=True)
    trainer = hr.Trainer(model, hr.CrossEntropy(), make(model.parameters()), batch_size=16)
    end(trainer)
    return trainer


def by_hand(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int = 3) -> None:
    model.train()
    for _ in range(steps):
        optimizer.zero_grad()
        F.cross_entropy(model(X), Y).backward()
        optimizer.step()


@pytest.mark.parametrize("end", ENDS)
def test_every_parameter_has_memory_of_its_own(end: Ends) -> None:
    model = trained(end).model
    tensors = [*model.parameters(), *model.buffers()]
    assert all(t.untyped_storage().nbytes() == t.nbytes and t.storage_offset() == 0 for t in tensors)
    assert len({t.untyped_storage().data_ptr() for t in tensors}) == len(tensors)
    assert all(type(p) is nn.Parameter and p.is_leaf and p.requires_grad for p in model.parameters())


@pytest.mark.parametrize("end", ENDS)
def test_the_optimizer_holds_the_parameters_and_a_state_for_each(end: Ends) -> None:
    trainer = trained(end)
    params = list(trainer.model.parameters())
    (group,) = trainer.optimizer.param_groups
    assert all(p is q for p, q in zip(group["params"], params, strict=True))
    assert set(map(id, trainer.optimizer.state)) == set(map(id, params))
    for param in params:
        state = trainer.optimizer.state[param]
        assert state["exp_avg"].shape == state["exp_avg_sq"].shape == param.shape
        assert state["exp_avg"].untyped_storage().nbytes() == param.nbytes
    states = [state["step"] for state in trainer.optimizer.state.values()]
    assert len({step.data_ptr() for step in states}) == len(params)


@pytest.mark.parametrize("end", ENDS)
def test_torch_saves_no_more_than_the_weights_and_loads_them_safely(end: Ends, tmp_path: Path) -> None:
    model = trained(end).model
    torch.save(model.state_dict(), tmp_path / "ours.pt")
    torch.save(small.model(norm=True).state_dict(), tmp_path / "fresh.pt")
    assert abs((tmp_path / "ours.pt").stat().st_size - (tmp_path / "fresh.pt").stat().st_size) < 200
    other = small.model(norm=True)
    other.load_state_dict(torch.load(tmp_path / "ours.pt", weights_only=True))
    assert same(model, other)


def test_safetensors_saves_the_model_and_its_state(tmp_path: Path) -> None:
    model, other = trained().model, small.model(norm=True)
    safetensors.torch.save_model(model, str(tmp_path / "model.safetensors"))
    assert safetensors.torch.load_model(other, str(tmp_path / "model.safetensors")) == (set(), [])
    assert same(model, other)


def test_the_model_exports() -> None:
    model = trained().model.eval()
    rows = torch.export.Dim("rows", min=2)
    exported = torch.export.export(model, (X,), dynamic_shapes=({0: rows},))
    torch.testing.assert_close(exported.module()(X[:7]), model(X[:7]))


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("name", ["SGD", "Adam", "AdamW", "RMSprop"])
def test_the_state_of_the_optimizer_is_keyed_as_usual_and_loads_into_a_fresh_one(end: Ends, name: str) -> None:
    options = {"lr": 0.01, "momentum": 0.9} if name in ("SGD", "RMSprop") else {"lr": 0.01}

    def make(params: Any) -> torch.optim.Optimizer:
        return getattr(torch.optim, name)(params, **options)

    trainer = trained(end, make)
    saved = trainer.optimizer.state_dict()
    params = list(trainer.model.parameters())
    assert list(saved["state"]) == saved["param_groups"][0]["params"] == list(range(len(params)))
    for k, param in enumerate(params):
        shapes = {v.shape for v in saved["state"][k].values() if isinstance(v, Tensor) and v.dim()}
        assert shapes == {param.shape}
    twin = copy.deepcopy(trainer.model)
    fresh = make(twin.parameters())
    fresh.load_state_dict(copy.deepcopy(saved))  # torch keeps the tensors that it is given
    by_hand(trainer.model, trainer.optimizer)
    by_hand(twin, fresh)
    assert same(trainer.model, twin)


def test_training_goes_on_after_the_owner_has_trained_loaded_or_converted() -> None:
    trainer = trained()
    by_hand(trainer.model, trainer.optimizer)
    trainer.optimizer.load_state_dict(copy.deepcopy(trainer.optimizer.state_dict()))
    trainer.model.load_state_dict(small.model(norm=True).state_dict(), assign=True)
    trainer.optimizer.param_groups[0]["params"] = list(trainer.model.parameters())
    before = copy.deepcopy(trainer.model)
    trainer.fit(DATA, epochs=1, progress=False)
    assert not same(trainer.model, before)
    test_every_parameter_has_memory_of_its_own(lambda t: t.fit(DATA, epochs=1, progress=False))


def test_predictions_are_those_of_the_model_on_its_own() -> None:
    trainer = trained()
    expected = trainer.predict(X)
    torch.testing.assert_close(trainer.model.eval()(X).detach(), expected)
    torch.testing.assert_close(pickle.loads(pickle.dumps(trainer.model))(X).detach(), expected)


def test_a_second_training_on_columns_in_another_order_is_not_taken_for_the_same_in_silence() -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(torch.randn(40, 2).numpy(), columns=["a", "b"])
    model = nn.Linear(2, 2)
    made = hr.Trainer(model, hr.CrossEntropy(), torch.optim.SGD(model.parameters(), lr=0.1), batch_size=10)
    y = torch.arange(40).numpy() % 2
    for _ in range(2):
        made.fit((frame, y), epochs=1, progress=False)
    with pytest.warns(UserWarning, match="'x' is made of the columns b, a, and the model was trained on them in the o"):
        made.fit((frame[["b", "a"]], y), epochs=1, progress=False)
