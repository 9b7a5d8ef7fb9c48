"""What an optimizer makes of finite gradients may not be finite: no checkpoint, report or finished training has it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from kit.small import Parts, saved_steps
from torch import Tensor, nn

import headrace as hr

ROWS, BATCH = 24, 8
CHECK_EVERY = 64
"""Updates between two checks of the weights."""
X = torch.rand(ROWS, 4, generator=torch.Generator().manual_seed(1))
Y = X[:, :1] * 2


def unused() -> Any:
    """Has weights on which the loss does not depend, but whose gradients are zeros: of a unit that is dead."""

    def call(self: Any, x: Tensor) -> Tensor:
        return self.used(x) + 0.0 * (x.detach() * 0 + self.dead.weight).nan_to_num(0, 0, 0).sum()  # type: ignore[no-any-return]

    torch.manual_seed(0)
    return Parts(call, used=nn.Linear(4, 1), dead=nn.Linear(4, 1))


def dead_relu() -> Any:
    torch.manual_seed(0)
    model: Any = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 1))
    nn.init.constant_(model[0].bias[2:3].data, -100.0)
    return model


def adam_without_eps(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Adam(model.parameters(), lr=0.01, eps=0)


def sgd_too_fast(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=1e38)


CASES: dict[str, tuple[Callable[[], nn.Module], Callable[[nn.Module], Any], str]] = {
    "Adam without eps": (
        dead_relu,
        adam_without_eps,
        r"^step 1: Adam \(rate 0\.01\) has made '0\.weight'.*larger eps=",
    ),
    "a rate too high": (dead_relu, sgd_too_fast, r"^step 1: SGD \(rate 1e\+38\) has made '.*not finite"),
}


def trainer(name: str, **options: Any) -> hr.Trainer:
    model, optimizer, _ = CASES[name]
    made = model()
    loss = 1e6 * hr.MSE() if name == "a rate too high" else hr.MSE()
    return hr.Trainer(made, loss, optimizer(made), **{"batch_size": BATCH, "order": "none", **options})


@pytest.mark.parametrize("options", [{}, {"arena": False}, {"nonfinite": "skip"}], ids=str)
@pytest.mark.parametrize("name", CASES)
def test_no_checkpoint_holds_a_weight_that_is_not_finite(name: str, options: dict[str, Any], tmp_path: Path) -> None:
    made = trainer(name, **options)
    with pytest.raises(hr.NonFiniteError, match=CASES[name][2]):
        made.fit((X, Y), epochs=1, run=hr.Run(tmp_path / "run", every="1 step"), progress=False)
    assert saved_steps(tmp_path / "run") == [0]
    for steps in (1, 3):  # the update that has lost them is named, not the next one, whose loss is NaN
        with pytest.raises(hr.NonFiniteError, match=CASES[name][2]):
            trainer(name).fit((X, Y), steps=steps, progress=False)
    scored: list[int] = []
    notes = hr.Lambda(on_validation_end=lambda info, scores: scored.append(info.step))
    with pytest.raises(hr.NonFiniteError, match=CASES[name][2]):
        trainer(name).fit((X, Y), (X, Y), epochs=1, validate_every="1 step", callbacks=[notes], progress=False)
    assert scored == []
    found = CASES[name][0]()
    hr.load_weights(found, tmp_path / "run", which="last")
    assert all(bool(value.isfinite().all()) for value in found.state_dict().values())


@pytest.mark.parametrize("tape", [False, "auto"])
def test_the_steps_are_named_between_which_a_weight_that_no_loss_shows_was_lost(tape: Any, tmp_path: Path) -> None:
    """As of a row of an embedding; also where many updates are made at once."""

    def made() -> hr.Trainer:
        model = unused()
        groups: list[Any] = [{"params": model.used.parameters()}, {"params": model.dead.parameters(), "eps": 0.0}]
        optimizer = torch.optim.Adam(groups, lr=1e-4)
        return hr.Trainer(model, hr.MSE(), optimizer, batch_size=1, tape=tape)

    found = made()
    with pytest.raises(
        hr.NonFiniteError, match=rf"step 1 to {CHECK_EVERY}: Adam \(rate 0.0001, 0.0001\).*'dead.weight'"
    ):
        found.fit(
            (X, Y), epochs=50, run=hr.Run(tmp_path / "run", every="1000 steps"), progress=False, log_every="500 steps"
        )
    assert saved_steps(tmp_path / "run") == [0]


def test_a_weight_that_was_not_finite_before_may_stay_so(tmp_path: Path) -> None:
    model = dead_relu()
    model.mask = nn.Parameter(torch.full((3,), float("-inf")), requires_grad=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    made = hr.Trainer(model, hr.MSE(), optimizer, batch_size=BATCH)
    made.fit((X, Y), epochs=2, run=tmp_path / "run", progress=False)
    assert made.history.last["step"] == 6


def test_large_finite_weights_are_no_reason_to_stop() -> None:
    """Whose sum is too large for a number of their kind."""
    model = nn.Sequential(nn.Linear(4, 1))
    model.far = nn.Parameter(torch.full((8,), 3e38))
    made = hr.Trainer(model, hr.MSE(), torch.optim.SGD(model.parameters(), lr=1e-3), batch_size=BATCH)
    assert made.fit((X, Y), epochs=2, progress=False).last["step"] == 6


def test_the_weights_of_one_of_several_optimizers_are_named_with_its_key() -> None:
    model = nn.ModuleDict({"a": dead_relu(), "b": nn.Linear(4, 1)})
    model.forward = lambda x: {"a": model["a"](x), "b": model["b"](x)}
    optimizers = {"a": adam_without_eps(model["a"]), "b": torch.optim.SGD(model["b"].parameters(), lr=0.01)}
    losses = {"a": hr.MSE(output="a"), "b": hr.MSE(output="b")}
    with pytest.raises(hr.NonFiniteError, match=r"^step 1: Adam of 'a' .*'a\.0\.weight'"):
        hr.Trainer(model, losses, optimizers, batch_size=BATCH).fit((X, Y), steps=1, progress=False)
