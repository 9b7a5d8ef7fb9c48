"""Models as users write them: with `tape="auto"` their passes are replayed, and the bits are torch's."""

import inspect
import math
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from kit.ordinary_models import NOT_REPLAYED, ORDINARY, ROWS
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


@pytest.mark.slow
@pytest.mark.parametrize("name", ORDINARY)
def test_an_ordinary_model_is_replayed_with_torchs_bits(name: str) -> None:
    model, data, loss = ORDINARY[name]
    expected, _ = trained(model, loss(), data, False)
    found, note = trained(model, loss(), data, "auto")
    assert "replayed" in note
    assert same(expected, found)


@pytest.mark.parametrize("name", NOT_REPLAYED)
def test_what_cannot_be_proven_is_left_to_torch_and_the_note_says_where_it_is(name: str) -> None:
    case = NOT_REPLAYED[name]
    expected, _ = trained(case.model, case.loss, ROWS, False)
    found, note = trained(case.model, case.loss, ROWS, "auto")
    assert same(expected, found)
    assert note.startswith("passes are left to torch: ")
    assert case.word in note
    if case.line >= 0:
        assert f"ordinary_models.py:{case.scale.__code__.co_firstlineno + case.line}" in note
