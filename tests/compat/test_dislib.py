"""dislib's eight distributed trainings."""

import runpy
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from kit.forked import start
from kit.torch_workers import fork_workers
from torch import nn

import headrace as hr
from headrace.compat.dislib import EncapsulatedFunctionsDistributedEddl
from headrace.compat.dislib.blocks import BlockReader, Shuffle

RNG = np.random.default_rng(0)
X = RNG.standard_normal((96, 4)).astype(np.float32)
Y = (X[:, 0] > 0).astype(np.int64)
METHODS = [
    ("fit_synchronous_with_GPU", {}),
    ("fit_synchronous_shuffle_with_GPU", {}),
    ("fit_synchronous_every_n_epochs_with_GPU", {"n_epocs_sync": 2}),
    ("fit_synchronous_shuffle_every_n_epochs_with_GPU", {"n_epocs_sync": 2}),
    ("fit_asynchronous_with_GPU", {}),
    ("fit_asynchronous_shuffle_with_GPU", {}),
    ("fit_asynchronous_n_epochs_with_GPU", {"n_epocs_sync": 1}),
    ("fit_asynchronous_n_epochs_with_GPU", {}),
    ("fit_asynchronous_shuffle_n_epochs_with_GPU", {"n_epocs_sync": 2}),
]


IN_ORDER = {"shuffle_blocks": False, "shuffle_block_data": False}


def built(
    workers: int = 3, engine: str = "local", metric: str = "accuracy", **optimizer: Any
) -> EncapsulatedFunctionsDistributedEddl:
    torch.manual_seed(0)
    trainer = EncapsulatedFunctionsDistributedEddl(num_workers=workers, engine=engine)
    trainer.build(nn.Linear(4, 2), {"optimizer": "sgd", "lr": 0.2, **optimizer}, "soft_cross_entropy", metric)
    return trainer


def blocks(data: np.ndarray[Any, Any]) -> Any:
    """As a ds_tensor has them: two rows of three blocks."""
    parts = np.split(data, 6)
    return SimpleNamespace(tensors=[parts[:3], parts[3:]], shape=(2, 3))


@pytest.mark.parametrize(("method", "options"), METHODS)
def test_a_training_learns_and_returns_the_parameters_that_it_leaves(method: str, options: dict[str, int]) -> None:
    trainer = built()
    before = trainer.get_parameters()
    found = getattr(trainer, method)(blocks(X), blocks(Y), 4, 4, **options)
    assert [array.shape for array in found] == [(2, 4), (2,)]
    for now, kept, first in zip(found, trainer.get_parameters(), before, strict=True):
        np.testing.assert_array_equal(now, kept)
        assert not np.array_equal(now, first)
    scores = X @ found[0].T + found[1]
    assert (scores.argmax(1) == Y).mean() > 0.85


def trained(params: Sequence[np.ndarray[Any, Any]], parts: Sequence[np.ndarray[Any, Any]]) -> list[torch.Tensor]:
    """Weight and bias after an update by SGD for each part of the rows."""
    weight, bias = (torch.from_numpy(np.asarray(array)).clone().requires_grad_() for array in params)
    for rows in parts:
        loss = nn.functional.cross_entropy(torch.from_numpy(X[rows]) @ weight.T + bias, torch.from_numpy(Y[rows]))
        for param, gradient in zip((weight, bias), torch.autograd.grad(loss, (weight, bias)), strict=True):
            param.data -= 0.2 * gradient
    return [weight.detach(), bias.detach()]


def batches_of(block: np.ndarray[Any, Any], count: int) -> list[np.ndarray[Any, Any]]:
    return [part for part in np.array_split(block, count) if len(part)]


@pytest.mark.parametrize("lengths", [(16, 16, 16, 16, 16, 16), (25, 7, 12, 30, 22)], ids=["equal", "uneven"])
@pytest.mark.parametrize(
    ("method", "every"),
    [
        ("fit_synchronous_with_GPU", 1),
        ("fit_synchronous_every_n_epochs_with_GPU", 2),
        ("fit_asynchronous_n_epochs_with_GPU", 0),
    ],
)
def test_worker_j_of_w_trains_on_blocks_j_and_j_plus_w_in_the_batches_of_array_split(
    method: str, every: int, lengths: tuple[int, ...]
) -> None:
    cut = np.split(np.arange(96), np.cumsum(lengths)[:-1])
    trainer = built()
    models: Any = [trainer.get_parameters()] * 3
    for epoch in range(1, 4):
        ends = [trained(models[j], [b for block in cut[j::3] for b in batches_of(block, 9)]) for j in range(3)]
        mean = [torch.stack(arrays).mean(0) for arrays in zip(*ends, strict=True)]
        models = [mean] * 3 if every and epoch % every == 0 else ends
    n_epocs = {} if every == 1 else {"n_epocs_sync": every}
    found = getattr(trainer, method)([X[rows] for rows in cut], [Y[rows] for rows in cut], 9, 3, **n_epocs, **IN_ORDER)
    for own, wanted in zip(found, mean, strict=True):
        np.testing.assert_allclose(own, wanted, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(("batches", "method"), [(60, "synchronous"), (30, "synchronous"), (30, "asynchronous")])
def test_a_block_makes_as_many_updates_as_batches_are_asked_for(batches: int, method: str) -> None:
    trainer = built(workers=2)
    x, y = np.tile(X, (3, 1))[:200], np.tile(Y, 3)[:200]
    getattr(trainer, f"fit_{method}_with_GPU")(x, y, batches, 1)
    assert trainer.history.last["step"] == batches
    assert trainer.history.last["samples"] == 200


@pytest.mark.parametrize("total", [False, True])
def test_shuffled_blocks_stay_whole_and_every_row_is_used_once_in_an_epoch(total: bool) -> None:
    shuffle = Shuffle(blocks=not total, rows=not total, total=total)
    reader: Any = BlockReader(hr.ArrayTable({"row": np.arange(24)}), [6] * 4, 2, 1, shuffle, 0)
    epochs = [[reader.next_batch(3) for _ in range(8)] for _ in range(2)]
    rows = [np.concatenate([batch["row"] for batch in epoch]) for epoch in epochs]
    assert [batch.ends_epoch for batch in epochs[0]] == [False] * 7 + [True]
    assert rows[0].tolist() != rows[1].tolist()
    for used in rows:
        assert sorted(used.tolist()) == list(range(24))
        assert all(len(set(part // 6)) == 1 for part in np.split(used, 4)) is not total


# --- real processes ---------------------------------------------------------------------------------------

ON_PROCESSES = [
    *((method, options) for method, options in METHODS if "_synchronous" in method),
    ("fit_asynchronous_n_epochs_with_GPU", {}),
    ("fit_asynchronous_shuffle_n_epochs_with_GPU", {}),
]


def compare_engines(rows: list[tuple[str, dict[str, int]]]) -> None:
    """Every fit by two processes gives the bits, the losses and the metric of virtual workers."""
    data = [X[:15], X[15:40], X[40:90]], [Y[:15], Y[15:40], Y[40:90]]
    for method, options in rows:
        found, histories = [], []
        for engine in ("processes", "local"):
            trainer = built(2, engine, "mae", momentum=0.9)
            found.append(getattr(trainer, method)(*data, 4, 3, **options))
            histories.append([trainer.history[name] for name in ("train/loss", "train/mae")])
        for one, other in zip(*found, strict=True):
            np.testing.assert_array_equal(one, other)
        assert histories[0] == histories[1]
        assert len(histories[0][0]) == 3


def compare_engines_forked(first: int) -> None:
    fork_workers()
    compare_engines(ON_PROCESSES[first : first + 1])


@pytest.mark.parametrize("row", [0, *(pytest.param(k, marks=pytest.mark.slow) for k in range(1, len(ON_PROCESSES)))])
def test_workers_that_are_processes_come_to_the_bits_of_virtual_ones(row: int, tmp_path: Path) -> None:
    with start(compare_engines_forked, tmp_path, row) as child:
        assert child.ending() == 0, child.output


@pytest.mark.parametrize(
    ("given", "twin"),
    [
        (
            {"optimizer": "adam", "lr": 0.1, "beta_1": 0.5, "epsilon": 1e-3},
            ("Adam", {"betas": (0.5, 0.999), "eps": 1e-3}),
        ),
        ({"optimizer": "adam", "lr": 0.1}, ("Adam", {"eps": 1e-6})),
        ({"optimizer": "rmsprop", "lr": 0.1, "rho": 0.5}, ("RMSprop", {"alpha": 0.5, "eps": 1e-5})),
        ({"optimizer": "adadelta", "lr": 0.1, "rho": 0.5}, ("Adadelta", {"rho": 0.5, "eps": 1e-5})),
        ({"optimizer": "adagrad", "lr": 0.1}, ("Adagrad", {"eps": 1e-5})),
        ({"optimizer": "adamax", "lr": 0.1}, ("Adamax", {"eps": 1e-5})),
        ({"optimizer": "nadam", "lr": 0.1, "schedule_decay": 0.01}, ("NAdam", {"momentum_decay": 0.01, "eps": 1e-5})),
        (
            {"optimizer": "sgd", "lr": 0.1, "momentum": 0.9, "nesterov": True},
            ("SGD", {"momentum": 0.9, "nesterov": True}),
        ),
    ],
)
def test_settings_of_optimizers_have_their_old_names_and_defaults(given: dict[str, Any], twin: Any) -> None:
    trainer = built(workers=1, **given)
    model = nn.Linear(4, 2)
    weight, bias = trainer.get_parameters()
    with torch.no_grad():
        model.weight.copy_(torch.from_numpy(weight))
        model.bias.copy_(torch.from_numpy(bias))
    optimizer = getattr(torch.optim, twin[0])(model.parameters(), lr=0.1, **twin[1])
    for first in range(0, 96, 24):
        rows, labels = torch.from_numpy(X[first : first + 24]), torch.from_numpy(Y[first : first + 24])
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(rows), labels).backward()
        optimizer.step()
    found = trainer.fit_synchronous_with_GPU(X, Y, 4, 1, shuffle_blocks=False, shuffle_block_data=False)
    np.testing.assert_allclose(found[0], model.weight.detach().numpy(), rtol=1e-4, atol=1e-6)


def test_dice_is_a_mean_over_rows_and_the_relative_error_one_over_elements() -> None:
    torch.manual_seed(0)
    trainer = EncapsulatedFunctionsDistributedEddl(num_workers=2)
    model = nn.Sequential(nn.Linear(4, 6), nn.Sigmoid())
    targets = (RNG.random((96, 6)) > 0.5).astype(np.float32)
    trainer.build(model, {"optimizer": "sgd", "lr": 0.0}, "dice", "mae")
    trainer.fit_synchronous_with_GPU(X, targets, 4, 1)
    y = model(torch.from_numpy(X)).detach().numpy()
    wanted = 1 - (2 * (y * targets).sum(1) / (y.sum(1) + targets.sum(1))).mean()
    assert trainer.history["train/loss"][-1] == pytest.approx(wanted, abs=1e-5)
    for name in ("mre", "mean_relative_error"):
        trainer.build(model, {"optimizer": "sgd", "lr": 0.0}, "mse", name)
        trainer.fit_synchronous_with_GPU(X, targets + 1, 4, 1)
        relative = (np.abs(targets + 1 - y) / (targets + 1 + 1e-3)).mean()
        assert trainer.history["train/mean_relative_error"][-1] == pytest.approx(relative, abs=1e-5)


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("loss", ["mse", "bce", "sce"])
def test_categorical_accuracy_is_by_the_largest_output_whatever_the_loss(loss: str, workers: int) -> None:
    torch.manual_seed(0)
    model = nn.Linear(4, 3)
    targets = np.eye(3, dtype=np.float32)[RNG.integers(0, 3, 96)]
    for given in (targets, targets.argmax(1)) if loss == "sce" else (targets,):
        trainer = EncapsulatedFunctionsDistributedEddl(workers)
        trainer.build(model, {"optimizer": "sgd", "lr": 0.0}, loss, "categorical_accuracy")
        trainer.fit_synchronous_with_GPU(X, given, 4, 1)
        right = model(torch.from_numpy(X)).argmax(1).numpy() == targets.argmax(1)
        assert trainer.history["train/accuracy"][-1] == pytest.approx(right.mean())


@pytest.mark.parametrize("as_labels", [False, True])
@pytest.mark.parametrize(("loss", "activation"), [("sce", torch.softmax), ("cce", torch.softmax), ("bce", None)])
@pytest.mark.parametrize(("metric", "name"), [("mse", "mse"), ("mae", "mae"), ("mre", "mean_relative_error")])
def test_errors_are_of_probabilities_where_the_loss_takes_scores(
    metric: str, name: str, loss: str, activation: Any, as_labels: bool
) -> None:
    torch.manual_seed(0)
    model, one_hot = nn.Linear(4, 3), np.eye(3, dtype=np.float32)[RNG.integers(0, 3, 96)]
    if loss == "bce" and as_labels:
        one_hot = one_hot.astype(bool)
    trainer = EncapsulatedFunctionsDistributedEddl(2)
    trainer.build(model, {"optimizer": "sgd", "lr": 0.0}, loss, metric)
    trainer.fit_synchronous_with_GPU(X, one_hot.argmax(1) if as_labels and activation else one_hot, 4, 1)
    scores = model(torch.from_numpy(X)).detach()
    found = (activation(scores, 1) if activation else scores.sigmoid()).numpy() - one_hot.astype(np.float32)
    wanted = {"mse": found**2, "mae": abs(found), "mre": abs(found) / (one_hot.astype(np.float32) + 1e-3)}[metric]
    assert trainer.history[f"train/{name}"][-1] == pytest.approx(wanted.mean(), rel=1e-5)


def test_more_workers_than_blocks_are_warned_of() -> None:
    trainer = built(workers=4)
    with pytest.warns(UserWarning, match=r"4 workers share 3 blocks: the others train nothing"):
        trainer.fit_synchronous_with_GPU([X[:32], X[32:64], X[64:]], [Y[:32], Y[32:64], Y[64:]], 4, 1)


def test_what_is_not_offered_is_refused_in_a_sentence() -> None:
    trainer = EncapsulatedFunctionsDistributedEddl(2)
    with pytest.raises(hr.HeadraceError, match="Call build"):
        trainer.get_parameters()
    with pytest.raises(hr.HeadraceError, match="loss 'mean_square'"):
        trainer.build(nn.Linear(4, 2), {}, "mean_square", "mse")
    with pytest.raises(hr.HeadraceError, match="optimizer 'adamw'"):
        trainer.build(nn.Linear(4, 2), {"optimizer": "adamw"}, "mse", "mse")
    with pytest.raises(hr.HeadraceError, match="from 1 to the 16 rows"):
        built().fit_synchronous_with_GPU(blocks(X), blocks(Y), 17, 1)
    for batches in list[Any]([0, 2.5]):
        with pytest.raises(hr.ConfigError, match="num_batches_per_worker= is from 1 to the 16 rows"):
            built().fit_asynchronous_with_GPU(blocks(X), blocks(Y), batches, 1)
    with pytest.raises(hr.DataError, match="blocks of the same length, got blocks of 46, 50 rows"):
        built().fit_asynchronous_with_GPU([X[:50], X[50:]], [Y[:50], Y[50:]], 4, 1)
    with pytest.raises(hr.DataError, match="block 1 has no rows"):
        built().fit_synchronous_with_GPU([X, X[:0]], [Y, Y[:0]], 4, 1)
    with pytest.raises(hr.ConfigError, match="num_workers= is a whole number, at least 1, got 0"):
        EncapsulatedFunctionsDistributedEddl(0)
    with pytest.raises(hr.ConfigError, match="seed= is a whole number, at least 0, got -1"):
        EncapsulatedFunctionsDistributedEddl(2, seed=-1)
    alone = EncapsulatedFunctionsDistributedEddl(2)
    alone.build(nn.Linear(4, 1), {}, "mse", "categorical_accuracy")
    with pytest.raises(hr.DataError, match=r"compares classes, and the model gives one number"):
        alone.fit_synchronous_with_GPU(X, X[:, :1], 4, 1)
    with pytest.raises(hr.HeadraceError, match="n_epocs_sync= is 1 or more"):
        built().fit_synchronous_every_n_epochs_with_GPU(blocks(X), blocks(Y), 2, 1, n_epocs_sync=0)


def test_the_example_and_its_native_twin_come_to_the_same_parameters_and_losses() -> None:
    folder = Path(__file__).parents[2] / "examples/compat"
    legacy, native = (runpy.run_path(str(folder / f"dislib_{name}.py"))["main"]() for name in ("legacy", "native"))
    for own, twin in zip(legacy[0], native[0], strict=True):
        np.testing.assert_allclose(own, twin, rtol=1e-6)
    assert legacy[1] == pytest.approx(native[1])
    assert legacy[1][-1] < 0.5
