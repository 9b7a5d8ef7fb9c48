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
from kit.small import Parts, data, same
from torch import Tensor, nn

import headrace as hr

DATA = X, Y = data()

Ends = Callable[[hr.Trainer], Any]


class Fails(hr.Callback):
    def on_step_end(self, info: hr.Info) -> None:
        if info.step == 3:
            raise KeyError("on purpose")


def fails(trainer: hr.Trainer) -> None:
    with pytest.raises(KeyError):
        small.fit(trainer, callbacks=[Fails()])


def releases(trainer: hr.Trainer) -> None:
    trainer.step(DATA)
    trainer.release()


ENDS: list[Ends] = [small.fit, fails, lambda trainer: small.drive(trainer, until=2), releases]
OPTIMIZERS = {"Adam": {}, "SGD": {"momentum": 0.9}, "RMSprop": {"momentum": 0.9}, "AdamW": {}}
PAIRS = [*zip(ENDS, OPTIMIZERS, strict=True), *zip(ENDS, reversed(OPTIMIZERS), strict=True)]


def optimizer(kind: str, of: nn.Module) -> torch.optim.Optimizer:
    made: torch.optim.Optimizer = getattr(torch.optim, kind)(of.parameters(), lr=0.01, **OPTIMIZERS[kind])
    return made


def trained(end: Ends = small.fit, kind: str = "Adam") -> hr.Trainer:
    model = small.model(norm=True)
    trainer = small.trainer(model, optimizer=optimizer(kind, model))
    end(trainer)
    return trainer


def by_hand(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    model.train()
    for _ in range(3):
        optimizer.zero_grad()
        F.cross_entropy(model(X), Y).backward()
        optimizer.step()


def check_memory(tensors: list[Tensor]) -> None:
    """Each of these tensors has memory of its own, and no more than it needs."""
    assert all(t.untyped_storage().nbytes() == t.nbytes and t.storage_offset() == 0 for t in tensors)
    assert len({t.untyped_storage().data_ptr() for t in tensors}) == len(tensors)


@pytest.mark.parametrize(("end", "kind"), PAIRS)
def test_parameters_and_the_state_of_the_optimizer_are_torchs_ordinary_ones(end: Ends, kind: str) -> None:
    trainer = trained(end, kind)
    params, state = [*trainer.model.parameters()], trainer.optimizer.state
    check_memory([*params, *trainer.model.buffers()])
    assert all(type(p) is nn.Parameter and p.is_leaf and p.requires_grad for p in params)
    (group,) = trainer.optimizer.param_groups
    assert all(p is q for p, q in zip(group["params"], params, strict=True))
    assert set(map(id, state)) == set(map(id, params))
    for name in state[params[0]]:
        check_memory([state[param][name] for param in params])
    saved = trainer.optimizer.state_dict()
    assert list(saved["state"]) == saved["param_groups"][0]["params"] == list(range(len(params)))
    for k, param in enumerate(params):
        shapes = {v.shape for v in saved["state"][k].values() if isinstance(v, Tensor) and v.dim()}
        assert shapes == {param.shape}
    twin = copy.deepcopy(trainer.model)
    fresh = optimizer(kind, twin)
    fresh.load_state_dict(copy.deepcopy(saved))  # torch keeps the tensors that it is given
    by_hand(trainer.model, trainer.optimizer)
    by_hand(twin, fresh)
    assert same(trainer.model, twin)


def test_other_tools_take_the_model(tmp_path: Path) -> None:
    trainer, other = trained(), small.model(norm=True)
    safetensors.torch.save_model(trainer.model, str(tmp_path / "model.safetensors"))
    assert safetensors.torch.load_model(other, str(tmp_path / "model.safetensors")) == (set(), [])  # type: ignore[comparison-overlap]
    assert same(trainer.model, other)
    expected, model = trainer.predict(X), trainer.model.eval()
    torch.testing.assert_close(model(X).detach(), expected)
    torch.testing.assert_close(pickle.loads(pickle.dumps(model))(X).detach(), expected)
    exported = torch.export.export(model, (X,), dynamic_shapes=({0: torch.export.Dim("rows", min=2)},))
    torch.testing.assert_close(exported.module()(X[:7]), model(X[:7]))


def test_training_goes_on_after_the_owner_has_trained_loaded_or_converted() -> None:
    trainer = trained()
    by_hand(trainer.model, trainer.optimizer)
    trainer.optimizer.load_state_dict(copy.deepcopy(trainer.optimizer.state_dict()))
    trainer.model.load_state_dict(small.model(norm=True).state_dict(), assign=True)
    trainer.optimizer.param_groups[0]["params"] = list(trainer.model.parameters())
    before = copy.deepcopy(trainer.model)
    small.fit(trainer, epochs=1)
    assert not same(trainer.model, before)


def test_a_trainer_is_copied_or_pickled_after_a_validation_whose_passes_were_recorded() -> None:
    trainer = small.trainer(small.model(), tape=True)
    trainer.validate(small.data(200), batch_size=20)
    assert "replayed" in trainer.updates.answers(next(iter(trainer.objectives.values())), False).note
    twins = [copy.deepcopy(trainer), pickle.loads(pickle.dumps(trainer))]
    small.fit(trainer)
    for twin in twins:
        small.fit(twin)
        assert same(trainer, twin)


def test_a_second_training_on_columns_in_another_order_is_not_taken_for_the_same_in_silence() -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(X[:, :2].numpy(), columns=["a", "b"])
    made = small.trainer(nn.Linear(2, 3))
    for _ in range(2):
        small.fit(made, (frame, Y.numpy()), epochs=1)
    with pytest.warns(UserWarning, match="'x' is made of the columns b, a, and the model was trained on them in the o"):
        small.fit(made, (frame[["b", "a"]], Y.numpy()), epochs=1)


@pytest.mark.parametrize("run", [True, False])
def test_the_best_weights_come_with_what_modules_save_beside_them(run: bool, tmp_path: Path) -> None:
    class Heats(nn.Module):
        """Gets worse, by a number and a tensor that are no weights."""

        def __init__(self) -> None:
            super().__init__()
            self.inner, self.heat = small.model(), dict[str, Any](by=1.0, of=torch.ones(3))

        def forward(self, x: Tensor) -> Tensor:
            if self.training:
                self.heat = {"by": self.heat["by"] * 1.5, "of": self.heat["of"] + 1}
            return self.inner(x) * self.heat["by"] * self.heat["of"]  # type: ignore[no-any-return]

        def get_extra_state(self) -> dict[str, Any]:
            return dict(self.heat)

        def set_extra_state(self, state: dict[str, Any]) -> None:
            self.heat = state

    trainer = small.trainer(Heats())
    best = [hr.BestModel("val/loss", restore=True)]
    history = trainer.fit(DATA, DATA, epochs=4, callbacks=best, run=tmp_path / "run" if run else None, progress=False)
    losses = history["val/loss"]
    assert min(losses) < losses[-1], "the last is not the best"
    assert trainer.validate(DATA)["val/loss"] == min(losses)
    if run:
        hr.load_weights(model := Heats(), tmp_path / "run")
        assert small.trainer(model).validate(DATA)["val/loss"] == min(losses)


def test_outputs_without_an_entry_for_each_row_are_said() -> None:
    def last_state(self: Any, x: Tensor) -> tuple[Tensor, Tensor]:
        outputs, (state, _) = self.lstm(x)
        return outputs[:, -1], state  # whose rows are not in front

    model = Parts(last_state, lstm=nn.LSTM(3, 2, num_layers=2, batch_first=True))
    trainer = hr.Trainer(model, lambda outputs, y: outputs[0].sum(), batch_size=4)
    with pytest.warns(UserWarning, match=r"an output of shape \[4, 4, 2\] .* for each of the 8 rows"):
        outputs, _ = trainer.predict(torch.randn(8, 5, 3))
    assert outputs.shape == (8, 2)
