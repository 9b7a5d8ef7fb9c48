"""Models as users write them: with `tape="auto"` their passes are replayed, and the bits are torch's."""

import inspect
import math
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from kit.ordinary_models import ORDINARY, ROWS, Layers, Settings
from kit.small import same
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

import headrace as hr
from headrace.step.tape import tapes

BATCH, EPOCHS = 8, 3


@pytest.fixture(autouse=True)
def however_long_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The time that passes take on this machine decides nothing."""
    monkeypatch.setattr(tapes, "GAIN", math.inf)
    monkeypatch.setattr(tapes, "SHARE", math.inf)


@pytest.fixture(autouse=True)
def as_before_a_compilation(monkeypatch: pytest.MonkeyPatch) -> None:
    """`torch.compile` replaces `nn.Module.__init__` for the rest of a process, by a function that the tape refuses."""
    init = nn.Module.__init__
    if init.__name__ == "patched_init":  # some other test has compiled something
        monkeypatch.setattr(nn.Module, "__init__", inspect.getclosurevars(init).nonlocals["init"])


def trained(model: Callable[[], nn.Module], loss: Any, data: dict[str, Tensor], tape: Any) -> tuple[list[Tensor], str]:
    torch.manual_seed(3)
    random.seed(3)
    made = model()
    optimizer = torch.optim.Adam(made.parameters(), 0.01)
    trainer = hr.Trainer(made, loss, optimizer, batch_size=BATCH, tape=tape)
    trainer.fit(data, epochs=EPOCHS, progress=False)
    note = trainer.tape_note
    predicted = tree_leaves(trainer.predict(data))
    return [*(value.clone() for value in made.state_dict().values()), torch.get_rng_state(), *predicted], note


@pytest.mark.parametrize("name", ORDINARY)
def test_an_ordinary_model_is_replayed_with_torchs_bits(name: str) -> None:
    model, data, loss = ORDINARY[name]
    expected, _ = trained(model, loss(), data, False)
    found, note = trained(model, loss(), data, "auto")
    assert "replayed" in note
    assert same(expected, found)


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return gradients[0] * 2


class CallableLoss:
    factor = 2.0

    def __call__(self, outputs: Tensor, y: Tensor) -> Tensor:
        return nn.functional.cross_entropy(outputs, y) * self.factor


def imports(self: Any, x: Tensor) -> Any:
    import statistics

    return statistics.fmean([1.0, 1.0])


def counts(self: Any, x: Tensor) -> Any:
    self.calls = getattr(self, "calls", 0) + 1
    return 1.0


NOT_REPLAYED: list[tuple[Callable[[Any, Tensor], Any], str, int]] = [
    (lambda self, x: self.settings.scale, "settings", 0),
    (lambda self, x: Settings.scale, "Settings", 0),
    (lambda self, x: getattr(self, "factor", 1.0), "getattr", 0),
    (lambda self, x: 2.0 if random.random() < 0.5 else 1.0, "random", 0),
    (lambda self, x: self.fc1.weight.mean().item(), "item", 0),
    (lambda self, x: (print(x.shape), 1.0)[1], "print", 0),
    (imports, "statistics", 1),
    (counts, "calls", 1),
    (lambda self, x: Doubled.apply(x.mean()), "Doubled", 0),  # type: ignore[no-untyped-call]
]
"""What scales a model, the name or word that a note has to have, and its line, counted from that of the function."""


@pytest.mark.parametrize(("scale", "word", "line"), NOT_REPLAYED)
def test_what_cannot_be_proven_is_left_to_torch_and_the_note_says_where_it_is(scale: Any, word: str, line: int) -> None:
    def model() -> nn.Module:
        forward = {"forward": lambda self, x: Layers.forward(self, x) * self.scale(x), "scale": scale}
        made: Any = type("NotReplayed", (Layers,), forward)()
        made.settings = Settings()
        return made  # type: ignore[no-any-return]

    expected, _ = trained(model, nn.functional.cross_entropy, ROWS, False)
    found, note = trained(model, nn.functional.cross_entropy, ROWS, "auto")
    assert same(expected, found)
    assert note.startswith("passes are left to torch: ")
    assert word in note
    assert f"test_tape_ordinary.py:{scale.__code__.co_firstlineno + line}" in note


def test_a_loss_that_cannot_be_proven_is_named() -> None:
    assert "CallableLoss" in trained(Layers, CallableLoss(), ROWS, "auto")[1]
