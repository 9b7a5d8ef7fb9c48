"""Settings that cannot work are refused by an error that says what was expected and what came."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import headrace as hr

ROWS = 24
X = torch.randn(ROWS, 4, generator=torch.Generator().manual_seed(1))
Y = torch.arange(ROWS) % 3
DATA = (X, Y)

Facts = list[str]


class Watcher(hr.Callback):
    pass


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def refused(attempt: Callable[[], Any], kind: type[hr.HeadraceError], facts: Facts) -> None:
    with pytest.raises(kind) as caught:
        attempt()
    assert type(caught.value) is kind
    assert isinstance(caught.value, ValueError)
    message = str(caught.value)
    assert [fact for fact in facts if fact not in message] == [], message


def untouched(model: nn.Module, optimizer: torch.optim.Optimizer) -> bool:
    """As `network` made it, in memory of its own, with an optimizer that knows it and has done nothing."""
    same = all(map(torch.equal, model.parameters(), network().parameters()))
    ordinary = all(p.untyped_storage().nbytes() == p.nbytes and p.grad is None for p in model.parameters())
    held = [p for group in optimizer.param_groups for p in group["params"]]
    known = all(p is q for p, q in zip(held, model.parameters(), strict=True))
    return same and ordinary and known and not optimizer.state and all(m.training for m in model.modules())


TRAINER: list[tuple[dict[str, Any], Facts]] = [
    *[({"batch_size": value}, ["batch_size=", repr(value)]) for value in (0, -1, True, 1.5, "8")],
    *[({"microbatch": value}, ["microbatch=", repr(value)]) for value in (0, -4, True, 2.5)],
    *[({"clip_norm": value}, ["clip_norm=", repr(value)]) for value in (0, -1.0, True, "1", float("nan"))],
    ({"clip_value": 0.0}, ["clip_value=", "0.0"]),
    ({"macrobatch": 0}, ["macrobatch=", "0"]),
    ({"macrobatch": True}, ["macrobatch=", "True"]),
    ({"macrobatch": "all"}, ["macrobatch=", "'all'", "'auto'"]),
    ({"metrics": "acuracy"}, ["'acuracy'", "'accuracy'"]),
    ({"metrics": ["f1", "acuracy"]}, ["'acuracy'", "'accuracy'"]),
    ({"metrics": "f1:wieghted"}, ["'wieghted'", "'weighted'"]),
    ({"metrics": ["f1", "f1"]}, ["'f1'", "twice"]),
    ({"metrics": ["f1", 3]}, ["int", "update, compute and reset"]),
    ({"precision": "fp23"}, ["precision", "'fp23'", "'fp32'"]),
    ({"precision": torch.bfloat16}, ["precision", "torch.bfloat16", "bf16"]),
    ({"precision": 16}, ["precision", "16", "fp16"]),
    ({"order": "ful"}, ["order", "'ful'", "'full'"]),
    ({"order": None}, ["order", "None"]),
    ({"nonfinite": "skipp"}, ["nonfinite", "'skipp'", "'skip'"]),
    ({"nonfinite": None}, ["nonfinite", "None", "skip"]),
    ({"device": "gpu"}, ["device=", "'gpu'", "'cuda'"]),
    ({"inputs": "z"}, ["inputs=", "'z'", "x, y"]),
    ({"inputs": ["x", "xx"]}, ["inputs=", "'xx'", "'x'"]),
    ({"inputs": {"input": "xx"}}, ["inputs=", "'xx'", "'x'"]),
    ({"target": "yy"}, ["'yy'", "'y'", "target="]),
    ({"loss": hr.CrossEntropy(target="yy")}, ["'yy'", "'y'", "target="]),
    ({"loss": hr.CrossEntropy(weight="ww")}, ["'ww'", "x, y"]),
    ({"loss": hr.CrossEntropy() + 0.5 * hr.MSE(target="z")}, ["'z'", "x, y"]),
    ({"loss": hr.CrossEntropy(output="logits")}, ["'logits'", "Tensor"]),
    ({"loss": hr.L2Prior(0.1)}, ["priors only"]),
    ({"loss": nn.CrossEntropyLoss}, ["CrossEntropyLoss()"]),
    ({"loss": nn.CrossEntropyLoss(reduction="none")}, ["CrossEntropyLoss", "'none'"]),
    ({"loss": nn.PoissonNLLLoss(reduction="none")}, ["PoissonNLLLoss", "'none'"]),
    ({"loss": "mse"}, ["loss=", "str"]),
    ({"loss": lambda out, y: (out.sum(dim=1) - y).square()}, ["one number", "[24]"]),
    ({"loss": nn.MSELoss().forward, "microbatch": 8}, ["microbatch=", "RowMean"]),
    ({"eval_loss": "mse"}, ["eval_loss=", "str"]),
    ({"eval_loss": hr.CrossEntropy(target="yy")}, ["'yy'", "'y'"]),
]


@pytest.mark.parametrize("name", sorted({",".join(settings) for settings, _ in TRAINER}))
def test_a_setting_of_the_trainer_that_cannot_work_is_refused(name: str) -> None:
    model = network()
    optimizer = sgd(model)

    def attempt(settings: dict[str, Any]) -> None:
        trainer = hr.Trainer(model, **{"loss": hr.CrossEntropy(), "optimizer": optimizer} | settings)
        trainer.fit(DATA, val=DATA, epochs=1, progress=False)

    for settings, facts in TRAINER:
        if name == ",".join(settings):
            refused(partial(attempt, settings), hr.ConfigError, facts)
            assert untouched(model, optimizer), settings
    history = hr.Trainer(model, hr.CrossEntropy(), optimizer).fit(DATA, epochs=1, progress=False)
    assert history.last["step"] == 1


FIT: list[tuple[dict[str, Any], Facts]] = [
    *[({"epochs": value}, ["epochs=", repr(value)]) for value in (0, -1, True, 1.5, "3")],
    *[({"steps": value}, ["steps=", repr(value)]) for value in (0, -1, 0.5)],
    *[({"samples": value}, ["samples=", repr(value)]) for value in (0, -1)],
    *[({"minutes": value}, ["minutes=", repr(value)]) for value in (0, -0.5, float("nan"))],
    ({"validate_every": "2 epoch s"}, ["validate_every=", "'2 epoch s'", "1 epoch"]),
    ({"validate_every": "5 lightyears"}, ["validate_every=", "'5 lightyears'", "lightyears", "epochs"]),
    ({"validate_every": "2 epohcs"}, ["validate_every=", "'epohcs'", "'epochs'"]),
    ({"validate_every": "0 epochs"}, ["validate_every=", "0"]),
    ({"validate_every": "1.5 steps"}, ["validate_every=", "1.5", "whole"]),
    ({"validate_every": "3 min"}, ["validate_every=", "'3 min'", "minutes"]),
    ({"validate_every": 3}, ["validate_every=", "3", "1 epoch"]),
    ({"log_every": "steps"}, ["log_every=", "'steps'", "1 epoch"]),
    ({"log_every": None}, ["log_every=", "None"]),
    ({"progress": "fancy"}, ["progress=", "'fancy'", "'plain'"]),
    ({"progress": None}, ["progress=", "None", "False"]),
    ({"callbacks": (print,)}, ["callbacks=", "Callback"]),
    ({"callbacks": (Watcher,)}, ["callbacks=", "Watcher"]),
    ({"callbacks": Watcher()}, ["callbacks=", "Watcher"]),
]


@pytest.mark.parametrize("call", ["fit", "steps"])
@pytest.mark.parametrize("name", sorted({",".join(settings) for settings, _ in FIT}))
def test_a_setting_of_fit_that_cannot_work_is_refused(name: str, call: str) -> None:
    model = network()
    optimizer = sgd(model)
    trainer = hr.Trainer(model, hr.CrossEntropy(), optimizer)
    for settings, facts in FIT:
        if name == ",".join(settings):
            refused(partial(getattr(trainer, call), DATA, val=DATA, **settings), hr.ConfigError, facts)
            assert untouched(model, optimizer), settings
    assert trainer.fit(DATA, epochs=1, progress=False).last["step"] == 1


def foreign(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD([*model.parameters(), *network().parameters()], lr=0.1)


OPTIMIZERS: dict[str, tuple[Callable[[nn.Module], Any], type[hr.HeadraceError], Facts]] = {
    "of another model": (lambda m: sgd(network()), hr.ModelError, ["SGD", "4 of 4"]),
    "of this and another": (foreign, hr.ModelError, ["SGD", "4 of 8"]),
    "a name": (lambda m: "sgd", hr.ConfigError, ["optimizer=", "str"]),
    "nothing": (lambda m: None, hr.ConfigError, ["optimizer=", "NoneType"]),
    "a factory of something else": (lambda m: lambda params: list(params), hr.ConfigError, ["optimizer=", "list"]),
    "keys without losses": (lambda m: {"a": sgd(m)}, hr.ConfigError, ["loss=", "optimizer=", "dicts"]),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_an_optimizer_that_cannot_work_is_refused(name: str) -> None:
    make, kind, facts = OPTIMIZERS[name]
    model = network()
    refused(lambda: hr.Trainer(model, hr.CrossEntropy(), make(model)), kind, facts)
    assert untouched(model, sgd(model))


def test_the_class_of_an_optimizer_makes_one_of_the_parameters() -> None:
    model = network()
    trainer = hr.Trainer(model, hr.CrossEntropy(), torch.optim.AdamW)
    assert isinstance(trainer.optimizer, torch.optim.AdamW)
    assert trainer.optimizer.param_groups[0]["params"] == list(model.parameters())


@pytest.mark.parametrize(
    ("losses", "optimizers", "kind", "facts"),
    [
        (["a", "b"], ["a"], hr.ConfigError, ["'a', 'b'", "['a']"]),
        (["a"], ["b"], hr.ConfigError, ["['a']", "['b']"]),
        ([], [], hr.ConfigError, ["[]"]),
        (["a", "b"], ["a", "b"], hr.ModelError, ["'a'", "'b'", "same parameter"]),
    ],
)
def test_losses_and_optimizers_have_equal_keys_and_parameters_of_their_own(
    losses: list[str], optimizers: list[str], kind: type[hr.HeadraceError], facts: Facts
) -> None:
    model = network()
    loss = {key: hr.CrossEntropy() for key in losses}
    refused(lambda: hr.Trainer(model, loss, {key: sgd(model) for key in optimizers}), kind, facts)


def test_a_model_without_values_is_refused() -> None:
    with torch.device("meta"):
        model = network()
    refused(lambda: hr.Trainer(model, hr.CrossEntropy(), sgd(model)), hr.ModelError, ["'meta'", "to_empty"])


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
@pytest.mark.parametrize("device", ["cuda", "cuda:1", torch.device("cuda")])
def test_a_device_that_is_not_there_is_refused(device: Any) -> None:
    model = network()
    attempt = lambda: hr.Trainer(model, hr.CrossEntropy(), sgd(model), device=device)  # noqa: E731
    refused(attempt, hr.ConfigError, ["device=", f"'{device}'", "'cpu'"])
    assert untouched(model, sgd(model))


class Named(nn.Module):
    """Takes a keyword that no stream has, and returns what it is told to."""

    def __init__(self, give: Callable[[Tensor], Any] = lambda out: out) -> None:
        super().__init__()
        self.inner, self.give = nn.Linear(4, 3), give

    def forward(self, *, pixels: Tensor) -> Any:
        return self.give(self.inner(pixels))


MODELS: dict[str, tuple[Callable[[Tensor], Any], dict[str, Any], type[hr.HeadraceError], Facts]] = {
    "other arguments": (lambda out: out, {}, hr.DataError, ["x: float32[4]", "'inner'", "inputs="]),
    "other keywords": (lambda out: out, {"inputs": {"x": "x"}}, hr.DataError, ["'x'", "inputs="]),
    "a dict": (lambda out: {"a": out}, {"inputs": {"pixels": "x"}}, hr.ConfigError, ["'a'", "output="]),
    "a tuple": (lambda out: (out, out), {"inputs": {"pixels": "x"}}, hr.ConfigError, ["tuple", "output="]),
    "nothing": (lambda out: None, {"inputs": {"pixels": "x"}}, hr.ConfigError, ["NoneType"]),
    "one number per row": (lambda out: out[:, 0], {"inputs": {"pixels": "x"}}, hr.DataError, ["(rows, classes)"]),
    "detached": (lambda out: out.detach(), {"inputs": {"pixels": "x"}}, hr.ModelError, ["cross_entropy", "detach"]),
}


@pytest.mark.parametrize("name", MODELS)
def test_a_model_that_does_not_fit_is_refused_before_the_first_update(name: str) -> None:
    give, options, kind, facts = MODELS[name]
    model = Named(give)
    before = {k: v.clone() for k, v in model.state_dict().items()}
    optimizer = sgd(model)
    trainer = hr.Trainer(model, hr.CrossEntropy(), optimizer, **options)
    refused(lambda: trainer.fit(DATA, epochs=1, progress=False), kind, facts)
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    assert not optimizer.state
    good = hr.Trainer(model, lambda out, y: model.inner(X).sum(), optimizer, inputs={"pixels": "x"})
    assert good.fit(DATA, epochs=1, progress=False).last["step"] == 1


def test_a_frozen_model_is_refused() -> None:
    model = network().requires_grad_(False)
    trainer = hr.Trainer(model, hr.CrossEntropy(), sgd(model))
    refused(lambda: trainer.fit(DATA, epochs=1, progress=False), hr.ModelError, ["cross_entropy", "requires_grad"])
    assert untouched(model, trainer.optimizer)


@pytest.mark.parametrize("number", [np.float32, np.float64, np.int64])
def test_numbers_of_numpy_are_numbers(number: Any) -> None:
    def fit(one: Any, three: Any) -> list[dict[str, Any]]:
        model = network()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        schedule = hr.Cosine(warmup=one, floor=one)
        numbers = {"clip_norm": one, "clip_value": one, "batch_size": three, "microbatch": three, "schedule": schedule}
        trainer = hr.Trainer(model, hr.CrossEntropy(), optimizer, **numbers)
        trainer.clip_norm = one
        stop = hr.EarlyStopping(patience=three)
        trainer.fit(DATA, DATA, epochs=three, callbacks=[stop], progress=False)
        return trainer.history.rows

    assert fit(number(1), np.int64(3)) == fit(1.0, 3)
    assert hr.Trainer(network(), clip_norm=number(1)).clip_norm == 1
