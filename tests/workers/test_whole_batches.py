"""A loss that needs whole batches is never computed from parts of them without a word."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import headrace as hr

X = torch.randn(48, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
Y = X + 0.1 * torch.randn(48, 6, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
BATCH = 12


def info_nce(outputs: Tensor, target: Tensor) -> Tensor:
    """Every row is to be told from the others of the batch."""
    return F.cross_entropy(F.normalize(outputs) @ F.normalize(target).T / 0.2, torch.arange(len(outputs)))


class InfoNCE(hr.Objective):
    """The same, without a word about parts of a batch."""

    def terms(self, model: nn.Module, batch: hr.Batch) -> dict[str, hr.Term]:
        return {"nce": hr.Term(info_nce(model(batch["x"]), batch["y"]) * batch.rows, float(batch.rows))}


class Whole(InfoNCE):
    """The same, declared to need whole batches."""

    splits = False


class Squares(hr.Objective):
    """A sum over rows and a prior, declared to be one."""

    splits = True

    def terms(self, model: nn.Module, batch: hr.Batch) -> dict[str, hr.Term]:
        far = hr.Term((model(batch["x"]) - batch["y"]).square().sum(), float(batch.rows))
        return {"far": far, "prior": hr.L2Prior(1).term(model, None, batch)}


LOSSES: list[Callable[[], Any]] = [lambda: info_nce, InfoNCE, Whole]


def trainer(loss: Callable[[], Any], **options: Any) -> hr.Trainer:
    torch.manual_seed(0)
    model = nn.Linear(6, 6).double()
    given = {"batch_size": BATCH} | options
    return hr.Trainer(model, loss(), torch.optim.SGD(model.parameters(), 0.1), inputs="x", **given)


def fit(loss: Callable[[], Any], **options: Any) -> dict[str, Any]:
    trained = trainer(loss, **options)
    history = trained.fit((X, Y), (X, Y), epochs=2, progress=False)
    return {"weight": trained.model.weight.detach(), "val": history["val/loss"]}


def step(loss: Callable[[], Any]) -> Any:
    return trainer(loss).step((X[:BATCH], Y[:BATCH]))


@pytest.mark.parametrize("act", [fit, step])
@pytest.mark.parametrize("loss", LOSSES)
def test_workers_that_would_share_batches_of_such_a_loss_are_refused(
    loss: Callable[[], Any], act: Callable[..., Any]
) -> None:
    with pytest.raises(hr.ConfigError, match=r"2 workers share every batch.*('info_nce'|'InfoNCE'|'Whole')") as refused:
        hr.launch(act, loss, workers=2)
    for part in ("hr.RowMean(fn)", "splits = True", "compares rows with each other", "hr.Periodic()", "one worker"):
        assert part in str(refused.value)


@pytest.mark.parametrize("loss", LOSSES)
def test_microbatches_of_such_a_loss_are_refused(loss: Callable[[], Any]) -> None:
    with pytest.raises(hr.ConfigError, match=r"microbatch=4 splits batches.*leave microbatch= out"):
        trainer(loss, microbatch=4)
    with pytest.raises(hr.ConfigError, match=r"microbatch=4 splits batches"):
        trainer(loss).microbatch = 4


@pytest.mark.parametrize("loss", [lambda: hr.RowMean(nn.functional.l1_loss), Squares])
def test_what_is_declared_to_be_a_sum_over_rows_is_shared(loss: Callable[[], Any]) -> None:
    one, two = hr.launch(fit, loss), hr.launch(fit, loss, workers=2)
    assert torch.allclose(one["weight"], two["weight"], rtol=0, atol=1e-12)
    assert one["val"] == pytest.approx(two["val"], abs=1e-12)
    trainer(loss, microbatch=4)


@pytest.mark.parametrize("loss", LOSSES)
def test_every_worker_scores_whole_batches_of_such_a_loss(loss: Callable[[], Any]) -> None:
    def scores() -> float:
        return float(trainer(loss).validate((X, Y))["val/loss"])

    assert hr.launch(scores, workers=3) == hr.launch(scores)


@pytest.mark.parametrize("loss", LOSSES)
def test_workers_with_models_of_their_own_train_with_whole_batches(loss: Callable[[], Any]) -> None:
    """Here each worker makes the update of one of the two batches that one worker would make one after the other."""

    def by_hand() -> Tensor:
        made = []
        for k in range(2):
            alone = trainer(loss)
            alone.step((X[:24][k * BATCH : (k + 1) * BATCH], Y[:24][k * BATCH : (k + 1) * BATCH]))
            made.append(alone.model.weight.detach())
        return torch.stack(made).mean(dim=0)

    def rounds() -> Any:
        trained = trainer(loss, strategy=hr.Periodic("1 step"), order="none")
        trained.fit((X, Y), steps=1, progress=False)
        return trained.model.weight.detach()

    assert torch.allclose(hr.launch(rounds, workers=2), by_hand(), rtol=0, atol=1e-12)
