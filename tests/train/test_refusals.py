"""What cannot work is refused before the first update, by an error that says what came; nothing has changed."""

import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from kit import small
from kit.small import difference, fit, momentum, state, trainer
from torch import Tensor, nn
from torch.optim import lr_scheduler as rates
from torch.utils.data import DataLoader, TensorDataset

import headrace as hr

ROWS = 40
X = torch.randn(ROWS, 4, generator=torch.Generator().manual_seed(1))
Y = torch.arange(ROWS) % 3
PAIRS = torch.randn(ROWS, 2, generator=torch.Generator().manual_seed(2))
GOOD = (X, Y)
Call = Callable[[hr.Trainer], Any]
Refusal = tuple[Any, ...]
"""What is called with a trainer, the class of the error, and words of its sentence."""


def network() -> nn.Sequential:
    return small.model(norm=True, dropout=0.5, features=4)


def used() -> hr.Trainer:
    """A trainer with a past: momentum in the optimizer, statistics in a buffer, one module put in eval mode."""
    made = trainer(network())
    fit(made, GOOD, steps=2)
    made.model[2].eval()
    return made


def on(data: Any, **options: Any) -> Call:
    """Trains on these data."""
    return lambda trainer: trainer.fit(data, **{"epochs": 1, "progress": False, **options})


def fits(**options: Any) -> Call:
    """Trains on good data, with these options."""
    return on(GOOD, **{"val": GOOD, **options})


def shares_a_generator(trainer: hr.Trainer) -> None:
    drawn = torch.Generator()
    loaders = [DataLoader(TensorDataset(*GOOD), 8, shuffle=shuffled, generator=drawn) for shuffled in (True, False)]
    made = hr.Trainer(trainer.model, hr.CrossEntropy(), trainer.optimizer)
    made.fit(loaders[0], val=loaders[1], epochs=2, progress=False)


def twice(params: Any) -> torch.optim.Optimizer:
    optimizer = torch.optim.SGD(params, lr=0.1)
    optimizer.param_groups[0]["params"] *= 2
    return optimizer


def without_rate(params: Any) -> torch.optim.Optimizer:
    optimizer = torch.optim.SGD(params, lr=0.1)
    del optimizer.param_groups[0]["lr"]
    return optimizer


def sets(data: Any = GOOD, limits: Any = None, **settings: Any) -> Call:
    """Trains the same model by a trainer with these settings."""

    def call(used: hr.Trainer) -> None:
        given = {"loss": hr.CrossEntropy(), "optimizer": used.optimizer, **settings}
        on(data, **{"val": data, **(limits or {})})(hr.Trainer(used.model, **given))

    return call


def schedules(schedule: Callable[..., Any], **limits: Any) -> Call:
    """The same with a schedule, which may itself be refused."""
    return lambda used: sets(schedule=schedule(), limits=limits)(used)


def labelled(row: int, label: int) -> tuple[Tensor, Tensor]:
    return X, Y.index_fill(0, torch.tensor(row), label)


class Twice(hr.Table):
    """A table that breaks its contract."""

    def __init__(self, streams: str, rows: Callable[[Tensor], Any]) -> None:
        kinds = {"x": hr.Stream("x", (4,)), "y": hr.Stream("y", (), "int64")}
        self._streams, self._rows = [kinds[name] for name in streams], rows

    @property
    def streams(self) -> list[hr.Stream]:
        return self._streams

    def __len__(self) -> int:
        return ROWS

    def take(self, indices: Tensor) -> Any:
        made = self._rows(indices)
        return hr.Batch(made)


DATA: list[Refusal] = [
    (on((X[:0], Y[:0])), hr.DataError, "no rows"),
    (on((X, Y[:30])), hr.DataError, "'x' has 40", "'y' has 30"),
    (on(labelled(7, 3)), hr.DataError, "'y'", "row 7", "label 3", "0 to 2"),
    (on(labelled(33, -1)), hr.DataError, "row 33", "label -1", "ignore_index"),
    (on(labelled(5, -100)), hr.DataError, "row 5", "label -100"),
    (on((X, Y.float())), hr.DataError, "'y'", "[3]", "int64"),
    (on((X, Y[:, None])), hr.DataError, "'y'", "[1]", "[3]"),
    (on((X.double(), Y)), hr.DataError, "x: float64[4]", "'0'", "float32"),
    (on((torch.randn(ROWS, 5), Y)), hr.DataError, "x: float32[5]", "'0'", "in_features=4"),
    (on((torch.randn(ROWS), Y)), hr.DataError, "x: float32[]", "in_features=4"),
    (on(X), hr.ConfigError, "'y'", "target="),
    (on({"x": X, "label": Y}), hr.ConfigError, "'y'", "label"),
    (on({"x": X, "y": Y, "z": torch.tensor(3.0)}), hr.DataError, "'z'", "single number"),
    (on((np.array(["a"] * ROWS), Y)), hr.DataError, "'x'", "<U1"),
    (on((X, X, Y)), hr.DataError, "3 arrays", "(x, y)"),
    (on(3.5), hr.DataError, "float", "(x, y)"),
    (on({"x": X, "z": X, "y": Y}), hr.DataError, "z: float32[4]", "inputs="),
    (fits(val=(X[:0], Y[:0])), hr.DataError, "val", "no rows"),
    (fits(val=labelled(7, 3)), hr.DataError, "val", "row 7", "label 3"),
    (fits(val=labelled(39, -1)), hr.DataError, "val", "row 39", "label -1"),
    (fits(val=X), hr.DataError, "val", "'y'"),
    (shares_a_generator, hr.ConfigError, "val", "one torch.Generator", "a generator of its own"),
    (fits(val={"x": X, "label": Y}), hr.DataError, "val", "'y'", "label"),
    (fits(val=(X.double(), Y)), hr.DataError, "val", "x: float64[4]", "x: float32[4]"),
    (fits(val=(X, Y.int())), hr.DataError, "val", "y: int32[]", "y: int64[]"),
    (fits(val={"x": X, "z": X, "y": Y}), hr.DataError, "val", "'z'"),
    (fits(test=labelled(39, -1)), hr.DataError, "test", "row 39", "label -1"),
    *((fits(val={name: GOOD}), hr.ConfigError, "cannot be the name of a set") for name in ("loss", "a/b", "", 3)),
    (fits(val={"clean": {"x": X, "y": Y}, "noisy": X}), hr.DataError, "val data are sets by name", "Tensor"),
    (fits(val={"clean": X, "noisy": X}), hr.DataError, "the val data have no stream 'x'"),
    (fits(val={"clean": GOOD, "noisy": {"x": X}}), hr.DataError, "val/noisy data", "no stream 'y'"),
    (on(Twice("xxy", lambda i: {"x": X[i], "y": Y[i]})), hr.SourceError, "unique", "'x'"),
    (on(Twice("xy", lambda i: {"x": X[i]})), hr.SourceError, "Twice", "'y'", "missing"),
    (on(Twice("xy", lambda i: {"x": X[:2], "y": Y[:2]})), hr.SourceError, "Twice", "40 rows", "gave 2"),
    (on(Twice("xy", lambda i: {"x": X[i].half(), "y": Y[i]})), hr.SourceError, "x: float32[4]", "x: float16[4]"),
    (on(Twice("xy", lambda i: {"x": X[i, :3], "y": Y[i]})), hr.SourceError, "x: float32[4]", "x: float32[3]"),
    (on(Twice("xy", lambda i: {"x": X[i], "y": Y[:1]})), hr.DataError, "'x' has 40", "'y' has 1"),
    (on(Twice("xy", lambda i: 1 / 0)), hr.SourceError, "division by zero", "x, y"),
    *((lambda t, c=c: getattr(t, c)(labelled(7, 3)), hr.DataError, "row 7", "label 3") for c in ("validate", "step")),
    *((lambda t, c=c: getattr(t, c)(X), hr.HeadraceError, "'y'") for c in ("validate", "step")),
    *(
        (lambda t, c=c: getattr(t, c)((torch.randn(9, 5), Y[:9])), hr.DataError, "x: float32[5]", "in_features=4")
        for c in ("validate", "step")
    ),
    (lambda t: t.predict(torch.randn(9, 5)), hr.DataError, "x: float32[5]"),
]

MSE = partial(sets, loss=hr.MSE())
SETTINGS: list[Refusal] = [
    *((sets(batch_size=value), hr.ConfigError, "batch_size=", repr(value)) for value in (0, -1, True, 1.5, "8")),
    *((sets(microbatch=value), hr.ConfigError, "microbatch=", repr(value)) for value in (0, -4, True, 2.5)),
    *((sets(macrobatch=value), hr.ConfigError, "macrobatch=", repr(value)) for value in (0, True, "all")),
    *((sets(clip_norm=value), hr.ConfigError, "clip_norm=", repr(value)) for value in (0, -1.0, True, "1", math.nan)),
    (sets(clip_value=0.0), hr.ConfigError, "clip_value=", "0.0"),
    (sets(metrics="acuracy"), hr.ConfigError, "'acuracy'", "'accuracy'"),
    (sets(metrics=["f1", "acuracy"]), hr.ConfigError, "'acuracy'", "'accuracy'"),
    (sets(metrics="f1:wieghted"), hr.ConfigError, "'wieghted'", "'weighted'"),
    (sets(metrics="mae:macro"), hr.ConfigError, "mae has no averages"),
    (sets(metrics="top-0"), hr.ConfigError, "'top-0'"),
    (sets(metrics={"mine": "roc"}), hr.ConfigError, "'auroc'"),
    (sets(metrics=["f1", "f1"]), hr.ConfigError, "'f1'", "twice"),
    (sets(metrics=["f1", 3]), hr.ConfigError, "int", "update, compute and reset"),
    (sets(metrics=None), hr.ConfigError, "NoneType", "update, compute and reset"),
    *((sets(precision=value), hr.ConfigError, "precision", repr(value)) for value in ("fp23", torch.bfloat16, 16)),
    *((sets(order=value), hr.ConfigError, "order", repr(value)) for value in ("ful", None)),
    *((sets(nonfinite=value), hr.ConfigError, "nonfinite", repr(value), "skip") for value in ("skipp", None)),
    (sets(device="gpu"), hr.ConfigError, "device=", "'gpu'", "'cuda'"),
    (sets(threads=0), hr.ConfigError, "threads="),
    *((sets(tape=value), hr.ConfigError, "tape= is True, False or 'auto'") for value in ("yes", 1.5, None)),
    *(
        (sets(device=value), hr.ConfigError, "device=", str(value), "'cpu'")
        for value in ("cuda", "cuda:1", torch.device("cuda"))
        if not torch.cuda.is_available()
    ),
    (sets(inputs="z"), hr.ConfigError, "inputs=", "'z'", "x, y"),
    (sets(inputs=["x", "xx"]), hr.ConfigError, "inputs=", "'xx'", "'x'"),
    (sets(inputs={"input": "xx"}), hr.ConfigError, "inputs=", "'xx'", "'x'"),
    (sets(target="yy"), hr.ConfigError, "'yy'", "'y'", "target="),
    (sets(loss=hr.CrossEntropy(target="yy")), hr.ConfigError, "'yy'", "'y'", "target="),
    (sets(loss=hr.CrossEntropy(weight="ww")), hr.ConfigError, "'ww'", "x, y"),
    (sets(loss=hr.CrossEntropy() + 0.5 * hr.MSE(target="z")), hr.ConfigError, "'z'", "x, y"),
    (sets(loss=hr.CrossEntropy(output="logits")), hr.ConfigError, "'logits'", "Tensor"),
    (sets(loss=nn.CrossEntropyLoss), hr.ConfigError, "CrossEntropyLoss()"),
    (sets(loss=nn.CrossEntropyLoss(reduction="none")), hr.ConfigError, "CrossEntropyLoss", "'none'"),
    (sets(loss="mse"), hr.ConfigError, "loss=", "str"),
    (sets(loss=lambda out, y: (out.sum(dim=1) - y).square()), hr.ConfigError, "one number", "[40]"),
    (sets(loss=nn.CrossEntropyLoss().forward, microbatch=8), hr.ConfigError, "microbatch=", "RowMean"),
    (sets(eval_loss="mse"), hr.ConfigError, "eval_loss=", "str"),
    (sets(eval_loss=hr.CrossEntropy(target="yy")), hr.ConfigError, "'yy'", "'y'"),
    (MSE((X, torch.randn(ROWS, 3).double())), hr.DataError, "mse", "'y'", "float64", "float32"),
    (MSE((X, torch.ones(ROWS, 3, dtype=torch.int64))), hr.DataError, "mse", "'y'", "int64", "float32"),
    (MSE((X, PAIRS)), hr.DataError, "mse", "'y'", "[2]", "[3]"),
    (MSE((X, torch.randn(ROWS))), hr.DataError, "mse", "'y'", "[]", "[3]"),
    (sets(optimizer=momentum(network())), hr.ModelError, "SGD", "of 6"),
    (sets(optimizer="sgd"), hr.ConfigError, "optimizer=", "str"),
    (sets(optimizer=None), hr.ConfigError, "optimizer=", "NoneType"),
    (sets(optimizer=list), hr.ConfigError, "optimizer=", "list"),
    (lambda t: hr.Trainer(t.model, optimizer=t.optimizer), hr.ConfigError, "got a NoneType"),
    (lambda t: hr.Trainer(t.model, hr.MSE(), {"a": t.optimizer}), hr.ConfigError, "loss=", "optimizer=", "dicts"),
    (lambda t: hr.Trainer(t.model, {"a": hr.MSE()}, {"b": t.optimizer}), hr.ConfigError, "['a']", "['b']"),
    (lambda t: hr.Trainer(t.model, {}, {}), hr.ConfigError, "[]"),
    (
        lambda t: hr.Trainer(t.model, dict.fromkeys("ab", hr.CrossEntropy()), {k: momentum(t.model) for k in "ab"}),
        *(hr.ModelError, "'a'", "'b'", "same parameter"),
    ),
    (sets(optimizer=without_rate), hr.ModelError, "a group of SGD has no rate", "group['lr'] = 1.0"),
    (sets(optimizer=twice), hr.ModelError, "SGD", "a parameter twice"),
]

OPTIONS: list[Refusal] = [
    *((fits(epochs=value), hr.ConfigError, "epochs=", repr(value)) for value in (0, -1, True, 1.5, "3")),
    *((fits(epochs=None, steps=value), hr.ConfigError, "steps=", repr(value)) for value in (0, -1, 0.5)),
    *((fits(epochs=None, samples=value), hr.ConfigError, "samples=", repr(value)) for value in (0, -1)),
    *((fits(epochs=None, minutes=value), hr.ConfigError, "minutes=", repr(value)) for value in (0, -0.5, math.nan)),
    (lambda t: t.steps(GOOD, epochs=0), hr.ConfigError, "epochs=", "0"),
    (lambda t: t.validate(GOOD, batch_size=0), hr.ConfigError, "batch_size"),
    (lambda t: t.validate(GOOD, limit=-3), hr.ConfigError, "limit"),
    (fits(validate_every="2 epoch s"), hr.ConfigError, "validate_every=", "'2 epoch s'", "1 epoch"),
    (fits(validate_every="5 lightyears"), hr.ConfigError, "validate_every=", "lightyears", "epochs"),
    (fits(validate_every="2 epohcs"), hr.ConfigError, "validate_every=", "'epohcs'", "'epochs'"),
    (fits(validate_every="0 epochs"), hr.ConfigError, "validate_every=", "0"),
    (fits(validate_every="1.5 steps"), hr.ConfigError, "validate_every=", "1.5", "whole"),
    (fits(validate_every="3 min"), hr.ConfigError, "validate_every=", "'3 min'", "minutes"),
    (fits(validate_every=3), hr.ConfigError, "validate_every=", "3", "1 epoch"),
    (fits(log_every="steps"), hr.ConfigError, "log_every=", "'steps'", "1 epoch"),
    (fits(log_every=None), hr.ConfigError, "log_every=", "None"),
    (fits(progress="fancy"), hr.ConfigError, "progress=", "'fancy'", "'plain'"),
    (fits(progress=None), hr.ConfigError, "progress=", "None", "False"),
    (fits(callbacks=(print,)), hr.ConfigError, "callbacks=", "Callback"),
    (fits(callbacks=(hr.BestModel,)), hr.ConfigError, "callbacks=", "BestModel"),
    (fits(callbacks=hr.BestModel()), hr.ConfigError, "callbacks=", "BestModel"),
    *(
        (lambda t, v=v: fits(run=hr.Run("run", every=v))(t), hr.ConfigError, "every=")
        for v in ("0 steps", "often", "3 parsecs", "1.5 steps", 3, None)
    ),
    *(
        (lambda t, v=v: fits(run=hr.Run("run", keep=v))(t), hr.ConfigError, "keep=")
        for v in (0, -1, "some", None, 1.5, True)
    ),
    (lambda t: fits(run=hr.Run("run", resume="mst"))(t), hr.ConfigError, "Did you mean 'must'"),
    (lambda t: fits(run=hr.Run("run", resume="must"))(t), hr.RunError, "resume='must'", "run"),
    (lambda t: fits(run=hr.Run(None, resume="must"))(t), hr.ConfigError, "needs the run to go on from"),
    (lambda t: fits(run=hr.Run("run", resume="never", override=True))(t), hr.ConfigError, "Leave one out"),
    *(
        (
            lambda t, c=c, mode=mode: mode()(getattr(t, c))(GOOD),
            hr.ConfigError,
            "needs gradients",
            "outside of torch.no_grad()",
        )
        for mode in (torch.no_grad, torch.inference_mode)
        for c in ("fit", "steps", "step", "find_lr", "find_batch_size")
    ),
    (lambda t: t.find_lr(GOOD, lowest=1.0, highest=1.0), hr.ConfigError, "lowest= is above 0 and below highest="),
    (lambda t: t.find_lr(GOOD, lowest=0.0), hr.ConfigError, "lowest= is above 0"),
    *((lambda t, v=v: t.find_lr(GOOD, highest=v), hr.ConfigError, "below highest=") for v in (math.inf, math.nan)),
    *((lambda t, v=v: t.find_lr(GOOD, steps=v), hr.ConfigError, "at least 10, got", str(v)) for v in (3, 20.0)),
    (lambda t: t.find_batch_size(GOOD, smallest=0), hr.ConfigError, "smallest= is a whole number"),
    (lambda t: t.find_batch_size(GOOD, smallest=8, largest=4), hr.ConfigError, "largest= is not below smallest="),
    (lambda t: t.find_batch_size(GOOD, seconds=0), hr.ConfigError, "seconds= is a number greater than 0"),
    (lambda t: t.find_batch_size(DataLoader(TensorDataset(X, Y), 8)), hr.ConfigError, "has batches of its own size"),
]

STEP_RATES = rates.StepLR(torch.optim.SGD([torch.zeros(1)]), 1)
FAILED, TAKES = "schedule= failed at the progress 0: ", "0 at the first update"
PLATEAU: Any = lambda o, n: rates.ReduceLROnPlateau(o)  # noqa: E731
SCHEDULES: list[Refusal] = [
    *((schedules(lambda c=c: c(1.5)), hr.ConfigError, "=") for c in (hr.Cosine, hr.Linear, hr.OneCycle)),
    *((schedules(lambda v=v: hr.Cosine(v)), hr.ConfigError, "warmup=") for v in (-0.1, math.nan)),
    (schedules(lambda: hr.Cosine("1 min")), hr.ConfigError, "minutes"),
    (schedules(lambda: hr.WSD(shape="steep")), hr.ConfigError, "shape"),  # type: ignore[arg-type]
    (schedules(lambda: hr.WSD("4 steps")(0.5)), hr.ConfigError, "in a training only"),
    *((schedules(lambda v=v: v), hr.ConfigError, "begins with a value for 0") for v in ({}, {"1 epoch": 0.1})),
    (schedules(lambda: {0: 0.1, "2 min": 0.1}), hr.ConfigError, "minutes differ"),
    (schedules(lambda: {0: 0.1, "2 epoch s": 0.1}), hr.ConfigError, "schedule= is a number and a unit"),
    (schedules(lambda: {0: "fast"}), hr.ConfigError, "rates that are not negative", "'fast' for 0"),
    (schedules(lambda: {0: 0.1, "1 epoch": -0.1}), hr.ConfigError, "not negative", "-0.1 for '1 epoch'"),
    *((schedules(lambda v=v: v), hr.ConfigError, "schedule= takes") for v in (3, "cosine", [hr.OneCycle()])),
    *(
        (schedules(lambda v=v: v), hr.ConfigError, "no StepLR itself", "Pass hr.Schedule(lambda optimizer: StepLR(")
        for v in (STEP_RATES, rates.StepLR, partial(rates.StepLR, step_size=2))
    ),
    *(
        (schedules(lambda v=v: hr.Schedule(v)), hr.ConfigError, "needs more than the opt", "lambda optimizer: ")
        for v in (rates.StepLR, rates.OneCycleLR, partial(rates.StepLR, gamma=0.5))
    ),
    (schedules(lambda: hr.Schedule(3)), hr.ConfigError, "takes a function"),  # type: ignore[arg-type]
    (schedules(lambda: hr.Schedule(PLATEAU, every="5 min")), hr.ConfigError, "every="),
    (
        schedules(lambda: hr.WSD("15 steps", "6 steps"), steps=20, epochs=None),
        *(hr.ConfigError, "shorter than warmup='15 steps' and decay='6 steps'"),
    ),
    (schedules(lambda: hr.InverseSqrt(0.0), steps=20, epochs=None), hr.ConfigError, "more than 0"),
    (schedules(hr.Cosine, minutes=1, epochs=None), hr.ConfigError, "limit in epochs, steps or samples"),
    (schedules(lambda: lambda p: min(1, 0.1 / p)), hr.ConfigError, FAILED + "ZeroDivisionError", TAKES),
    (schedules(lambda: lambda o: rates.StepLR(o, 1)), hr.ConfigError, FAILED + "TypeError", TAKES),
    (schedules(lambda: lambda: 1.0), hr.ConfigError, FAILED + "TypeError", "hr.Schedule(make)"),
    (schedules(lambda: lambda p: None), hr.ConfigError, "gave a NoneType at the progress 0, not a number", TAKES),
    (schedules(lambda: hr.Schedule(lambda optimizer: rates.StepLR(optimizer))), hr.ConfigError, "made no scheduler"),  # type: ignore[call-arg]
    (schedules(lambda: hr.Schedule(lambda optimizer: 0.5)), hr.ConfigError, "schedule= made a float", TAKES),  # type: ignore[arg-type]
    (schedules(lambda: hr.Schedule(PLATEAU), val=None), hr.ConfigError, "looks at 'val/loss'", "no val data"),
    *(
        (schedules(lambda v=v: hr.Schedule(PLATEAU, monitor=v)), hr.ConfigError, f"'{v}', which is not measured", words)
        for v, words in (("val/accuracy", "There are: train/loss"), ("val_loss", "Did you mean 'val/loss'"), ("me", ""))
    ),
]


@pytest.mark.parametrize(
    ("call", "kind", "words"),
    [
        pytest.param(call, kind, words, id=f"{group}: {', '.join(words)}")
        for group, table in {"data": DATA, "settings": SETTINGS, "options": OPTIONS, "schedule": SCHEDULES}.items()
        for call, kind, *words in table
    ],
)
def test_what_cannot_work_is_refused_before_the_first_update(
    call: Call, kind: type[hr.HeadraceError], words: list[str], in_tmp_path: Path
) -> None:
    trainer = used()
    before, modes = state(trainer), [m.training for m in trainer.model.modules()]
    with pytest.raises(kind) as caught:
        call(trainer)
    assert kind is hr.HeadraceError or type(caught.value) is kind
    assert isinstance(caught.value, (hr.RunError, ValueError))
    assert [word for word in words if word not in str(caught.value)] == [], str(caught.value)
    for name in ("initial_lr", "last_lr"):  # where a schedule begins, and where it has left the rate
        trainer.optimizer.param_groups[0].pop(name, None)
    assert not (where := difference(trainer, before)), where
    assert [m.training for m in trainer.model.modules()] == modes
    params = [*trainer.model.parameters()]
    assert all(p.untyped_storage().nbytes() == p.nbytes and p.grad is None for p in params)
    assert all(p is q for p, q in zip(params, trainer.optimizer.param_groups[0]["params"], strict=True))
    assert not any(in_tmp_path.iterdir()), "nothing has been written"
    assert fit(trainer, GOOD, epochs=1).last["step"] == 3
    assert trainer.step((X[:8], Y[:8]))["total_loss"] > 0


# --- models -----------------------------------------------------------------------------------------------------


class Named(nn.Module):
    """Takes a keyword that no stream has, and returns what it is told to."""

    def __init__(self, give: Callable[[Tensor], Any] = lambda out: out) -> None:
        super().__init__()
        self.inner, self.give = nn.Linear(4, 3), give

    def forward(self, *, pixels: Tensor) -> Any:
        return self.give(self.inner(pixels))


NAMED: dict[str, Any] = {"inputs": {"pixels": "x"}}
MODELS: list[tuple[Callable[[], nn.Module], dict[str, Any], type[hr.HeadraceError], list[str]]] = [
    (Named, {}, hr.DataError, ["x: float32[4]", "'inner'", "inputs="]),
    (Named, {"inputs": {"x": "x"}}, hr.DataError, ["'x'", "inputs="]),
    (lambda: Named(lambda out: {"a": out}), NAMED, hr.ConfigError, ["'a'", "output="]),
    (
        lambda: Named(lambda out: {"a": out}),
        {**NAMED, "loss": hr.CrossEntropy(output="b")},
        hr.ConfigError,
        ["'b' is not am"],
    ),
    (lambda: Named(lambda out: (out, out)), NAMED, hr.ConfigError, ["tuple", "output="]),
    (lambda: Named(lambda out: None), NAMED, hr.ConfigError, ["NoneType"]),
    (lambda: Named(lambda out: out[:, 0]), NAMED, hr.DataError, ["(rows, classes)"]),
    (lambda: Named(lambda out: out.detach()), NAMED, hr.ModelError, ["cross_entropy", "detach"]),
    (lambda: network().requires_grad_(False), {}, hr.ModelError, ["cross_entropy", "requires_grad"]),
    (lambda: network().to("meta"), {}, hr.ModelError, ["'meta'", "to_empty"]),
    (lambda: nn.Sequential(nn.LazyLinear(3)), {}, hr.ModelError, ["LazyLinear", "model(x)"]),
]


@pytest.mark.parametrize(("make", "options", "kind", "words"), MODELS)
def test_a_model_that_does_not_fit_is_refused_before_the_first_update(
    make: Any, options: Any, kind: Any, words: list[str]
) -> None:
    model = make()
    optimizer = momentum(model)
    before = {} if {"'meta'", "LazyLinear"} & {*words} else state(model)  # of these there is none to compare
    with pytest.raises(kind) as caught:
        fit(trainer(model, optimizer=optimizer, **options), GOOD)
    assert type(caught.value) is kind
    assert [word for word in words if word not in str(caught.value)] == [], str(caught.value)
    assert not before or not difference(model, before)
    assert not optimizer.state


class Pair(nn.Module):
    def __init__(self, right: int = 4) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(4, 3), nn.Linear(right, 3)

    def forward(self, left: Tensor, right: Tensor) -> Any:
        return self.left(left) - self.right(right)


@pytest.mark.parametrize("inputs", [None, ["left", "right"]], ids=["by their order", "by name"])
def test_streams_in_another_order_than_before_are_no_other_arguments_in_silence(inputs: Any) -> None:
    made = trainer(model := Pair(), inputs=inputs)
    train, other = {"left": X, "right": X + 1, "y": Y}, {"right": X + 1, "y": Y, "left": X}
    words = r"streams left, right, by their order, and (the val|the val/other|these) data have them as right, left"
    for val in (other, {"clean": train, "other": other}):
        if inputs is None:
            with pytest.raises(hr.DataError, match=words):
                fit(made, train, val)
            assert made.updates.count == 0
    fit(made, train)
    for use in ("predict", "validate", "step", "fit"):
        if inputs is None:
            with pytest.raises(hr.DataError, match=words):
                getattr(made, use)(other)
        else:
            getattr(made, use)(other)
    if inputs is None:
        with pytest.raises(hr.DataError, match="by their order, and these data have them as right"):
            made.predict({"right": X})
    assert torch.allclose(made.predict({"left": X, "right": X + 1}), model(X, X + 1).detach())
    made = trainer(Pair(right=2))
    with pytest.raises(hr.DataError, match="the model failed on its first batch"):
        fit(made, {"right": PAIRS, "left": X, "y": Y})
    fit(made, {"left": X, "right": PAIRS, "y": Y})  # what the model has refused is not what it was trained on
