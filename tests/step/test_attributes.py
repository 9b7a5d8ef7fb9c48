"""State that no `state_dict` has goes on with a run: attributes of modules and optimizers, and modules in a loss."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from kit.small import Parts, data, drive, same, stop_and_resume, trainer
from torch import Tensor, nn

import headrace as hr
from headrace.step.attributes import Attributes

X, Y = data()


class Keeps(nn.Module):
    """A layer that keeps something of a kind from one pass to the next."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.cell, self.kind = nn.Linear(6, 3), nn.RNNCell(6, 6), kind
        self.heat, self.calls, self.seen = 2.0, [0], np.zeros(6, np.float32)
        self.register_buffer("total", torch.zeros(6))
        self.hidden: Any = None
        self.alias = self.total
        self.places = {"torch": torch.Generator(), "python": random.Random(1)}
        self.torch, self.numpy, self.python = torch.Generator(), np.random.default_rng(0), random.Random(0)
        self.legacy = np.random.RandomState(0)

    def forward(self: Any, x: Tensor) -> Tensor:
        if not self.training:
            return self.layer(x)  # type: ignore[no-any-return]
        if self.kind == "number":
            self.heat *= 0.9
        elif self.kind == "list":
            self.calls[0] += 1
            x = x * (1 + 0.1 * self.calls[0])
        elif self.kind == "array":
            self.seen += x.mean(0).numpy()
            x = x - torch.from_numpy(self.seen)
        elif self.kind == "tuple of tensors":
            before = None if self.hidden is None else self.hidden[0][:1].expand(len(x), -1)
            x = self.cell(x, before)
            self.hidden = (x.detach(), x.detach().mean())
        elif self.kind == "graph":
            before = None if self.hidden is None else self.hidden.detach()[:1].expand(len(x), -1)
            x = self.hidden = self.cell(x, before)
        elif self.kind == "another name of a buffer":
            self.total += x.mean(0)
            x = x - self.alias
        elif self.kind == "generators":
            noise = torch.randn(x.shape, generator=self.torch) + self.python.random() + float(self.numpy.normal())
            noise = noise + self.legacy.normal()
            x = x + 0.1 * noise
        return self.layer(x) / self.heat  # type: ignore[no-any-return]


class Center(nn.Module):
    """A loss with a center that follows the outputs, in a buffer, and a number of calls."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("center", torch.zeros(3))
        self.calls = 0

    def forward(self: Any, outputs: Tensor, target: Tensor) -> Any:
        self.calls += 1
        self.center = 0.9 * self.center + 0.1 * outputs.detach().mean(0)
        return F.cross_entropy(outputs - self.center, target) / self.calls


class Follows(hr.Objective):
    """Compares a model with a teacher that follows it, behind autograd's back."""

    def __init__(self) -> None:
        torch.manual_seed(5)
        self.teacher, self.share = nn.Linear(6, 3), 0.5
        self.listed = [*self.teacher.parameters()]

    def terms(self, model: nn.Module, batch: hr.Batch) -> dict[str, hr.Term]:
        outputs, self.share = model(batch["x"]), self.share * 0.9
        for mine, its in zip(self.listed, model.layer.parameters(), strict=True):  # type: ignore[union-attr]
            mine.data.mul_(self.share).add_(its.data, alpha=1 - self.share)
        return {"far": hr.Term(F.mse_loss(outputs, self.teacher(batch["x"]).detach() + 1, reduction="sum"), 18.0)}


class Slows(torch.optim.Optimizer):
    """Makes ever smaller steps, by a number that it counts in an attribute, or in its state under a name.

    There is also one that stays, in its state.
    """

    elementwise = True

    def __init__(self, params: Any, by_name: bool) -> None:
        super().__init__(params, {"lr": 0.1})
        self.by_name, self.count = by_name, 1
        self.state["at least"] = 0.01  # type: ignore[index]

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        kept: Any = self.state if self.by_name else vars(self)
        kept["count"] = kept.get("count", 1) + 1
        for group in self.param_groups:
            for param in [param for param in group["params"] if param.grad is not None]:
                param.add_(param.grad, alpha=-group["lr"] / kept["count"] - self.state["at least"])  # type: ignore[index]


class LooksAhead(torch.optim.Optimizer):
    """Steps another optimizer, and goes back half of the way to slow weights, kept by their parameters or the ids."""

    def __init__(self, params: Any, listed: bool) -> None:
        super().__init__(params, {"lr": 0.1})
        self.inner: torch.optim.Optimizer = torch.optim.Adam(self.param_groups, lr=0.1)
        self.param_groups = self.inner.param_groups
        self.slow: dict[Any, Tensor] = {}
        if listed:
            self.others, self.inner = [self.inner], torch.optim.SGD([torch.zeros(1)])
            self.others[0].param_groups = [{**group} for group in self.param_groups]

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for each in getattr(self, "others", [self.inner]):
            each.step()
            for group in each.param_groups:
                group["lr"] *= 0.9
        for param in [param for group in self.param_groups for param in group["params"]]:
            slow = self.slow.setdefault(id(param) if hasattr(self, "others") else param, param.clone())
            param.copy_(slow.lerp_(param, 0.5))


class Wraps(torch.optim.Optimizer):
    """Steps another optimizer, has its groups, and does not call the `__init__` of its class."""

    def __init__(self, params: Any) -> None:
        self.inner, self.state = torch.optim.Adam(params, lr=0.1), {}  # type: ignore[assignment]

    @property
    def param_groups(self) -> Any:  # type: ignore[override]
        return self.inner.param_groups

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        self.inner.step()


class StepsCopies(torch.optim.Optimizer):
    """Has copies of the parameters stepped by another optimizer, and gives parameters what these are, rounded.

    It keeps more in dicts: by parameter within a list, by copy, and by what `id` gives of a parameter.
    """

    def __init__(self, params: Any, make: Callable[[Tensor], Tensor]) -> None:
        super().__init__(params, {"lr": 0.1})
        self.params = [param for group in self.param_groups for param in group["params"]]
        self.copies = [make(param.detach().clone()) for param in self.params]
        self.inner = {"both": (torch.optim.Adam(self.copies[:1]), torch.optim.Adam(self.copies[1:]))}
        self.slow = [{param: param.detach().clone() for param in self.params}]
        self.sums: dict[Any, Tensor] = {copy: torch.zeros_like(copy) for copy in self.copies}
        self.counts = dict[int, int]()

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        pairs = [pair for pair in zip(self.copies, self.params, strict=True) if pair[1].grad is not None]
        for copy, param in pairs:
            self.counts[id(param)] = self.counts.get(id(param), 0) + 1
            copy.grad = self.sums[copy].add_(param.grad).clone() / self.counts[id(param)]
        for each in self.inner["both"]:
            each.step()
        for copy, param in pairs:
            param.copy_(self.slow[0][param].lerp_(copy, 0.5).round(decimals=3))


class KeepsByVector(torch.optim.Optimizer):
    """Gets a vector in place of parameters, and keeps something by it outside of its state."""

    elementwise = True

    def __init__(self, params: Any) -> None:
        super().__init__(params, {"lr": 0.1})
        self.last = dict[Tensor, Tensor]()

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for param in [param for group in self.param_groups for param in group["params"] if param.grad is not None]:
            param.sub_(self.last.get(param, param.grad), alpha=0.1)
            self.last[param] = param.grad.clone()


class MakesLate(LooksAhead):
    """Makes the other optimizer in its first step."""

    def __init__(self, params: Any) -> None:
        super().__init__(params, False)
        del self.inner

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        if "inner" not in vars(self):
            self.inner = torch.optim.Adam(self.param_groups, lr=0.1)
        super().step()


KINDS = ["number", "list", "array", "tuple of tensors", "graph", "another name of a buffer", "generators", "nothing"]
TRAININGS: dict[str, Callable[[], hr.Trainer]] = {
    **{kind: lambda kind=kind: trainer(Keeps(kind)) for kind in KINDS},  # type: ignore[misc]
    "a loss that is a module": lambda: trainer(Keeps("nothing"), loss=Center()),
    "a method of one": lambda: trainer(Keeps("nothing"), loss=hr.RowMean(Center().forward)),
    "a teacher": lambda: trainer(Keeps("nothing"), loss=Follows()),
    "an optimizer": lambda: trainer(Keeps("nothing"), optimizer=lambda p: Slows(p, False)),
    "one in another": lambda: trainer(Keeps("nothing"), optimizer=lambda p: LooksAhead(p, False)),
    "one in a list of another": lambda: trainer(Keeps("nothing"), optimizer=lambda p: LooksAhead(p, True)),
    "the one that another wraps": lambda: trainer(Keeps("nothing"), optimizer=Wraps),
    "copies": lambda: trainer(Keeps("nothing"), optimizer=lambda p: StepsCopies(p, Tensor.clone)),
    "copies that are parameters": lambda: trainer(Keeps("nothing"), optimizer=lambda p: StepsCopies(p, nn.Parameter)),
    "copies that are leaves": lambda: trainer(
        Keeps("nothing"), optimizer=lambda p: StepsCopies(p, Tensor.requires_grad_)
    ),
    "the state of one": lambda: trainer(Keeps("nothing"), optimizer=lambda p: Slows(p, True)),
}


@pytest.mark.parametrize("name", TRAININGS)
def test_a_training_goes_on_with_what_is_kept_from_one_update_to_the_next(name: str, tmp_path: Path) -> None:
    stop_and_resume(TRAININGS[name], [3, 6], tmp_path)  # from updates 2 and 4, where the second epoch begins


@pytest.mark.parametrize("name", [name for name in TRAININGS if name != "nothing"])
def test_a_training_that_forgets_it_would_be_noticed(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control. What shares memory with a buffer is saved as that."""
    monkeypatch.setattr(Attributes, "state_dict", lambda self: {})
    whole = TRAININGS[name]()
    drive(whole, run=tmp_path / "whole")
    drive(TRAININGS[name](), run=tmp_path / "parts", until=3)
    drive(parts := TRAININGS[name](), run=tmp_path / "parts")
    assert same(whole, parts) == (name == "another name of a buffer")


def test_what_an_optimizer_keeps_and_a_resumed_run_misses_is_said(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match=r"KeepsByVector keeps .* not exactly.*elementwise"):
        drive(trainer(Keeps("nothing"), optimizer=KeepsByVector), run=tmp_path / "vector", until=3)
    drive(trainer(Keeps("nothing"), optimizer=MakesLate), run=tmp_path / "late", until=3)
    with pytest.warns(UserWarning, match=r"not exactly: the optimizer has not made .*'inner by parameter'.* yet"):
        drive(trainer(Keeps("nothing"), optimizer=MakesLate), run=tmp_path / "late")


def test_an_attribute_that_a_callback_has_set_goes_on_in_a_run_that_is_left_again(tmp_path: Path) -> None:
    """It does not change in the second process, which has to save it all the same."""

    def heat(info: hr.Info) -> None:
        if info.epoch == 0:
            info.trainer.model.heat = 0.5

    for until in (3, 6, 7):
        made = trainer(Keeps("nothing"))
        drive(made, run=tmp_path / "run", until=until, callbacks=[hr.Lambda(on_epoch_start=heat)], epochs=3)
    drive(made := trainer(Keeps("nothing")), run=tmp_path / "run", epochs=3)
    assert made.model.heat == 0.5


def test_parameters_in_lists_and_weights_that_are_made_in_each_pass_stay_what_they_are(tmp_path: Path) -> None:
    """Those that a recurrent layer lists, and one that is normalised by a hook."""

    def made() -> hr.Trainer:
        torch.manual_seed(0)
        parts = {"recur": nn.GRU(2, 4, batch_first=True), "out": nn.utils.spectral_norm(nn.Linear(4, 3))}
        return trainer(Parts(lambda self, x: self.out(self.recur(x.view(-1, 3, 2))[0][:, -1]), **parts))

    recur: Any = stop_and_resume(made, [3], tmp_path).model.recur
    assert all(a is b for a, b in zip(recur._flat_weights, recur.parameters(), strict=True))


class Odd(nn.Module):
    """A layer with attributes that no checkpoint can hold, that hold themselves, or that are written in odd ways."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.count = nn.Linear(6, 3), torch.tensor(1)
        self.self_held: list[Any] = [1]
        self.self_held.append(self.self_held)
        self.random, self.huge, self.seen = [random.Random(0)], 1 << 20_000, torch.tensor([1, 2], dtype=torch.uint16)
        self.words, self.long, self.complex = np.array(["a"]), np.longdouble(1), np.ones(2, np.complex128)
        self.zero, self.one = np.array(0), torch.zeros(1)
        self.wide = self.one.expand(4)
        self.hidden: Any = object()

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.random[0].random()
            self.huge, self.long, self.complex = self.huge + 1, self.long + 1, self.complex + 1
            self.words, self.seen = np.array(["b"]), self.seen.clone()
            self.zero[...] += 1
            self.one += 0.5
            self.count.data += 1
            self.hidden = x.detach().mean()
        return self.layer(x) * (1 + self.wide[0] / self.count + float(self.zero))  # type: ignore[no-any-return]


def test_odd_attributes_are_left_alone_or_go_on_and_stop_no_training(tmp_path: Path) -> None:
    parts = stop_and_resume(lambda: trainer(Odd()), [3, 6], tmp_path)
    assert isinstance(parts.model.zero, np.ndarray)
    assert isinstance(parts.model.hidden, Tensor)
