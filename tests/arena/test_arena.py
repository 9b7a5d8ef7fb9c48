"""Homes: what strays is brought back, what leaves is ordinary again, and nothing is lost on the way."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import headrace as hr
from headrace.arena.arena import Arena

X = torch.randn(64, 6, generator=torch.Generator().manual_seed(0))
Y = torch.randint(0, 3, (64,), generator=torch.Generator().manual_seed(1))


def model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3))


def update(module: nn.Module, optimizer: torch.optim.Optimizer, arena: Arena | None = None) -> None:
    if arena is None:
        optimizer.zero_grad()
    else:
        arena.begin()
    F.cross_entropy(module(X), Y).backward()
    if arena is not None:
        arena.collect()
    optimizer.step()


def pair() -> tuple[nn.Sequential, torch.optim.Optimizer]:
    module = model()
    return module, torch.optim.Adam(module.parameters(), lr=1e-2)


def equal(a: nn.Module, b: nn.Module) -> bool:
    return all(torch.equal(p, q) for p, q in zip(a.parameters(), b.parameters(), strict=True))


def test_the_optimizer_steps_one_long_parameter() -> None:
    module, optimizer = pair()
    Arena(module, optimizer)
    assert len(optimizer.param_groups[0]["params"]) == 1
    vectors = {p.untyped_storage().data_ptr() for p in module.parameters()}
    assert len(vectors) == 1


@pytest.mark.parametrize("says_so", [True, False])
def test_an_optimizer_of_ones_own_says_that_it_works_element_by_element(says_so: bool) -> None:
    class Signs(torch.optim.Optimizer):
        elementwise = says_so

        def __init__(self, params: Any) -> None:
            super().__init__(params, {"lr": 0.01})

        @torch.no_grad()
        def step(self, closure: Any = None) -> None:  # type: ignore[override]
            for group in self.param_groups:
                for param in group["params"]:
                    param.sub_(param.grad.sign(), alpha=group["lr"])

    module, plain = model(), model()
    optimizer = Signs(module.parameters())
    arena = Arena(module, optimizer)
    assert len(optimizer.param_groups[0]["params"]) == (1 if says_so else 4)
    by_hand = Signs(plain.parameters())
    for _ in range(5):
        arena.begin()
        F.cross_entropy(module(X), Y).backward()
        arena.collect()
        with arena.hooks.ours():
            optimizer.step()
        update(plain, by_hand)
    assert equal(module, plain)


def test_every_parameter_starts_on_a_cache_line() -> None:
    module, optimizer = pair()
    Arena(module, optimizer)
    assert all(p.data_ptr() % 64 == 0 for p in module.parameters())


def test_large_parameters_of_a_large_model_stay_as_they_are_and_are_trained_like_the_others() -> None:
    def wide() -> tuple[nn.Sequential, torch.optim.Optimizer]:
        torch.manual_seed(0)
        module = nn.Sequential(nn.Linear(6, 2048), nn.Linear(2048, 2049), nn.Linear(2049, 3))
        return module, torch.optim.SGD(module.parameters(), lr=1e-2, momentum=0.9)

    raw, optimizer = wide()
    for _ in range(3):
        update(raw, optimizer)
    ours, optimizer = wide()
    trainer = hr.Trainer(ours, nn.CrossEntropyLoss(), optimizer, batch_size=len(X))
    for _ in range(3):
        trainer.step({"x": X, "y": Y})
    held = [id(param) for param in optimizer.param_groups[0]["params"]]
    assert [name for name, param in ours.named_parameters() if id(param) in held] == ["1.weight"]
    trainer.release()
    assert equal(raw, ours)


def test_release_and_homing_again_lose_no_state() -> None:
    (raw, o1), (ours, o2) = pair(), pair()
    for _ in range(3):
        arena = Arena(ours, o2)
        for _ in range(2):
            update(ours, o2, arena)
            update(raw, o1)
        arena.release()
    assert equal(raw, ours)
    a, b = o1.state_dict(), o2.state_dict()
    assert a["param_groups"] == b["param_groups"]
    assert all(torch.equal(a["state"][k][n], b["state"][k][n]) for k in a["state"] for n in a["state"][k])


def test_after_release_parameters_own_their_memory() -> None:
    module, optimizer = pair()
    arena = Arena(module, optimizer)
    update(module, optimizer, arena)
    arena.release()
    assert optimizer.param_groups[0]["params"] == list(module.parameters())
    assert all(p.untyped_storage().nbytes() == p.nbytes and p.grad is None for p in module.parameters())


def half_and_back(module: nn.Sequential) -> None:
    module.half().float()


def assign(module: nn.Sequential) -> None:
    module.load_state_dict({k: v * 0.5 for k, v in copy.deepcopy(module.state_dict()).items()}, assign=True)


def zero_grad(module: nn.Sequential) -> None:
    module.zero_grad(set_to_none=True)


def zero_grad_in_place(module: nn.Sequential) -> None:
    module.zero_grad(set_to_none=False)


def reassign(module: nn.Sequential) -> None:
    module[0].weight = nn.Parameter(torch.full((5, 6), 0.1))


def set_data(module: nn.Sequential) -> None:
    module[2].bias.data = torch.tensor([1.0, 2.0, 3.0])


def load(module: nn.Sequential) -> None:
    module.load_state_dict({k: v * 0.5 for k, v in copy.deepcopy(module.state_dict()).items()})


MEDDLERS: list[Callable[[nn.Sequential], None]] = [
    half_and_back, assign, zero_grad, zero_grad_in_place, reassign, set_data, load,
]  # fmt: skip


@pytest.mark.parametrize("meddle", MEDDLERS, ids=lambda m: m.__name__)
def test_strays_are_brought_home_with_their_new_values(meddle: Callable[[nn.Sequential], None]) -> None:
    module, optimizer = pair()
    arena = Arena(module, optimizer)
    update(module, optimizer, arena)
    meddle(module)
    expected = {k: v.clone() for k, v in module.state_dict().items()}
    arena.begin()
    assert all(torch.equal(v, expected[k]) for k, v in module.state_dict().items())
    before = module[0].weight.detach().clone()
    update(module, optimizer, arena)
    assert not torch.equal(module[0].weight, before), "the module's own parameter is the one that is trained"
    arena.release()


def test_training_goes_on_from_strays_as_the_raw_loop_does() -> None:
    (raw, o1), (ours, o2) = pair(), pair()
    arena = Arena(ours, o2)
    for meddle in (None, half_and_back, load, zero_grad):
        for module in (raw, ours):
            if meddle is not None:
                meddle(module)
        update(raw, o1)
        update(ours, o2, arena)
    assert equal(raw, ours)


@pytest.mark.parametrize(
    ("meddle", "message"),
    [
        (lambda m: m.half(), "float32.*float16"),
        (lambda m: setattr(m[0], "weight", nn.Parameter(torch.zeros(4, 6))), r"'0\.weight'.*\[5, 6\].*\[4, 6\]"),
        (lambda m: delattr(m[0], "bias"), r"'0\.bias'.*replaced"),
    ],
)
def test_what_cannot_be_brought_home_is_named(meddle: Callable[[Any], Any], message: str) -> None:
    module, optimizer = pair()
    arena = Arena(module, optimizer)
    meddle(module)
    with pytest.raises(hr.ModelError, match=message):
        arena.begin()


def test_a_parameter_that_misses_an_update_leaves_its_run_with_its_own_state() -> None:
    module, optimizer = pair()
    arena = Arena(module, optimizer)
    update(module, optimizer, arena)
    module[0].requires_grad_(False)
    update(module, optimizer, arena)
    update(module, optimizer, arena)
    module[0].requires_grad_(True)
    update(module, optimizer, arena)
    assert len(optimizer.param_groups[0]["params"]) == 2
    arena.release()
    steps = [int(optimizer.state[p]["step"]) for p in module.parameters()]
    assert steps == [2, 2, 4, 4]


def test_a_numbers_parameter_and_shared_memory_stay_as_they_are() -> None:
    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            whole = torch.randn(4, 6)
            self.top, self.rest = nn.Parameter(whole[:3]), nn.Parameter(whole[2:])
            self.scale, self.layer = nn.Parameter(torch.tensor(1.0)), nn.Linear(6, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.scale * self.layer(x) + x @ self.top.T + (x @ self.rest.T).sum(dim=1, keepdim=True)

    module = Odd()
    optimizer = torch.optim.Adam(module.parameters())
    arena = Arena(module, optimizer)
    assert module.top.untyped_storage().data_ptr() == module.rest.untyped_storage().data_ptr()
    update(module, optimizer, arena)
    assert {id(p) for p in arena.loose} == {id(module.top), id(module.rest), id(module.scale)}
    arena.release()
    assert all(p in optimizer.state for p in module.parameters())


def test_two_optimizers_share_a_model() -> None:
    module = model()
    first, second = torch.optim.SGD(module[0].parameters(), lr=0.1), torch.optim.Adam(module[2].parameters())
    arenas = [Arena(module, first), Arena(module, second)]
    for arena, optimizer in zip(arenas, (first, second), strict=True):
        update(module, optimizer, arena)
    for arena in arenas:
        arena.release()
    assert not any(p in second.state for p in module[0].parameters())


def test_hooks_on_the_optimizer_are_called() -> None:
    module, optimizer = pair()
    calls: list[str] = []
    optimizer.register_step_pre_hook(lambda *_: calls.append("before"))
    optimizer.register_step_post_hook(lambda *_: calls.append("after"))
    trainer = hr.Trainer(module, hr.CrossEntropy(), optimizer)
    trainer.step((X, Y))
    assert calls == ["before", "after"]


def test_a_schedule_that_wraps_the_optimizer_is_content() -> None:
    module, optimizer = pair()
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)
    trainer = hr.Trainer(module, hr.CrossEntropy(), optimizer)
    trainer.step((X, Y))
    schedule.step()  # it warns if it has not seen a step
    assert optimizer.param_groups[0]["lr"] == pytest.approx(5e-3)


def test_a_group_added_while_homed_is_trained_as_in_the_raw_loop() -> None:
    class Unfreeze(hr.Callback):
        def on_epoch_start(self, info: hr.Info) -> None:
            if info.epoch == 1:
                info.trainer.optimizer.add_param_group({"params": list(ours[0].parameters()), "lr": 1e-3})

    def halves() -> tuple[nn.Sequential, torch.optim.Optimizer]:
        module = model()
        return module, torch.optim.SGD(module[2].parameters(), lr=0.1, momentum=0.9)

    (ours, o1), (raw, o2) = halves(), halves()
    hr.Trainer(ours, nn.CrossEntropyLoss(), o1, batch_size=64, order="none").fit(
        (X, Y), epochs=4, progress=False, callbacks=[Unfreeze()]
    )
    for epoch in range(4):
        if epoch == 1:
            o2.add_param_group({"params": list(raw[0].parameters()), "lr": 1e-3})
        raw.zero_grad()
        update(raw, o2)
    assert equal(raw, ours)
    assert [len(group["params"]) for group in o1.param_groups] == [2, 2]


def test_release_accepts_whatever_has_become_of_a_parameter() -> None:
    module, optimizer = pair()
    trainer = hr.Trainer(module, hr.CrossEntropy(), optimizer)
    trainer.step((X, Y))
    module.half()
    with pytest.raises(hr.ModelError, match=r"trainer\.release"):
        trainer.step((X.half(), Y))
    trainer.release()
    assert {p.dtype for p in module.parameters()} == {torch.float16}
    assert optimizer.param_groups[0]["params"] == list(module.parameters())


def test_a_gradient_that_is_dropped_on_the_way_moves_nothing() -> None:
    (raw, o1), (ours, o2) = pair(), pair()
    for module in (raw, ours):
        module[0].weight.register_post_accumulate_grad_hook(lambda p: setattr(p, "grad", None))
    trainer = hr.Trainer(ours, nn.CrossEntropyLoss(), o2)
    for _ in range(4):
        update(raw, o1)
        trainer.step((X, Y))
    trainer.release()
    assert equal(raw, ours)


def test_two_optimizers_and_a_frozen_parameter() -> None:
    module = model()
    module[0].bias.requires_grad_(False)
    optimizers = {
        "a": torch.optim.SGD(module[0].parameters(), lr=0.1),
        "b": torch.optim.SGD(module[2].parameters(), 0.1),
    }
    trainer = hr.Trainer(module, {"a": hr.CrossEntropy(), "b": hr.CrossEntropy()}, optimizers)
    before = module[0].weight.detach().clone()
    trainer.step((X, Y))
    assert not torch.equal(module[0].weight, before)


def test_the_state_of_a_homed_optimizer_speaks_of_parameters() -> None:
    module, optimizer = pair()
    trainer = hr.Trainer(module, hr.CrossEntropy(), optimizer)
    trainer.step((X, Y))
    state = optimizer.state_dict()
    assert [len(group["params"]) for group in state["param_groups"]] == [4]
    fresh = torch.optim.Adam(model().parameters())
    fresh.load_state_dict(state)
    trainer.step((X, Y))  # it goes on
    optimizer.load_state_dict(state)
    assert {int(s["step"]) for s in optimizer.state.values()} == {1}
