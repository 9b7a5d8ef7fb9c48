"""PuzzleLib's handlers, costs and optimizers, statement by statement, against numbers worked out by hand."""

import math
import runpy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import headrace as hr
from headrace.compat import puzzlelib as pl

RNG = np.random.default_rng(0)
X = RNG.standard_normal((23, 4)).astype(np.float32)
Y = RNG.integers(0, 3, 23).astype(np.int32)


def linear(outputs: int = 3) -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(4, outputs)


def trainer(model: nn.Module, cost: Any = "crossentropy", optimizer: Any = "sgd", **options: Any) -> pl.Trainer:
    return pl.Trainer(model, cost, optimizer, **options)


# --- data in macrobatches and batches ----------------------------------------------------------------------


def test_data_are_cut_in_macrobatches_and_batches_the_last_ones_short_and_callbacks_count_from_1() -> None:
    seen: list[Any] = []
    handler = trainer(linear(), batchsize=4, onBatchFinish=lambda h: seen.append((h.currBatch, h.totalBatches)))
    macros: list[Any] = []
    handler.trainFromHost(
        X,
        Y,
        macroBatchSize=10,
        random=False,
        onMacroBatchFinish=lambda h: macros.append((h.currMacroBatch, h.totalMacroBatches)),
    )
    assert macros == [(1, 3), (2, 3), (3, 3)]
    assert seen == [(1, 3), (2, 3), (3, 3)] * 2 + [(1, 1)]


def test_random_permutes_the_order_of_macrobatches_and_batches_by_numpy_and_never_the_samples() -> None:
    class Seen(pl.Handler):
        def __init__(self) -> None:
            super().__init__(nn.Identity(), batchsize=4)
            self.batches: list[tuple[int, list[float]]] = []

        def handleBatch(self, batch: Any, idx: int, state: Any) -> None:  # noqa: N802
            self.batches.append((idx, batch.tolist()))

    handler = Seen()
    np.random.seed(3)
    handler.handleFromHost(np.arange(23.0), macroBatchSize=10)
    np.random.seed(3)
    wanted = []
    for macro in np.random.permutation(3):
        part = np.arange(23.0)[macro * 10 : macro * 10 + 10]
        for n in np.random.permutation(-(-len(part) // 4)):
            wanted.append((int(n), part[n * 4 : n * 4 + 4].tolist()))
    assert handler.batches == wanted


def test_inputs_and_targets_may_be_nested_lists() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.left, self.right = linear(), linear(1)

        def forward(self, data: list[Any]) -> list[Tensor]:
            a, (b,) = data
            return [self.left(a), self.right(b)]

    cost = pl.Multi().append(pl.CrossEntropy()).append(pl.MSE())
    handler = trainer(Two(), cost, batchsize=10)
    handler.trainFromHost([X, [X]], [Y, X[:, :1]], random=False)
    first, second = cost.getMeanError()
    assert 0 < first < 5
    assert 0 < second < 5
    left, right = pl.Calculator(handler.module, batchsize=10).calcFromHost([X, [X]], macroBatchSize=7)
    assert (left.shape, right.shape) == ((23, 3), (23, 1))


# --- training ------------------------------------------------------------------------------------------------


def test_one_call_is_one_pass_the_error_is_that_of_before_each_update_and_is_reset_by_the_next() -> None:
    model = linear()
    errors = []
    handler = trainer(model, batchsize=10, onBatchFinish=lambda h: errors.append(h.cost.getError()))
    twin = linear()
    optimizer = torch.optim.SGD(twin.parameters(), lr=1e-3)
    wanted = []
    for start in range(0, 23, 10):
        rows, labels = torch.from_numpy(X[start : start + 10]), torch.from_numpy(Y[start : start + 10]).long()
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(twin(rows), labels)
        loss.backward()
        optimizer.step()
        wanted.append(loss.item())
    handler.trainFromHost(X, Y, random=False)
    assert errors == pytest.approx(wanted, abs=1e-6)
    assert handler.cost.getMeanError() == pytest.approx(
        (10 * wanted[0] + 10 * wanted[1] + 3 * wanted[2]) / 23, abs=1e-6
    )
    torch.testing.assert_close(model.weight, twin.weight)
    handler.train(torch.from_numpy(X), torch.from_numpy(Y))
    assert handler.cost.numOfSamples == 23


def test_training_leaves_the_module_in_train_mode_and_validation_in_eval_mode() -> None:
    model = nn.Sequential(nn.Dropout(0.5), linear()).eval()
    trainer(model).trainFromHost(X, Y)
    assert model.training
    pl.Validator(model, "crossentropy").validateFromHost(X, Y)
    assert not model.training


@pytest.mark.parametrize("workers", [1, 2])
def test_a_batch_handled_by_hand_leaves_the_module_in_the_mode_that_it_is_in(workers: int) -> None:
    model: Any = nn.Sequential(nn.BatchNorm1d(4), nn.Dropout(0.5), linear()).eval()
    with torch.no_grad():
        wanted = nn.functional.cross_entropy(model(torch.from_numpy(X)), torch.from_numpy(Y).long())

    def handle(model: nn.Module) -> None:
        handler = trainer(model)
        handler.handleBatch([X, Y], 0, None)
        errors.append(handler.cost.getError())

    errors: list[float] = []
    hr.launch(handle, model, workers=workers)
    assert errors == pytest.approx([wanted.item()] * workers, abs=1e-6)
    assert not any(each.training for each in model.modules())
    assert not model[0].running_mean.any()
    assert not torch.equal(model[2].weight, linear().weight)


def test_a_callback_may_replace_what_the_next_batches_are_trained_with() -> None:
    def change(handler: Any) -> None:
        errors.append(handler.cost.getError())
        if handler.currBatch == 1:
            handler.cost.weights = torch.tensor([2.0, 2.0, 2.0])
        elif handler.currBatch == 2:
            handler.cost = pl.SVM()
        elif handler.currBatch == 3:
            handler.module.eval()

    errors: list[float] = []
    model = nn.Sequential(linear(), nn.Dropout(1.0))
    handler = trainer(model, pl.CrossEntropy(), pl.SGD(learnRate=0.0), batchsize=6, onBatchFinish=change)
    handler.trainFromHost(X, Y, random=False)
    assert errors[:3] == pytest.approx([math.log(3), 2 * math.log(3), 1.0], rel=1e-5)
    with torch.no_grad():
        wanted = pl.SVM().errors(model(torch.from_numpy(X[18:])), torch.from_numpy(Y[18:]))[1] / 5
    assert errors[3] == pytest.approx(wanted.item(), rel=1e-5)


def test_a_handler_of_your_own_says_what_it_does_with_a_batch() -> None:
    with pytest.raises(NotImplementedError, match="handleBatch"):
        pl.Handler(linear()).handle(X)


def test_validation_counts_wrong_answers_and_weighs_batches_by_their_samples() -> None:
    model = linear()
    answers = model(torch.from_numpy(X)).argmax(1).numpy()
    found = pl.Validator(model, pl.CrossEntropy(), batchsize=10).validateFromHost(X, Y, macroBatchSize=15)
    assert found == pytest.approx((answers != Y).mean())


@pytest.mark.parametrize("host", [True, False])
def test_data_and_targets_of_different_lengths_are_refused_before_anything_is_done(host: bool) -> None:
    model, last = linear(), "FromHost" if host else ""
    before = model.weight.detach().clone()
    longer, both = np.concatenate([Y, Y]), "data and target have 23 and 46 samples"
    with pytest.raises(hr.DataError, match=f"Trainer: {both}"):
        getattr(trainer(model), f"train{last}")(X, longer)
    with pytest.raises(hr.DataError, match="data and target have 46 and 23 samples"):
        getattr(trainer(model), f"train{last}")(np.concatenate([X, X]), Y)
    with pytest.raises(hr.DataError, match=f"Validator: {both}"):
        getattr(pl.Validator(model, "crossentropy"), f"validate{last}")(X, longer)
    with pytest.raises(hr.DataError, match="Calculator: data and target have 23 and 22 samples"):
        getattr(pl.Calculator(model), f"calc{last}")([X, X[1:]])
    with pytest.raises(hr.DataError, match="Calculator: data and target have 0 samples"):
        getattr(pl.Calculator(model), f"calc{last}")(X[:0])
    with pytest.raises(hr.DataError, match="None was given for data or target"):
        getattr(trainer(model), f"train{last}")(X, None)
    assert torch.equal(model.weight, before)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda m: trainer(m, batchsize=0).train(X, Y), "batchsize= is a whole number, at least 1, got 0"),
        (lambda m: trainer(m).trainFromHost(X, Y, macroBatchSize=0), "macroBatchSize= is a whole number, at least 1"),
        (
            lambda m: trainer(m, optimizer=torch.optim.SGD(m.parameters())),
            r"got a torch.optim.sgd.SGD. Known: SGD, Mom",
        ),
        (
            lambda m: trainer(m, nn.CrossEntropyLoss()),
            r"cost= is one of PuzzleLib's .* got a torch.nn.*CrossEntropyLoss",
        ),
        (lambda m: pl.MSE().getMeanError(), "MSE has seen no batch"),
        (lambda m: pl.MSE().getError(), "MSE has seen no batch"),
        (lambda m: pl.MSE().validate(torch.zeros(4, 2), torch.zeros(3, 2)), "4 predictions and 3 targets"),
        (lambda m: pl.CrossEntropy().validate(torch.zeros(4, 2), torch.zeros(4, 2)), "a label for each sample"),
        (lambda m: pl.Validator(m, "crossentrpy"), r"no cost 'crossentrpy'. Known: BCE"),
        (lambda m: trainer(m, optimizer="adm"), r"no optimizer 'adm'. Known: SGD"),
        (lambda m: pl.Adam().update(), "setupOn"),
        (lambda m: pl.SGD().save("optimizer.hdf"), "saved with its run"),
        (lambda m: pl.SGD().load("optimizer.hdf"), "saved with its run"),
    ],
)
def test_what_a_handler_cannot_work_with_is_refused(call: Any, message: str) -> None:
    with pytest.raises(hr.HeadraceError, match=message):
        call(linear())


def test_calculations_work_for_any_size_of_macrobatch() -> None:
    model = linear()
    found = pl.Calculator(model, batchsize=4).calcFromHost(X, macroBatchSize=10)
    np.testing.assert_allclose(found, model(torch.from_numpy(X)).detach().numpy(), rtol=1e-5, atol=1e-6)
    assert isinstance(pl.Calculator(model).calc(torch.from_numpy(X)), Tensor)


# --- costs ---------------------------------------------------------------------------------------------------


def test_every_cost_reports_what_its_formula_gives() -> None:
    scores, target = torch.randn(5, 3), torch.randn(5, 3)
    labels = torch.tensor([0, 2, 1, 1, 0], dtype=torch.int32)
    signs = torch.where(torch.randn(5, 3) > 0, 1, -1).int()
    one_of = 2 * nn.functional.one_hot(labels.long(), 3) - 1
    cases: list[tuple[pl.Cost, Tensor, Tensor, Tensor]] = [
        (pl.MSE(), scores, target, (scores - target).square().mean() / 2),
        (pl.Abs(), scores, target, (scores - target).abs().mean()),
        (pl.SmoothL1(), scores, target, nn.functional.smooth_l1_loss(scores, target)),
        (pl.CrossEntropy(), scores, labels, nn.functional.cross_entropy(scores, labels.long())),
        (pl.SVM(), scores, labels, (1 - scores * one_of).clamp(min=0).mean()),
        (pl.SVM("l2"), scores, labels, (1 - scores * one_of).clamp(min=0).square().mean()),
        (
            pl.BCE(),
            scores,
            (signs > 0).int(),
            nn.functional.binary_cross_entropy_with_logits(scores, (signs > 0).float()),
        ),
    ]
    for cost, given, wish, right in cases:
        cost.record(cost.errors(given, wish)[1], 5)
        assert cost.getError() == pytest.approx(float(right), abs=1e-6), type(cost).__name__


def test_the_gradient_of_cross_entropy_over_places_is_divided_by_samples_and_its_error_by_both() -> None:
    scores, labels = torch.randn(4, 3, 6, requires_grad=True), torch.randint(0, 3, (4, 6))
    trained, shown = pl.CrossEntropy().errors(scores, labels)
    (trained / 4).backward()
    chosen = nn.functional.one_hot(labels, 3).movedim(-1, 1)
    torch.testing.assert_close(-scores.grad, (chosen - scores.softmax(1)).detach() / 4)  # type: ignore[operator]
    assert float(shown.detach() / 4) == pytest.approx(nn.functional.cross_entropy(scores, labels).item(), abs=1e-6)


# --- optimizers ----------------------------------------------------------------------------------------------


def steps_of(optimizer: pl.Optimizer, gradients: list[float], rates: list[float] | None = None) -> list[float]:
    """A weight of 1 after each of these downhill gradients."""
    module = nn.Linear(1, 1, bias=False)
    with torch.no_grad():
        module.weight.fill_(1.0)
    optimizer.setupOn(module, useGlobalState=True)
    found = []
    for k, gradient in enumerate(gradients):
        if rates is not None:
            optimizer.learnRate = rates[k]
        module.weight.grad = torch.tensor([[-gradient]])
        optimizer.update()
        found.append(module.weight.item())
    return found


def by_hand(rule: Any, gradients: list[float], rates: list[float]) -> list[float]:
    w, state, found = 1.0, {}, []  # type: ignore[var-annotated]
    for gradient, rate in zip(gradients, rates, strict=True):
        w += rule(gradient, rate, state)
        found.append(w)
    return found


def momentum(g: float, rate: float, s: dict[str, float]) -> float:
    s["m"] = 0.9 * s.get("m", 0.0) + rate * g
    return s["m"]


def nesterov(g: float, rate: float, s: dict[str, float]) -> float:
    before = s.get("m", 0.0)
    s["m"] = 0.9 * before + rate * g
    return 0.81 * before + 1.9 * rate * g


def adam(g: float, rate: float, s: dict[str, float]) -> float:
    s["t"] = s.get("t", 0) + 1
    s["m"] = 0.9 * s.get("m", 0.0) + 0.1 * g
    s["v"] = 0.999 * s.get("v", 0.0) + 0.001 * g * g
    return float(rate * np.sqrt(1 - 0.999 ** s["t"]) / (1 - 0.9 ** s["t"]) * s["m"] / (np.sqrt(s["v"]) + 1e-8))


def rmsprop(g: float, rate: float, s: dict[str, float]) -> float:
    s["v"] = 0.9 * s.get("v", 0.0) + 0.1 * g * g
    return float(rate * g / (np.sqrt(s["v"]) + 1e-5))


def adagrad(g: float, rate: float, s: dict[str, float]) -> float:
    s["h"] = s.get("h", 0.0) + g * g
    return float(rate * g / (np.sqrt(s["h"]) + 1e-8))


GRADIENTS, RATES = [0.5, -0.2, 0.9, 0.4], [0.1, 0.1, 0.02, 0.05]


@pytest.mark.parametrize(
    ("optimizer", "rule"),
    [
        (pl.SGD, lambda g, rate, s: rate * g),
        (pl.MomentumSGD, momentum),
        (pl.NesterovSGD, nesterov),
        (pl.Adam, adam),
        (pl.RMSProp, rmsprop),
        (pl.AdaGrad, adagrad),
    ],
)
def test_an_optimizer_follows_its_rule_also_when_the_rate_changes(optimizer: Any, rule: Any) -> None:
    assert steps_of(optimizer(), GRADIENTS, RATES) == pytest.approx(by_hand(rule, GRADIENTS, RATES), rel=1e-4)


@pytest.mark.parametrize("make", [pl.NesterovSGD, pl.Adam])
def test_a_trainer_updates_as_a_loop_by_hand_does(make: Any) -> None:
    model, twin = (
        nn.Sequential(linear(), nn.Tanh(), nn.Linear(3, 3)),
        nn.Sequential(linear(), nn.Tanh(), nn.Linear(3, 3)),
    )
    twin.load_state_dict(model.state_dict())
    optimizer, by_hand, cost = make(), make(), pl.CrossEntropy()
    handler = trainer(model, cost, optimizer, batchsize=10)
    by_hand.setupOn(twin)
    for optimizer_ in (optimizer, by_hand):
        optimizer_.addHook(pl.WeightDecay(0.1))
    for _ in range(4):
        handler.trainFromHost(X, Y, random=False)
        for start in range(0, 23, 10):
            by_hand.zeroGradParams()
            pred = twin(torch.from_numpy(X[start : start + 10]))
            pred.backward(-cost(pred, torch.from_numpy(Y[start : start + 10]), queryError=False))
            by_hand.update()
    torch.testing.assert_close(dict(model.state_dict()), dict(twin.state_dict()), rtol=1e-4, atol=1e-6)


def test_weight_decay_takes_its_part_of_the_weight_from_the_gradient() -> None:
    optimizer = pl.SGD(learnRate=0.1)
    optimizer.addHook(pl.WeightDecay(0.5))
    assert steps_of(optimizer, [0.3]) == pytest.approx([1 + 0.1 * (0.3 - 0.5)])
    with pytest.raises(hr.HeadraceError, match="other than WeightDecay"):
        optimizer.addHook(lambda var, state: None)


def test_the_example_and_its_native_twin_come_to_the_same_errors() -> None:
    folder = Path(__file__).parents[2] / "examples/compat"
    legacy, native = (runpy.run_path(str(folder / f"puzzlelib_{name}.py"))["main"]() for name in ("legacy", "native"))
    assert legacy[0] == pytest.approx(native[0], abs=1e-5)
    assert legacy[1] == pytest.approx(native[1], abs=1e-6)


# --- loops of one's own, and what may change between two batches ---------------------------------------------


def test_a_cost_is_called_with_predictions_and_gives_the_error_and_a_gradient_that_points_downhill() -> None:
    model, cost, optimizer = linear(), pl.CrossEntropy(), pl.SGD(learnRate=0.1)
    optimizer.setupOn(model)
    rows, labels = torch.from_numpy(X), torch.from_numpy(Y)
    pred = model(rows)
    error, grad = cost(pred, labels)
    wanted = nn.functional.one_hot(labels.long(), 3) - pred.detach().softmax(1)
    torch.testing.assert_close(grad, wanted / len(rows))
    assert error == pytest.approx(nn.functional.cross_entropy(pred, labels.long()).item(), abs=1e-6)
    assert cost(pred, labels, queryError=False) is cost.grad
    assert cost.numOfSamples == 2 * len(rows)
    before = model.weight.detach().clone()
    optimizer.zeroGradParams()
    pred.backward(-grad)
    optimizer.update()
    torch.testing.assert_close(model.weight.detach() - before, 0.1 * (wanted.T @ rows) / len(rows))
    assert optimizer.t == 1


def test_a_small_module_is_trained_from_a_tape_until_the_cost_is_set_otherwise() -> None:
    model, cost = linear(), pl.CrossEntropy(weights=[1.0, 2.0, 3.0])
    handler = trainer(model, cost, pl.MomentumSGD(learnRate=0.01), batchsize=23)
    rows, labels = torch.from_numpy(X), torch.from_numpy(Y).long()
    for _ in range(12):
        handler.trainFromHost(X, Y)
        cost.getError()
    assert "changes" not in handler._native.tape_note
    assert handler._native.tape_note
    for weights in list[Any]([torch.tensor([5.0, 0.0, 1.0]), cost.weights]):
        cost.weights = weights
        if weights is cost.weights:
            weights.mul_(2)
        with torch.no_grad():
            wanted = nn.functional.cross_entropy(model(rows), labels, reduction="none") * weights[labels]
        handler.trainFromHost(X, Y)
        assert handler.cost.getError() == pytest.approx(wanted.mean().item(), abs=1e-5)


def test_several_costs_give_lists_of_errors_and_gradients() -> None:
    pred, target = torch.randn(10, 4), torch.randn(10, 4)
    errors, grads = pl.Multi().append(pl.MSE()).append(pl.Abs())([pred, pred], [target, target])
    apart = pred - target
    assert errors == pytest.approx([apart.square().mean().item() / 2, apart.abs().mean().item()])
    torch.testing.assert_close(grads[0], (target - pred) / 40)


def test_settings_of_an_optimizer_may_change_between_two_batches_and_it_counts_its_updates() -> None:
    gradients = [0.5, -0.2]
    for make, name, value in (
        (pl.MomentumSGD, "momRate", 0.5),
        (pl.NesterovSGD, "momRate", 0.5),
        (pl.RMSProp, "factor", 0.1),
        (pl.AdaGrad, "epsilon", 1.0),
        (pl.AdaDelta, "epsilon", 1.0),
        (pl.Adam, "beta1", 0.1),
    ):
        changed, plain = make(), make()
        setattr(changed, name, value)
        assert getattr(changed, name) == value
        assert steps_of(changed, gradients) == steps_of(make(**{name: value}), gradients) != steps_of(plain, gradients)
        assert plain.t == 2
        setattr(plain, name, value)
        assert plain.torch is not None
        assert value in plain.torch.param_groups[0].values()
    handler = trainer(linear(), batchsize=10)
    handler.trainFromHost(X, Y)
    assert handler.optimizer.t == 3
    assert handler.optimizer.module is handler.module


def test_another_cost_counts_from_the_next_batch_on_and_several_trainers_share_an_optimizer() -> None:
    model, optimizer = linear(), pl.MomentumSGD(learnRate=0.1)
    first = trainer(model, pl.CrossEntropy(), optimizer)
    first.trainFromHost(X, Y)
    first.cost = pl.SVM()
    with torch.no_grad():
        pred = model(torch.from_numpy(X))
    first.trainFromHost(X, Y)
    assert first.cost.getMeanError() == pytest.approx(pl.SVM()(pred, torch.from_numpy(Y))[0], abs=1e-6)
    for each in (trainer(model, "svm", optimizer), first):
        before = model.weight.detach().clone()
        each.trainFromHost(X, Y)
        assert not torch.equal(model.weight, before)
    assert optimizer.t == 4


def test_a_setting_that_an_optimizer_does_not_have_is_told_with_those_that_it_has() -> None:
    with pytest.raises(AttributeError, match="Its settings: learnRate, momRate"):
        pl.MomentumSGD().momentum  # noqa: B018


@pytest.mark.parametrize("module", ["", ".costs", ".optimizers"])
@pytest.mark.parametrize("name", ["Hinge", "L1Hinge", "KLDivergence", "RMSPropGraves", "SMORMS3"])
def test_an_import_of_what_is_not_offered_says_what_to_write_instead(name: str, module: str) -> None:
    with pytest.raises(ImportError, match=rf"^PuzzleLib's {name} is not offered here\. Write .+\.$"):
        exec(f"from headrace.compat.puzzlelib{module} import {name}")
    with pytest.raises(ImportError, match="cannot import name 'Nothing'"):
        exec(f"from headrace.compat.puzzlelib{module} import Nothing")
