"""Models as users write them: with `tape="auto"` their passes are replayed, and the bits are torch's."""

import inspect
import math
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from kit import ordinary_models
from kit.ordinary_models import NOT_REPLAYED, ORDINARY, ROWS
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


def same(a: list[Tensor], b: list[Tensor]) -> bool:
    return all(torch.equal(p, q) for p, q in zip(a, b, strict=True))


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
    model, words, loss = NOT_REPLAYED[name]
    expected, _ = trained(model, loss(), ROWS, False)
    found, note = trained(model, loss(), ROWS, "auto")
    assert same(expected, found)
    assert note.startswith("passes are left to torch: ")
    for word in words:
        assert word in note
    if line := line_of(model):
        assert f"ordinary_models.py:{line}" in note


def line_of(model: Any) -> int:
    """The line that the table says is the reason, if it says one."""
    if not inspect.isclass(model):
        return 0
    lines, first = inspect.getsourcelines(model)
    return next((first + k for k, line in enumerate(lines) if "# note: " in line), 0)


def test_every_reason_has_its_line() -> None:
    """The control: no line is forgotten above."""
    source = inspect.getsource(ordinary_models)
    assert source.count("# note: ") == sum(line_of(each.model) > 0 for each in NOT_REPLAYED.values())
