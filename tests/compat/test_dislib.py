"""dislib's eight distributed trainings."""

import runpy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import headrace as hr
from headrace.compat.dislib import EncapsulatedFunctionsDistributedEddl

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")
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


def built(workers: int = 3, **optimizer: Any) -> EncapsulatedFunctionsDistributedEddl:
    torch.manual_seed(0)
    trainer = EncapsulatedFunctionsDistributedEddl(num_workers=workers)
    trainer.build(nn.Linear(4, 2), {"optimizer": "sgd", "lr": 0.2, **optimizer}, "soft_cross_entropy", "accuracy")
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


def test_a_synchronous_epoch_is_the_equal_mean_of_workers_that_trained_on_their_shares() -> None:
    trainer = built()
    weight, bias = trainer.get_parameters()
    found = trainer.fit_synchronous_with_GPU(blocks(X), blocks(Y), 2, 1, shuffle_blocks=False, shuffle_block_data=False)
    ends = []
    for worker in range(3):
        model = nn.Linear(4, 2)
        with torch.no_grad():
            model.weight.copy_(torch.from_numpy(weight))
            model.bias.copy_(torch.from_numpy(bias))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
        for start in range(8 * worker, 96, 24):
            rows, labels = torch.from_numpy(X[start : start + 8]), torch.from_numpy(Y[start : start + 8])
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(rows), labels).backward()
            optimizer.step()
        ends.append(model.weight.detach().numpy())
    np.testing.assert_allclose(found[0], np.mean(ends, axis=0), rtol=1e-5, atol=1e-6)


def test_plain_arrays_are_cut_into_a_block_for_each_worker_and_losses_are_kept() -> None:
    trainer = built(workers=2)
    trainer.fit_synchronous_with_GPU(X, Y, 6, 3)
    assert trainer.history["train/accuracy"][-1] > 0.8


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
    for start in range(0, 96, 24):
        rows, labels = torch.from_numpy(X[start : start + 24]), torch.from_numpy(Y[start : start + 24])
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
    with pytest.raises(hr.HeadraceError, match="n_epocs_sync= is 1 or more"):
        built().fit_synchronous_every_n_epochs_with_GPU(blocks(X), blocks(Y), 2, 1, n_epocs_sync=0)


def test_the_example_and_its_native_twin_come_to_the_same_parameters_and_losses() -> None:
    folder = Path(__file__).parents[2] / "examples/compat"
    legacy, native = (runpy.run_path(str(folder / f"dislib_{name}.py"))["main"]() for name in ("legacy", "native"))
    for own, twin in zip(legacy[0], native[0], strict=True):
        np.testing.assert_allclose(own, twin, rtol=1e-6)
    assert legacy[1] == pytest.approx(native[1])
    assert legacy[1][-1] < 0.5
