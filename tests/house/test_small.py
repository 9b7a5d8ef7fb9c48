"""What all tests compare with finds what differs: `kit.small`."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from kit.small import difference, fit, model, same, stop_and_resume, trainer

import headrace as hr

ZERO = torch.zeros(2)
OTHERS: list[tuple[Any, Any]] = [
    (1, 1.0),
    (0.0, -0.0),
    (ZERO, -ZERO),
    (ZERO, ZERO.double()),
    (ZERO, torch.zeros(1, 2)),
    ([ZERO], [ZERO, ZERO]),
    ({"a": 1}, {"b": 1}),
    (np.zeros(2), np.zeros(2, "float32")),
]


@pytest.mark.parametrize(("one", "other"), OTHERS, ids=str)
def test_what_differs_is_not_the_same(one: Any, other: Any) -> None:
    assert same(one, one)
    assert not same(one, other)


def test_trainers_are_the_same_after_the_same_updates_only() -> None:
    one, other = trainer(), trainer()
    assert same(one, other)
    fit(one)
    assert difference(one, other).startswith("/model/0.weight: ")
    fit(other)
    assert same(one, other)
    one.optimizer.state[next(one.model.parameters())]["momentum_buffer"][0, 0] += 1
    assert difference(one, other).startswith("/optimizers/0/state/0/momentum_buffer: ")


class Slower(hr.Callback):
    """Counts steps, and saves its count if asked to."""

    def __init__(self, saves: bool) -> None:
        self.steps, self.saves = 0, saves

    def on_step_end(self, info: hr.Info) -> None:
        self.steps += 1
        info.trainer.optimizer.param_groups[0]["lr"] = 0.1 / (1 + self.steps)

    def state_dict(self) -> dict[str, Any]:
        return {"steps": self.steps} if self.saves else {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.steps = state.get("steps", 0)


def test_stop_and_resume_finds_what_was_not_saved(tmp_path: Path) -> None:
    def made() -> hr.Trainer:
        return trainer(model(norm=True, dropout=0.2))

    stop_and_resume(made, [3, 5], tmp_path / "saved", callbacks=lambda: [Slower(saves=True)])
    with pytest.raises(AssertionError, match=r"model/0\.weight"):
        stop_and_resume(made, [3], tmp_path / "not saved", callbacks=lambda: [Slower(saves=False)])
    with pytest.raises(AssertionError, match="ended before step 99"):
        stop_and_resume(made, [99], tmp_path / "too late")
