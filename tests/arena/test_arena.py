"""Parameters in vectors: what strays is brought back, what leaves is ordinary again, and nothing is lost on the way."""

import copy
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from kit.small import Parts, data, same, state, stop_and_resume, trainer
from torch import Tensor, nn

import headrace as hr
from headrace.arena import flat
from headrace.arena.own_optimizers import Joint

X, Y = data(64)
Pair = tuple[Any, torch.optim.Optimizer]


def model() -> Any:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3))


def pair(make: Callable[[], Any] = model) -> Pair:
    module = make()
    return module, torch.optim.Adam(module.parameters(), lr=1e-2)


def made(module: nn.Module, optimizer: Any) -> hr.Trainer:
    return hr.Trainer(module, nn.CrossEntropyLoss(), optimizer)


def update(module: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """One of the loop by hand."""
    module.zero_grad()
    F.cross_entropy(module(X), Y).backward()
    optimizer.step()


@pytest.mark.parametrize("says_so", [True, False])
def test_an_optimizer_of_ones_own_says_that_it_works_element_by_element(says_so: bool) -> None:
    stepped = list[int]()

    class Signs(torch.optim.Optimizer):
        elementwise = says_so

        def __init__(self, params: Any) -> None:
            super().__init__(params, {"lr": 0.01})

        @torch.no_grad()
        def step(self, closure: Any = None) -> None:  # type: ignore[override]
            for group in self.param_groups:
                stepped.append(len(group["params"]))
                for param in group["params"]:
                    param.sub_(param.grad.sign(), alpha=group["lr"])

    module, plain = model(), model()
    trainer, by_hand = made(module, Signs(module.parameters())), Signs(plain.parameters())
    for _ in range(5):
        trainer.step((X, Y))
        assert stepped == [1 if says_so else 4]
        update(plain, by_hand)
        stepped.clear()
    assert same(module, plain)


def wide() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 2048), nn.Linear(2048, 2049), nn.Linear(2049, 3))


def odd() -> nn.Module:
    """Has parameters that share memory, and one that is a number."""

    def call(self: Any, x: Tensor) -> Any:
        return self.scale * self.layer(x) + x @ self.top.T + (x @ self.rest.T).sum(dim=1, keepdim=True)

    torch.manual_seed(0)
    both = torch.randn(4, 6)
    numbers = {"top": nn.Parameter(both[:3]), "rest": nn.Parameter(both[2:]), "scale": nn.Parameter(torch.tensor(1.0))}
    return Parts(call, **numbers, layer=nn.Linear(6, 3))


def halves() -> Pair:
    module = model()
    return module, torch.optim.SGD(module[2].parameters(), lr=0.1, momentum=0.9)


def marked() -> Pair:
    module = model()
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)
    for number, param in enumerate(module.parameters()):
        optimizer.state[param]["mine"] = torch.full((2,), number // 2)
    return module, optimizer


def add_group(step: int, module: Any, optimizer: torch.optim.Optimizer) -> None:
    if step == 1:
        optimizer.add_param_group({"params": list(module[0].parameters()), "lr": 1e-3})


def step_with_closure(step: int, module: Any, optimizer: torch.optim.Optimizer) -> None:
    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(module(X), torch.zeros_like(module(X)))
        loss.backward()
        return loss

    if step == 2:
        optimizer.step(closure)  # type: ignore[arg-type]  # torch takes a tensor, too


def drop_a_gradient(step: int, module: Any, optimizer: torch.optim.Optimizer) -> None:
    if step == 0:
        module[0].weight.register_post_accumulate_grad_hook(lambda p: setattr(p, "grad", None))


def nothing(*_: Any) -> None:
    pass


SCENARIOS: dict[str, tuple[Callable[[], Pair], Callable[..., None], list[str]]] = {
    "nothing": (pair, nothing, []),
    "large parameters": (lambda: pair(wide), nothing, ["1.weight"]),
    "a number, and memory that is shared": (lambda: pair(odd), nothing, ["top", "rest", "scale"]),
    "state of another shape": (marked, nothing, []),
    "a group that is added": (halves, add_group, []),
    "a step with a closure": (pair, step_with_closure, []),
    "a gradient that is dropped": (pair, drop_a_gradient, []),
}
"""What a model and its optimizer are, what is done before a step, and the parameters that stay as they are."""


@pytest.mark.parametrize("name", SCENARIOS)
def test_weights_and_states_are_those_of_the_raw_loop_whatever_is_done_between_updates(name: str) -> None:
    make, act, as_they_are = SCENARIOS[name]
    (raw, by_hand), (ours, optimizer) = make(), make()
    trainer = made(ours, optimizer)
    for step in range(4):
        act(step, raw, by_hand)
        act(step, ours, optimizer)
        update(raw, by_hand)
        trainer.step((X, Y))
        if step == 1:
            trainer.release()
    members = [*map(id, optimizer.state)]
    assert [name for name, param in ours.named_parameters() if id(param) in members] == as_they_are
    known = {param: name for name, param in raw.named_parameters()}
    names = [[known[param] for param in group["params"]] for group in by_hand.param_groups]
    assert trainer.updates.state_dict()["optimizers"][""]["names"] == names
    trainer.release()
    assert trainer.updates.state_dict()["optimizers"][""]["names"] == names
    assert same(raw, ours)
    if act is not drop_a_gradient:  # of which the vector remembers zeros
        assert same(by_hand.state_dict(), optimizer.state_dict())


# --- what others do to parameters meanwhile ---------------------------------------------------------------------


def loaded(module: nn.Module, assign: bool) -> None:
    module.load_state_dict({k: v * 0.5 for k, v in copy.deepcopy(module.state_dict()).items()}, assign=assign)


MEDDLERS: dict[str, Callable[[Any], Any]] = {
    "half and back": lambda module: module.half().float(),
    "assigned": lambda module: loaded(module, assign=True),
    "loaded": lambda module: loaded(module, assign=False),
    "no gradients": lambda module: module.zero_grad(set_to_none=True),
    "gradients of zero": lambda module: module.zero_grad(set_to_none=False),
    "another parameter": lambda module: setattr(module[0], "weight", nn.Parameter(torch.full((5, 6), 0.1))),
    "other memory": lambda module: setattr(module[2].bias, "data", torch.tensor([1.0, 2.0, 3.0])),
}


@pytest.mark.parametrize("how", MEDDLERS)
def test_strays_are_brought_home_with_their_new_values(how: str) -> None:
    module, optimizer = pair()
    trainer = made(module, optimizer)
    trainer.step((X, Y))
    MEDDLERS[how](module)
    expected = state(module)
    optimizer.param_groups[0]["lr"] = 0.0
    trainer.step((X, Y))
    assert same(module, expected)
    optimizer.param_groups[0]["lr"] = 0.1
    trainer.step((X, Y))
    assert not torch.equal(module[0].weight, expected["0.weight"]), "the module's own parameter is the one trained"


@pytest.mark.parametrize(
    ("meddle", "message"),
    [
        (lambda m: m.half(), "float32.*float16"),
        (lambda m: setattr(m[0], "weight", nn.Parameter(torch.zeros(4, 6))), r"'0\.weight'.*\[5, 6\].*\[4, 6\]"),
        (lambda m: delattr(m[0], "bias"), r"'0\.bias'.*replaced"),
        (lambda m: setattr(m[2], "weight", m[0].weight), r"'2\.weight' was tied"),
    ],
)
def test_what_cannot_be_brought_home_is_named_and_can_be_released(meddle: Callable[[Any], Any], message: str) -> None:
    module, optimizer = pair()
    trainer = made(module, optimizer)
    trainer.step((X, Y))
    meddle(module)
    with pytest.raises(hr.ModelError, match=rf"(?s){message}.*trainer\.release"):
        trainer.step((X, Y))
    trainer.release()
    assert [p.dtype for p in optimizer.param_groups[0]["params"]][:1] == [next(module.parameters()).dtype]


# --- optimizers -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lost", ["a group", "a parameter"])
def test_an_optimizer_that_loses_parameters_meanwhile_is_an_error(lost: str) -> None:
    module, _ = pair()
    *others, last = module.parameters()
    optimizer = torch.optim.SGD([{"params": others}, {"params": [last]}], lr=0.1)
    trainer = made(module, optimizer)
    trainer.step((X, Y))
    if lost == "a group":
        del optimizer.param_groups[-1]
    else:
        optimizer.param_groups[-1]["params"].pop()
    with pytest.raises(hr.ModelError, match=r"of SGD were exchanged, or a group removed, .* trainer\.release"):
        trainer.step((X, Y))
    trainer.release()
    before = state(module)
    trainer.step((X, Y))
    trainer.release()
    moved = [name for name, value in module.state_dict().items() if not torch.equal(value, before[name])]
    assert moved == ["0.weight", "0.bias", "2.weight"]


def test_the_state_of_an_optimizer_in_use_speaks_of_parameters() -> None:
    module, optimizer = pair()
    trainer = made(module, optimizer)
    trainer.step((X, Y))
    saved = optimizer.state_dict()
    assert [len(group["params"]) for group in saved["param_groups"]] == [4]
    fresh = torch.optim.Adam(model().parameters())
    fresh.load_state_dict(saved)
    trainer.step((X, Y))  # it goes on
    optimizer.load_state_dict(saved)
    assert {int(s["step"]) for s in optimizer.state.values()} == {1}


@pytest.mark.parametrize("written", [{}, {"exp_avg": torch.zeros(5, 6)}])
def test_state_that_is_asked_for_by_parameter_meanwhile_is_refused_and_the_rest_is_kept(written: Any) -> None:
    (raw, by_hand), (ours, optimizer) = pair(), pair()
    trainer = made(ours, optimizer)
    trainer.step((X, Y))
    optimizer.state[ours[0].weight].update(written)
    with pytest.raises(hr.ModelError, match=r"(?s)state of Adam .* '0\.weight' during .* trainer\.release"):
        trainer.step((X, Y))
    trainer.step((X, Y))
    optimizer.state[ours[0].weight] = written
    with pytest.warns(UserWarning, match=r"'0\.weight'.* is lost.*trainer\.release"):
        trainer.release()
    update(raw, by_hand)
    update(raw, by_hand)
    assert same(raw, ours)
    assert same(by_hand.state_dict(), optimizer.state_dict())


class Counts(torch.optim.Optimizer):
    """Keeps three numbers of each parameter, or of each vector."""

    elementwise = True

    def __init__(self, params: Any) -> None:
        super().__init__(params, {"lr": 0.1})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for param in self.param_groups[0]["params"]:
            last = self.state[param].setdefault("last", torch.zeros(3))
            last += torch.arange(3)
            param.sub_(param.grad, alpha=0.1 / float(1 + last.sum()))


def test_state_of_another_shape_goes_on_with_a_run(tmp_path: Path) -> None:
    stop_and_resume(lambda: trainer(model(), optimizer=Counts, clip_norm=0.1), [3, 6], tmp_path)


def test_large_parameters_are_stepped_whole_where_threads_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    """`set_flush_denormal` is for the thread that calls it, not for those that are there."""
    monkeypatch.setattr(flat, "PIECE", 1 << 12)
    torch.set_num_threads(2)
    torch.zeros(1 << 17).add_(1)
    torch.set_flush_denormal(True)
    try:
        made_by = list[list[Tensor]]()
        for step in (torch.optim.SGD.step, None):
            param = nn.Parameter(torch.zeros(1 << 17))
            param.grad = torch.full_like(param, 1e-36)
            optimizer = torch.optim.SGD([param], lr=1e-4, momentum=0.9)
            optimizer.step()
            made_by.append([param.detach()])
            own = flat.prepare(optimizer)
            assert own is not None
            (own if step is None else optimizer.step)()
        assert same(*made_by)
    finally:
        torch.set_flush_denormal(False)
        torch.set_num_threads(1)


def test_two_trainers_take_turns_with_one_optimizer_as_in_the_raw_loop() -> None:
    (raw, by_hand), (ours, optimizer) = pair(), pair()
    one, other = made(ours, optimizer), hr.Trainer(ours, lambda outputs, y: outputs.square().mean(), optimizer)
    for _ in range(4):
        update(raw, by_hand)
        by_hand.zero_grad()
        raw(X).square().mean().backward()
        by_hand.step()
        one.step((X, Y))
        other.step((X, Y))
    one.release()
    other.release()
    assert same(raw, ours)


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda pair: pickle.loads(pickle.dumps(pair))])
def test_a_copy_of_an_optimizer_in_use_remembers_what_the_original_does(copied: Callable[[Pair], Pair]) -> None:
    (raw, by_hand), (ours, optimizer) = pair(), pair()
    trainer = made(ours, optimizer)
    for _ in range(3):
        update(raw, by_hand)
        trainer.step((X, Y))
    twin, its = copied((ours, optimizer))
    update(raw, by_hand)
    update(twin, its)
    trainer.step((X, Y))  # it goes on
    trainer.release()
    assert same(raw, twin)
    assert same(raw, ours)


@pytest.mark.parametrize("how", ["copied", "pickled", "loaded"])
@pytest.mark.parametrize("joint", [True, False], ids=["Joint", "MasterWeights"])
def test_a_copy_of_an_optimizer_of_ours_goes_on_as_the_original(how: str, joint: bool) -> None:
    def of(first: nn.Parameter, *rest: nn.Parameter) -> torch.optim.Optimizer:
        members: list[torch.optim.Optimizer] = [torch.optim.SGD([first], 0.1, momentum=0.9), torch.optim.Adam(rest)]
        return Joint(members) if joint else hr.MasterWeights([first, *rest], torch.optim.AdamW)

    model, _ = pair()
    model = model if joint else model.bfloat16()
    optimizer = of(*model.parameters())

    def go(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        model(X.to(next(model.parameters()).dtype)).float().square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    go(model, optimizer)
    both = (model, optimizer)
    twin, its = copy.deepcopy(both) if how != "pickled" else pickle.loads(pickle.dumps(both))
    if how == "loaded":
        its = of(*twin.parameters())
        its.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    go(model, optimizer)
    go(twin, its)
    assert same(model, twin)


def words() -> Any:
    """Has sparse gradients, in which a row may come several times."""
    torch.manual_seed(0)
    layers = {"words": nn.Embedding(5, 4, sparse=True), "leave": nn.Linear(4, 3)}
    return Parts(lambda self, x: self.leave(self.words(x.abs().long().clamp(max=4)).mean(1)), **layers)


@pytest.mark.parametrize("how", ["clip_norm", "clip_value"])
def test_a_sparse_gradient_is_clipped_as_the_dense_one_that_it_stands_for(how: str) -> None:
    limit = 0.05 if how == "clip_norm" else 0.003
    raw, ours = words(), words()
    raw.words.sparse = False
    by_hand = torch.optim.SGD(raw.parameters(), lr=1.0)
    clip: Any = nn.utils.clip_grad_norm_ if how == "clip_norm" else nn.utils.clip_grad_value_
    optimizer = torch.optim.SGD(ours.parameters(), lr=1.0)
    trainer = hr.Trainer(ours, nn.CrossEntropyLoss(), optimizer, **{how: limit})  # type: ignore[arg-type]
    for _ in range(3):
        by_hand.zero_grad()
        F.cross_entropy(raw(X), Y).backward()
        clip(raw.parameters(), limit)
        by_hand.step()
        trainer.step((X, Y))
    trainer.release()
    torch.testing.assert_close([*ours.parameters()], [*raw.parameters()], rtol=0, atol=1e-6)


def test_momentum_of_sparse_gradients_goes_on_with_a_run(tmp_path: Path) -> None:
    stop_and_resume(lambda: trainer(words()), [3, 10], tmp_path, (X, Y), epochs=3)
