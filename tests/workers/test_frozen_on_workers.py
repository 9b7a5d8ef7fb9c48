"""Parameters that are frozen for a while are trained again on several workers, whatever the device."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from kit.worker_trainings import columns, make
from torch import Tensor, nn

import headrace as hr
from headrace.workers.here import here
from headrace.workers.synchronous import GradientBuckets

X, Y = torch.randn(48, 4, generator=torch.Generator().manual_seed(0)), torch.arange(48) % 2


class OnDevice(Tensor):
    """Numbers that seem to be on a device: to read them would be to wait for it."""

    is_cuda = True
    read = 0

    def tolist(self) -> Any:
        OnDevice.read += 1
        return super().tolist()


@pytest.fixture(params=["host", "device"])
def sums(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the sums over all workers are: where no device is at hand, they only seem to be on one."""
    if request.param == "device":
        finish = GradientBuckets.finish
        monkeypatch.setattr(
            GradientBuckets, "finish", lambda self, numbers: finish(self, numbers).as_subclass(OnDevice)
        )


class ByHand(hr.Callback):
    """Freezes the first layer for the second epoch, without telling anybody; perhaps on worker 0 only."""

    def __init__(self, everywhere: bool = True) -> None:
        self.everywhere = everywhere

    def on_epoch_start(self, info: hr.Info) -> None:
        for param in info.trainer.model[0].parameters():
            param.requires_grad_(info.epoch != 1)


def train(callback: Callable[[], hr.Callback], batch_size: int = 12) -> list[list[Tensor]]:
    """The weights of both layers after each of three epochs."""
    torch.manual_seed(0)
    model: Any = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2)).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    trainer = hr.Trainer(model, hr.CrossEntropy(), optimizer, batch_size=batch_size)
    found = [[model[0].weight.detach().clone(), model[2].weight.detach().clone()]]
    for info in trainer.steps((X.double(), Y), epochs=3, callbacks=[callback()]):
        if info.ends_epoch:
            found.append([model[0].weight.detach().clone(), model[2].weight.detach().clone()])
    return found


def until() -> hr.Callback:
    return hr.Freeze("0.*", until="1 epoch")


def after() -> hr.Callback:
    return hr.Freeze("0.*", after="1 epoch", until="2 epochs")


@pytest.mark.usefixtures("sums")
@pytest.mark.parametrize(("callback", "epoch"), [(until, 0), (after, 1), (ByHand, 1)])
def test_a_layer_that_was_frozen_is_trained_again_as_with_one_worker(
    callback: Callable[[], hr.Callback], epoch: int
) -> None:
    one, two = hr.launch(train, callback), hr.launch(train, callback, workers=2)
    for k in range(3):
        assert torch.equal(two[k][0], two[k + 1][0]) == (k == epoch), f"the first layer in epoch {k}"
        assert not torch.equal(two[k][1], two[k + 1][1])
    for mine, theirs in zip(one[-1], two[-1], strict=True):
        assert torch.allclose(mine, theirs, rtol=0, atol=1e-12)


def gated() -> list[Any]:
    """The weights of all workers."""
    trainer = make("rare, adam", batch_size=6)
    model: Any = trainer.model
    before = model.rare.weight.detach().clone()
    trainer.fit(columns(), epochs=2, progress=False)
    assert not torch.equal(before, model.rare.weight)
    return here().all_gather(model.rare.weight.detach())


@pytest.mark.usefixtures("sums")
def test_a_parameter_that_only_some_workers_reach_is_trained_on_all() -> None:
    first, second = hr.launch(gated, workers=2)
    assert torch.equal(first, second)


@pytest.mark.usefixtures("sums")
def test_a_layer_that_is_frozen_on_one_worker_only_is_refused_by_name() -> None:
    with pytest.raises(hr.ModelError, match=r"'0\.weight' is frozen on 1 of 2 workers.*hr\.Freeze"):
        hr.launch(train, lambda: ByHand(everywhere=False), workers=2)


ROUNDS: dict[str, Callable[[], hr.Strategy]] = {
    "periodic": lambda: hr.Periodic("3 steps"),
    "outer": lambda: hr.Periodic("3 steps", outer=lambda params: torch.optim.SGD(params, 0.7, weight_decay=0.1)),
    "block momentum": lambda: hr.BlockMomentum("3 steps"),
    "diloco": lambda: hr.DiLoCo("3 steps"),
}


@pytest.mark.parametrize("frozen_from", [0, 3])  # where a round begins
@pytest.mark.parametrize("strategy", ROUNDS)
def test_the_mean_of_what_is_frozen_is_itself(strategy: str, frozen_from: int) -> None:
    """A mean of equal numbers may round, and momentum goes on: both would move a frozen layer and its statistics."""

    class Freezes(hr.Callback):
        def on_epoch_start(self, info: hr.Info) -> None:
            info.trainer.model[:2].requires_grad_(info.epoch < frozen_from)

    def work() -> list[list[Tensor]]:
        torch.manual_seed(0)
        model: Any = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4).eval(), nn.Tanh(), nn.Linear(4, 2))
        model[1].train = lambda mode=True: model[1]
        nn.init.normal_(model[1].running_mean)
        adam = torch.optim.Adam(model.parameters(), lr=0.1)
        trainer = hr.Trainer(model, hr.CrossEntropy(), adam, batch_size=8, strategy=ROUNDS[strategy]())
        found = [_copied(model)]
        for info in trainer.steps((X[:47], Y[:47]), epochs=6, callbacks=[Freezes()], progress=False):
            if info.ends_epoch:
                found.append(_copied(model))
        return found

    epochs: list[list[Tensor]] = hr.launch(work, workers=3)
    for before, after in zip(epochs[frozen_from:], epochs[frozen_from + 1 :], strict=False):
        assert all(map(torch.equal, before[:-2], after[:-2]))
        assert not torch.equal(before[-2], after[-2])


def _copied(model: nn.Module) -> list[Tensor]:
    return [value.detach().clone() for value in model.state_dict().values() if value.is_floating_point()]
