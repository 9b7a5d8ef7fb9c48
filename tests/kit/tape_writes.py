"""Models whose passes write: into frozen parameters, buffers, what shares memory with them, and tensors elsewhere.

Each write counts: one made twice in a pass gives other numbers.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import headrace as hr

from .tape_cheats import Cheat, Net, Table, into, scaled

WRITES: Table = {}
add = into(WRITES)
KEEPS = 0.9


class Target(Net):
    """Has a frozen copy of its first layer, and one of its weight as a parameter of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.slow = nn.Linear(6, 8).requires_grad_(False)
        self.target = nn.Parameter(torch.ones(8, 6), requires_grad=False)
        self.register_buffer("seen", torch.zeros(8, 6))

    def write(self, x: Tensor) -> None:
        """What a pass writes."""

    def forward(self, x: Tensor) -> Tensor:
        self.write(x)
        hidden = self.enter(x) + 0.1 * self.slow(x) + 0.1 * F.linear(x, self.target)
        return self.leave(torch.relu(hidden))


def writing(write: Callable[[Any, Tensor], Any]) -> Any:
    """A model with a class of its own, whose passes write this."""

    def under_no_grad(self: Any, x: Tensor) -> None:
        with torch.no_grad():
            write(self, x)

    return type("Writes", (Target,), {"write": under_no_grad})()


def one(write: Callable[[Any, Tensor], Any]) -> Callable[[], Cheat]:
    return lambda: Cheat(writing(write))


def _unfused(self: Any, x: Tensor) -> None:
    for slow, fast in zip(self.slow.parameters(), self.enter.parameters(), strict=True):
        slow.data = slow.data * KEEPS + fast.data * (1 - KEEPS)


def _codebook(self: Any, x: Tensor) -> None:
    nearest = torch.cdist(x, self.target).argmin(1)
    hot = (nearest[:, None] == torch.arange(8)).float()
    self.target.mul_(KEEPS).add_((1 - KEEPS) * (hot.t() @ x))


def _by_numpy(self: Any, x: Tensor) -> None:
    self.target.numpy()[0] += 0.01


WRITES.update(
    {
        "momentum_encoder": one(lambda self, x: self.target.mul_(KEEPS).add_(self.enter.weight, alpha=1 - KEEPS)),
        "momentum_by_foreach": one(
            lambda self, x: torch._foreach_lerp_(
                [*self.slow.parameters()], [*self.enter.parameters()], weight=1 - KEEPS
            )
        ),
        "data_replaced": one(_unfused),
        "data_multiplied": one(lambda self, x: self.target.data.mul_(1.01)),
        "set_elsewhere": one(lambda self, x: self.target.set_(self.target.detach() * 1.01)),
        "written_by_out": one(lambda self, x: torch.mul(self.target, 1.01, out=self.target)),
        "index_put": one(
            lambda self, x: self.target.index_put_((torch.tensor([0, 3]),), torch.tensor(0.01), accumulate=True)
        ),
        "view_written": one(lambda self, x: self.target[2:4].add_(0.01)),
        "codebook": one(_codebook),
        "by_numpy": one(_by_numpy),
        "buffer_counts": one(lambda self, x: self.seen.add_(1)),
        "gradient_of_a_trained_parameter": one(
            lambda self, x: None if self.enter.weight.grad is None else self.enter.weight.grad.add_(0.01)
        ),
    }
)


@add
def queue_with_a_pointer() -> Cheat:
    def enqueue(self: Any, x: Tensor) -> None:
        self.target[self.pointer] = x[0]
        self.pointer = (self.pointer + 1) % 8

    model = writing(enqueue)
    model.pointer = 0
    return Cheat(model)


@add
def queue_with_a_frozen_pointer() -> Cheat:
    def enqueue(self: Any, x: Tensor) -> None:
        self.target.index_copy_(0, self.pointer, x[:1])
        self.pointer.add_(1).remainder_(8)

    model = writing(enqueue)
    model.pointer = nn.Parameter(torch.zeros(1, dtype=torch.long), requires_grad=False)
    return Cheat(model)


@add
def buffer_that_shares_with_a_parameter() -> Cheat:
    model = writing(lambda self, x: self.shared.mul_(1.01))
    model.register_buffer("shared", model.target.data)
    return Cheat(model)


@add
def strided_out_of_a_buffer() -> Cheat:
    memory = torch.ones(96)
    model = writing(lambda self, x: self.window.as_strided((8, 6), (6, 1), 48).add_(0.01))
    model.register_buffer("window", memory[:6])
    model.target = nn.Parameter(memory[48:].view(8, 6), requires_grad=False)
    return Cheat(model, beside=[memory])


@add
def tensor_of_a_closure() -> Cheat:
    memory = torch.ones(8, 6)
    return Cheat(writing(lambda self, x: self.target.copy_(memory.mul_(1.01))), beside=[memory])


@add
def frozen_norm() -> Cheat:
    class Normed(Target):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.BatchNorm1d(8).requires_grad_(False)

        def forward(self, x: Tensor) -> Tensor:
            return self.leave(torch.relu(self.norm(self.enter(x))))

    return Cheat(Normed())


class Teaches(hr.Objective):
    """An objective with a teacher that follows the model."""

    def __init__(self, teacher: nn.Module) -> None:
        self.teacher = teacher.requires_grad_(False)

    def terms(self, model: Any, batch: hr.Batch) -> dict[str, hr.Term]:
        with torch.no_grad():
            for slow, fast in zip(self.teacher.parameters(), model.enter.parameters(), strict=True):
                slow.mul_(KEEPS).add_(fast, alpha=1 - KEEPS)
            wanted = self.teacher(batch["x"])
        loss = F.cross_entropy(model(batch["x"]), batch["y"], reduction="sum")
        return {"own": hr.Term(loss + (model.enter(batch["x"]) - wanted).square().sum(), batch.rows)}


@add
def teacher_of_an_objective() -> Cheat:
    teacher = nn.Linear(6, 8)
    return Cheat(Target(), Teaches(teacher), beside=[teacher.weight, teacher.bias])


@add
def expanded_buffer() -> Cheat:
    model = scaled(lambda self: self.factors)
    model.register_buffer("factors", torch.ones(1).expand(3))
    return Cheat(model)


WRITES["gradients_zeroed_in_forward"] = lambda: Cheat(scaled(lambda self: (self.zero_grad(), 1.0)[1]))


@add
def parameter_of_no_optimizer() -> Cheat:
    model: Any = scaled(lambda self: self.extra, extra=nn.Parameter(torch.ones(1)))

    def change() -> None:
        assert model.extra.grad is not None
        model.extra.data.sub_(0.1 * model.extra.grad)

    def optimizer(params: Any) -> torch.optim.Optimizer:
        return torch.optim.SGD([param for param in params if param is not model.extra], 0.05)

    return Cheat(model, change=change, optimizer=optimizer)
