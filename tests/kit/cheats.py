"""Programs that cheat: a pass of theirs is not what the pass before it was. `cheat_programs.py` has their texts.

A program is plain Python, run anew for every training in a space of its own, which is the module of what it defines. A
line `>>` divides what stands there from the beginning from what is run late in the training. These names count:

- `model`, or what a `Net` is made of: `scale(self)`, by which its outputs are multiplied; `before(self, x)`, what it
  makes of its rows first; `forward`; or `write(self, x)`, what a pass of a `Target` writes. Otherwise it is `plain()`.
  `it` becomes an attribute of it, `buffers` its buffers, and `read(n)` scales it by numbers `n` that each row has.
- `loss`, or what an `Own` objective is made of: `factor(self, batch)`, and `held`, which it holds.
- `make(params)`, an optimizer; `data`; `beside`: tensors that passes write and that the model's state does not contain.

`patch` and `stack` take back afterwards what a program changes of torch and Python.
"""

import functools
import itertools
import re
import sys
import types
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from textwrap import dedent
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import SGD
from torch.optim import optimizer as of_torch

import headrace as hr
from kit.small import Parts as Layers

IMPORTS = """
import builtins, collections, contextlib, ctypes, enum, math, os, random
import numpy as np
from torch.nn.modules import module as modules
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
from torch.optim import Adam
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint
"""
"""What programs use beside what this module has."""
LATE, ROWS, FACTOR = 12, 80, 1.0
"""The step after which those that change late are changed; rows of the data; what many programs read."""


class Cheat(NamedTuple):
    """A model, its loss, and what is changed late in the training."""

    model: nn.Module
    loss: Any = F.cross_entropy
    change: Callable[[], Any] | None = None
    undo: Callable[[], Any] = lambda: None
    """Makes the process what it was, if the change is one of torch or of Python."""
    data: dict[str, Tensor] | None = None
    """What it is trained with, if that is not the data of all."""
    beside: Sequence[Tensor] = ()
    optimizer: Callable[[Any], torch.optim.Optimizer] | None = None
    options: dict[str, Any] = {}  # noqa: RUF012
    """What else the trainer is made with."""

    def __enter__(self) -> "Cheat":
        return self

    def __exit__(self, *error: object) -> None:
        self.undo()


class Program(NamedTuple):
    """What is run at the beginning and late, and words about it: "quiet" if the same is computed after the change."""

    name: str
    begin: str
    late: str | None
    words: Sequence[str]

    def __call__(self) -> Cheat:
        """The training with this program."""
        stack, patch = ExitStack(), pytest.MonkeyPatch()
        stack.callback(patch.undo)
        space = {**globals(), "__name__": "cheat", "patch": patch, "stack": stack}
        space |= {"double": functools.partial(double, patch), "set_back": functools.partial(set_back, stack)}
        exec(IMPORTS, space)
        exec(compile(self.begin, f"{self.name}.py", "exec"), space)
        space["model"] = model = space.get("model") or model_of(space)
        if "factor" in space:
            space["loss"] = type("Made", (Own,), {"factor": space["factor"], "held": None})()
            space["loss"].held = space.get("held")
        make = space.get("make", lambda params: SGD(params, 0.05, 0.9))

        def optimizer(params: Any) -> Any:
            space["optimizer"] = make(params)
            return space["optimizer"]

        change = None if self.late is None else lambda: exec(compile(self.late or "", "late.py", "exec"), space)
        kept = {name: space[name] for name in ("loss", "data", "beside") if name in space}
        return Cheat(model, change=change, undo=stack.close, optimizer=optimizer, **kept)


def programs(text: str) -> dict[str, Program]:
    """The programs in a text: a name at the beginning of a line, perhaps words about it, and the program."""
    found = {}
    for block in re.split(r"\n(?=\S)", text.strip()):
        if not block.startswith("#"):
            head, _, body = block.partition(":")
            (name, *words), (begin, has_late, late) = head.split(", "), body.partition(">>")
            found[name] = Program(name, dedent(begin).strip(), dedent(late).strip() if has_late else None, words)
    return found


def model_of(space: dict[str, Any]) -> Any:
    """The model that a program says the parts of."""
    if "read" in space:
        space["forward"] = scaled_by(space["read"])
        space.setdefault("data", numbers(1, 3))
    if "before" in space:
        space["forward"] = of_rows(space["before"])
    members: dict[str, Any] = {name: space[name] for name in ("scale", "forward", "write") if name in space}
    made: Any = type("Made", (Target if "write" in space else Net,), members)() if members else plain()
    if "it" in space:
        made.it = space["it"]
    for name, tensor in space.get("buffers", {}).items():
        made.register_buffer(name, tensor)
    return made


def of_rows(before: Callable[[Any, Tensor], Tensor]) -> Callable[[Any, Tensor], Any]:
    return lambda self, x: Net.forward(self, before(self, x))


def scaled_by(read: Callable[[Tensor], Any]) -> Callable[[Any, Tensor, Tensor], Any]:
    return lambda self, x, n: Net.forward(self, x) * read(n)


# --- what programs use ----------------------------------------------------------------------------------------


class Net(nn.Module):
    """Two layers, scaled by what a cheat makes of `scale`."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.leave = nn.Linear(6, 8), nn.Linear(8, 3)

    def scale(self) -> Any:
        return 1.0

    def forward(self, x: Tensor) -> Any:
        return self.leave(torch.relu(self.enter(x))) * self.scale()


class Target(Net):
    """Has a frozen copy of its first layer, and one of its weight as a parameter of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.slow = nn.Linear(6, 8).requires_grad_(False)
        self.target = nn.Parameter(torch.ones(8, 6), requires_grad=False)
        self.register_buffer("seen", torch.zeros(8, 6))

    def write(self, x: Tensor) -> Any:
        """What a pass writes."""

    def forward(self, x: Tensor) -> Any:
        with torch.no_grad():
            self.write(x)
        hidden = self.enter(x) + 0.1 * self.slow(x) + 0.1 * F.linear(x, self.target)
        return self.leave(torch.relu(hidden))


class Own(hr.Objective):
    """An objective of a user's, with whatever it holds."""

    held: Any = 1.0

    def factor(self, batch: hr.Batch) -> Any:
        return 1.0

    def terms(self, model: nn.Module, batch: hr.Batch) -> dict[str, hr.Term]:
        loss = F.cross_entropy(model(batch["x"]), batch["y"], reduction="sum")
        return {"own": hr.Term(loss * self.factor(batch), batch.rows)}


def others(model: nn.Module, batch: hr.Batch) -> dict[str, hr.Term]:
    """Terms that take the place of an objective's."""
    return {"own": hr.Term(model(batch["x"]).square().sum(), batch.rows)}


class Weighs(Own):
    """The weight and the coefficient of its term, and whether there is another one, are what it holds."""

    held = 1.0, 1.0, 0.0

    def terms(self, model: nn.Module, batch: hr.Batch) -> dict[str, hr.Term]:
        outputs, (weight, coefficient, more) = model(batch["x"]), self.held
        loss = F.cross_entropy(outputs, batch["y"], reduction="sum")
        terms = {"own": hr.Term(loss, batch.rows * weight, coefficient=coefficient)}
        return terms | {"more": hr.Term(outputs.square().sum(), batch.rows)} if more else terms


class Margin(hr.Loss):
    """A loss of a user's own class."""

    factor = 1.0

    def __init__(self) -> None:
        super().__init__()
        self.margin, self.past = 1.0, [0.0]

    def weight(self, batch: hr.Batch) -> float:
        return float(batch.rows)

    def sum(self, outputs: Tensor, batch: hr.Batch) -> Tensor:
        loss = F.multi_margin_loss(outputs, batch["y"], margin=self.margin, reduction="sum")
        return loss * (1 + self.past[0]) * self.factor


class LossModule(nn.Module):
    """A loss that is a module, with a list and a part."""

    def __init__(self) -> None:
        super().__init__()
        self.factors, self.part = [1.0], nn.Dropout(0.5)

    def forward(self, outputs: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(self.part(outputs), y) * self.factors[0]


class Factor:
    """What a user makes losses and schedules of."""

    factor = 1.0

    def value(self) -> float:
        return self.factor

    def __call__(self, outputs: Tensor, target: Tensor) -> Tensor:
        return F.cross_entropy(outputs, target) * self.factor


@dataclass
class Record:
    factor: float = 1.0


def plain(*between: nn.Module) -> nn.Sequential:
    return nn.Sequential(nn.Linear(6, 8), *between, nn.ReLU(), nn.Linear(8, 3))


def scaled(scale: Callable[[Any], Any], **attributes: Any) -> Any:
    """A model of a class of its own, with this `scale` and these attributes."""
    model = type("Scaled", (Net,), {"scale": scale})()
    for name, value in attributes.items():
        setattr(model, name, value)
    return model


def own(**members: Any) -> Any:
    """A model whose class is derived from one with these members."""
    return type("Leaf", (type("Base", (Net,), members),), {})()


def writing(write: Callable[[Any, Tensor], Any]) -> Any:
    """A model whose passes write this."""
    return type("Writes", (Target,), {"write": write})()


def recurrent() -> Layers:
    layers = {"rnn": nn.GRU(2, 4, batch_first=True), "leave": nn.Linear(4, 3)}
    return Layers(lambda self, x: self.leave(self.rnn(x.view(-1, 3, 2))[0][:, -1]), **layers)


def uses(self: Any, x: Tensor) -> Any:
    """A forward pass that calls torch's functions by their usual names."""
    return self.leave(torch.tanh(F.relu(F.linear(x, self.enter.weight)).relu() + 1.0))


def three(*given: Any) -> float:
    return 3.0


def doubled(function: Any) -> Any:
    """Gives the double of what a function gives."""
    return lambda *args, **kwargs: function(*args, **kwargs) * 2


def double(patch: pytest.MonkeyPatch, owner: Any, name: str) -> None:
    patch.setattr(owner, name, doubled(getattr(owner, name)))


def set_back(stack: ExitStack, change: Callable[[Any], Any], value: Any, before: Any) -> None:
    """Sets something, and afterwards what it was before."""
    stack.callback(change, before)
    change(value)


def numbers(first: int, later: int) -> dict[str, Tensor]:
    """Data with a number for each row: alike in the first six batches of ten rows, and another one in later ones."""
    n = torch.full((ROWS,), first)
    n[torch.from_numpy(hr.Order(ROWS, seed=0).indices(0, 0, ROWS))[60:]] = later
    x = torch.randn(ROWS, 6, generator=torch.Generator().manual_seed(1))
    return {"x": x, "n": n, "y": torch.randint(0, 3, (ROWS,), generator=torch.Generator().manual_seed(2))}


# --- what updates call ----------------------------------------------------------------------------------------


def shrink(optimizer: Any, *given: Any) -> None:
    """What a hook does: all weights become a little smaller."""
    with torch.no_grad():
        for param in [param for group in optimizer.param_groups for param in group["params"]]:
            param.mul_(0.99)


class OtherStep(SGD):
    """Does as its base, and makes weights smaller."""

    def step(self, closure: Any = None) -> Any:
        made = super().step(closure)
        shrink(self)
        return made


class WithFactor(SGD):
    """Has a setting of its own beside the groups."""

    factor = 1.0

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        for param in self.param_groups[0]["params"]:
            if param.grad is not None:
                param.add_(param.grad, alpha=-self.param_groups[0]["lr"] * self.factor)


def after(call: Callable[..., Any], called: Callable[[], Any]) -> Callable[..., Any]:
    """What calls a function, and something after it."""

    @functools.wraps(call)
    def both(*args: Any, **kwargs: Any) -> Any:
        made = call(*args, **kwargs)
        called()
        return made

    return both


HOOKS: dict[str, Callable[[Any, Any], Any]] = {
    "step_post_hook": lambda it, called: it.register_step_post_hook(lambda *_: called()),
    "step_pre_hook": lambda it, called: it.register_step_pre_hook(lambda *_: called()),
    "global_step_post_hook": lambda it, called: of_torch.register_optimizer_step_post_hook(lambda *_: called()),
    "global_step_pre_hook": lambda it, called: of_torch.register_optimizer_step_pre_hook(lambda *_: called()),
}
OF_SGD = sys.modules["torch.optim.sgd"]  # the package has hidden its name
REPLACED: dict[str, Callable[[Any], tuple[Any, str]]] = {
    "step_of_the_instance": lambda it: (it, "step"),
    "step_of_the_class": lambda it: (type(it), "step"),
    "zero_grad_of_the_instance": lambda it: (it, "zero_grad"),
    "zero_grad_of_the_class": lambda it: (SGD, "zero_grad"),
    "function_of_torchs_module": lambda it: (OF_SGD, "sgd"),
}
OTHERS: dict[str, Callable[[Any, Any], Any]] = {
    "bound_step_of_the_instance": lambda it, called: setattr(
        it, "step", types.MethodType(lambda self, closure=None: (type(self).step(self, closure), called())[0], it)
    ),
    "step_of_a_subclass": lambda it, called: setattr(
        it, "__class__", type("Own", (SGD,), {"step": after(SGD.step, called)})
    ),
}
CALLERS = [*HOOKS, *REPLACED, *OTHERS]
"""Ways to make every update call something."""


def calling(way: str, optimizer: Any, called: Callable[[], Any], stack: ExitStack) -> Any:
    """The optimizer, whose updates call something from now on."""
    if way in HOOKS:
        stack.callback(HOOKS[way](optimizer, called).remove)
    elif way in REPLACED:
        patch, (owner, name) = pytest.MonkeyPatch(), REPLACED[way](optimizer)
        stack.callback(patch.undo)
        if isinstance(owner, type) or owner is OF_SGD:
            patch.setattr(owner, name, after(getattr(owner, name), called))
        else:
            setattr(owner, name, after(getattr(owner, name), called))  # which the trainer takes away by itself
    elif way in OTHERS:
        OTHERS[way](optimizer, called)
    return optimizer


class Metric:
    """A metric of a user's, which calls something."""

    def __init__(self, called: Callable[[], Any]) -> None:
        self.called = called

    def update(self, outputs: Any, target: Any) -> None:
        self.called()

    def compute(self) -> float:
        return 1.0

    def reset(self) -> None: ...


def called_by(way: str, make: Any) -> Any:
    """A cheat whose change is made at a late call by an update, instead of between two updates."""
    cheat, calls, stack = make(), itertools.count(1), ExitStack()
    stack.callback(cheat.undo)

    def called() -> None:
        if next(calls) == LATE and cheat.change is not None:
            cheat.change()

    options: dict[str, Any] = {"metric": {"metrics": {"own": Metric(called)}}}
    options["schedule"] = {"schedule": lambda progress: (called(), 1.0)[1]}  # type: ignore[func-returns-value]

    def optimizer(params: Any) -> Any:
        return calling(way, SGD(params, 0.05, 0.9), called, stack)

    return cheat._replace(change=None, undo=stack.close, optimizer=optimizer, options=options.get(way, {}))
