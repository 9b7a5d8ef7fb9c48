"""A step that fails and is caught: the next one is made as if it had never been called, or is refused."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from kit.sampled import each
from kit.small import Parts, in_run
from torch import Tensor, nn

import headrace as hr


class FailError(Exception):
    """What fails on purpose."""


def fail(*_: Any) -> None:
    raise FailError


def shallow(self: Any, x: Tensor) -> Tensor:
    """A layer is left out at random."""
    x = self.first(x)
    return x + self.second(x) if float(torch.rand(())) < 0.5 else x


def sparse() -> nn.Module:
    layers = {"table": nn.Embedding(4, 8, sparse=True), "layer": nn.Linear(6, 8)}
    return Parts(lambda self, x: self.layer(x) + self.table((x[:, 0] > 0).long()), **layers)


class Counts(nn.Module):
    """Puts another tensor into the place of its buffer, and writes into a large one."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 8)
        self.register_buffer("calls", torch.zeros(()))
        self.register_buffer("large", torch.zeros((1 << 20) + 1))

    def forward(self: Any, x: Tensor) -> Any:
        self.calls = self.calls + 1
        self.large[:3] += 1
        return self.layer(x)


BODIES: dict[str, Callable[[], nn.Module]] = {
    "plain": lambda: nn.Sequential(nn.Linear(6, 8), nn.Tanh()),
    "statistics and dropout": lambda: nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(0.3)),
    "sometimes shallow": lambda: Parts(shallow, first=nn.Linear(6, 8), second=nn.Linear(8, 8)),
    "sparse": sparse,
    "counts": Counts,
    "spectral norm": lambda: nn.utils.parametrizations.spectral_norm(nn.Linear(6, 8)),
}
SETTINGS: list[dict[str, Any]] = [
    {},
    {"clip_norm": 0.1},
    {"precision": "fp16", "clip_norm": 0.1},
    {"precision": "bf16"},
    {"microbatch": 3},
    {"microbatch": "auto"},
    {"arena": False},
]


class Model(nn.Module):
    """Fails in the forward or in the backward pass: with microbatches, in that of the second."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body, self.head = body, nn.Linear(8, 3)
        self.where, self.passes = "", 0

    def forward(self, x: Tensor) -> Tensor:
        self.passes += 1
        x = self.body(x)
        if self.passes == 2 or len(x) == 8:
            if self.where == "forward":
                fail()
            if self.where == "an interrupt":
                raise KeyboardInterrupt
            if self.where == "backward":
                x.register_hook(fail)
        return self.head(x)  # type: ignore[no-any-return]


def batch(number: int) -> tuple[Tensor, Tensor]:
    x = torch.randn(8, 6, generator=torch.Generator().manual_seed(number))
    return x, x[:, :3].argmax(dim=1)


def made(body: str, settings: dict[str, Any]) -> Any:
    torch.manual_seed(0)
    model = Model(BODIES[body]())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.0 if body == "sparse" else 0.9)
    return hr.Trainer(model, hr.CrossEntropy(), optimizer, **settings)


def step(trainer: Any, number: int, where: str = "") -> None:
    x, y = batch(number)
    model, handles = trainer.model, []
    model.where, model.passes = where, 0
    if where == "a gradient":
        handles.append(model.head.bias.register_hook(fail))
    if where == "a loss that is not finite":
        x = x * float("nan")
    if where == "a label out of range":
        y = y + 5
    if where == "before the optimizer":
        handles.append(trainer.optimizer.register_step_pre_hook(fail))
    if where == "after the optimizer":
        handles.append(trainer.optimizer.register_step_post_hook(fail))
    try:
        trainer.step((x, y))
    finally:
        model.where = ""
        for handle in handles:
            handle.remove()


def state(trainer: Any) -> dict[str, Any]:
    trainer.release()
    gradients = [param.grad for param in trainer.model.parameters()]
    assert gradients == [None] * len(gradients)
    return {
        "model": trainer.model.state_dict(),
        "optimizer": trainer.optimizer.state_dict()["state"],
        "random": torch.get_rng_state(),
    }


PLACES = ["an interrupt", "forward", "backward", "a gradient", "a loss that is not finite", "a label out of range"]


@pytest.mark.filterwarnings("ignore:the model has .*with microbatches")
@pytest.mark.parametrize(("body", "settings"), each(BODIES, SETTINGS), ids=str)
def test_the_next_step_is_made_as_if_the_failed_one_had_never_been_called(body: str, settings: dict[str, Any]) -> None:
    undisturbed = made(body, settings)
    for number in range(3):
        step(undisturbed, number)
    expected = state(undisturbed)
    for where in PLACES:
        for first in (True, False):
            trainer = made(body, settings)
            for number in range(3):
                if number == (0 if first else 2):
                    with pytest.raises((FailError, KeyboardInterrupt, hr.HeadraceError, IndexError)):
                        step(trainer, 7, where)
                step(trainer, number)
            torch.testing.assert_close(state(trainer), expected, rtol=0, atol=0)


@pytest.mark.parametrize("settings", [{}, {"precision": "fp16"}, {"arena": False}], ids=str)
@pytest.mark.parametrize("where", ["before the optimizer", "after the optimizer"])
def test_an_optimizer_that_fails_half_way_makes_no_more_updates(where: str, settings: dict[str, Any]) -> None:
    trainer = made("plain", settings)
    step(trainer, 0)
    with pytest.raises(FailError):
        step(trainer, 1, where)
    for _ in range(2):
        with pytest.raises(hr.ModelError, match=r"^step 2 .*FailError.*half an update.*release"):
            step(trainer, 2)
    trainer.release()
    step(trainer, 2)


def test_a_run_goes_on_after_an_optimizer_that_has_failed_half_way(tmp_path: Any) -> None:
    """The checkpoint is from before."""
    x, y = (torch.cat(parts) for parts in zip(*[batch(number) for number in range(6)], strict=True))
    trainer, undisturbed = made("plain", {"batch_size": 8}), made("plain", {"batch_size": 8})
    options = {"epochs": 2, "every": "1 step", "progress": False}
    handle = trainer.optimizer.register_step_post_hook(fail)
    with pytest.raises(FailError):
        trainer.fit((x, y), **in_run(tmp_path / "run", **options))
    handle.remove()
    trainer.fit((x, y), **in_run(tmp_path / "run", **options))
    undisturbed.fit((x, y), **in_run(**options))
    torch.testing.assert_close(state(trainer), state(undisturbed), rtol=0, atol=0)
