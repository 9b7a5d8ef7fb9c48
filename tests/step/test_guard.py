"""A bad number never reaches weights, buffers or optimizer: the run stops at that step, or leaves it out."""

from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from kit.optimizers import FUSED
from kit.optimizers import OPTIMIZERS as PLAIN
from kit.sampled import sampled
from kit.small import data, difference, model, state
from torch import Tensor, nn

import headrace as hr
from headrace.step.guard import DeviceGuard, HostGuard

ROWS, BATCH = 80, 16  # five batches
X, Y = data(ROWS)
NAN = float("nan")

Make = Callable[..., torch.optim.Optimizer]


def network() -> nn.Sequential:
    return model(norm=True)


def momentum(params: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(params, lr=0.1, momentum=0.9, weight_decay=0.01)


OPTIMIZERS = PLAIN | FUSED


def make(on_device: bool = False, make: Make = momentum, of: nn.Module | None = None, **options: Any) -> hr.Trainer:
    """A trainer; `on_device`: with the guard of a GPU, which works on a CPU as well."""
    made = network() if of is None else of
    options = {"loss": hr.CrossEntropy(), "batch_size": BATCH, "order": "none"} | options
    trainer = hr.Trainer(made, optimizer=make(made.parameters()), **options)
    if on_device:
        trainer.updates.guard = DeviceGuard(torch.device("cpu"), skip=options.get("nonfinite") == "skip")
    return trainer


def fit(trainer: hr.Trainer, data: Any = (X, Y), **limits: Any) -> hr.History:
    return trainer.fit(data, progress=False, **limits or {"epochs": 2})


def same(a: hr.Trainer, b: hr.Trainer) -> None:
    assert not (where := difference(a, b)), where


def with_nan(*rows: int) -> tuple[Tensor, Tensor]:
    x = X.clone()
    x[list(rows), 2] = NAN
    return x, Y


@pytest.mark.parametrize(
    ("k", "name", "on_device"),
    sampled(
        product([2, 4, 7], ["momentum", "adamw", *FUSED], [False, True]),
        keep=[(4, "momentum", False), (7, "adamw", True), *((4, name, True) for name in FUSED)],
        of=4,
    ),
)
def test_the_run_ends_as_if_the_step_with_the_bad_row_had_never_been(k: int, name: str, on_device: bool) -> None:
    row = (k - 1) * BATCH + 5
    x, y = torch.cat([X, X]), torch.cat([Y, Y])
    good = (x.clone(), y)
    x[row, 1] = NAN
    stopped, before = make(on_device, OPTIMIZERS[name]), make(make=OPTIMIZERS[name])
    with pytest.raises(hr.NonFiniteError, match=f"^step {k} .*rate 0.*16 rows"):
        fit(stopped, (x, y), epochs=1)
    fit(before, good, steps=k - 1)
    same(stopped, before)
    fit(stopped, good, steps=2)
    fit(before, good, steps=2)
    same(stopped, before)


@pytest.mark.parametrize("on_device", [False, True])
def test_a_bad_first_step_leaves_everything_as_it_was_made(on_device: bool) -> None:
    trainer = make(on_device, OPTIMIZERS["adamw"])
    with pytest.raises(hr.NonFiniteError, match=r"^step 1 "):
        fit(trainer, with_nan(3))
    assert not difference(trainer.model, network())
    assert all(float(v.abs().sum()) == 0 for s in trainer.optimizer.state.values() for v in s.values())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rows", "name", "on_device"),
    sampled(
        product([(3,), (20,), (3, 20, 70)], OPTIMIZERS, [False, True]),
        keep=[
            *(((3,), "adamw", True), ((3, 20, 70), "momentum", False), ((3, 20, 70), "rprop", True)),
            *(((3, 20, 70), name, True) for name in FUSED),
        ],
        of=5,
    ),
    ids=str,
)
def test_skipping_leaves_bad_steps_out_and_counts_them(rows: tuple[int, ...], name: str, on_device: bool) -> None:
    trainer = make(on_device, OPTIMIZERS[name], nonfinite="skip")
    assert fit(trainer, with_nan(*rows)).last["step"] == 10
    assert trainer.updates.guard.skipped == 2 * len(rows)
    good = [k for k in range(5) if not any(k * BATCH <= row < (k + 1) * BATCH for row in rows)]
    by_hand = network()
    optimizer = OPTIMIZERS[name](by_hand.parameters())
    for k in good * 2:
        part = slice(k * BATCH, (k + 1) * BATCH)
        optimizer.zero_grad()
        F.cross_entropy(by_hand(X[part]), Y[part]).backward()
        optimizer.step()
    assert not difference(trainer.model, by_hand)
    assert not difference(trainer.optimizer.state_dict()["state"], optimizer.state_dict()["state"])


@pytest.mark.parametrize("name", sampled(OPTIMIZERS, keep=["momentum", "adamw"], of=4))
def test_a_healthy_run_has_the_same_bits_under_either_guard(name: str) -> None:
    host, device = make(make=OPTIMIZERS[name]), make(True, OPTIMIZERS[name])
    assert isinstance(host.updates.guard, HostGuard)
    first, second = fit(host), fit(device)
    same(host, device)
    assert first.last == pytest.approx(second.last)
    assert device.updates.guard.skipped == 0


class Watched(DeviceGuard):
    """Writes down what it has answered."""

    def sound(self, *given: Any) -> bool | Tensor:
        answer = super().sound(*given)
        vars(self).setdefault("answers", []).append(answer)
        return answer


def watched(make_optimizer: Make, hook: bool = False, rows: tuple[int, ...] = (20,)) -> tuple[hr.Trainer, list[type]]:
    trainer = make(make=make_optimizer, nonfinite="skip")
    trainer.updates.guard = guard = Watched(torch.device("cpu"), skip=True)
    if hook:
        trainer.optimizer.register_step_post_hook(lambda *_: None)
    fit(trainer, with_nan(*rows), epochs=1)
    return trainer, list(map(type, vars(guard)["answers"]))


@pytest.mark.parametrize("name", FUSED)
def test_the_host_waits_for_no_flag_of_a_fused_optimizer_that_has_state(name: str) -> None:
    trainer, answers = watched(FUSED[name])
    made_at_once = name in ("fused sgd", "fused adagrad")  # the one has no state, the other from the beginning
    assert answers == ([Tensor] if made_at_once else [bool]) + 4 * [Tensor]
    assert trainer.skipped == 1
    assert not hasattr(trainer.optimizer, "found_inf")


def test_a_first_update_that_is_bad_leaves_no_unwritten_memory_behind() -> None:
    trainer, answers = watched(FUSED["fused momentum"], rows=(3, 20))
    assert answers == [bool, bool, bool, Tensor, Tensor]
    assert all(bool(value.isfinite().all()) for value in trainer.model.state_dict().values())


@pytest.mark.parametrize("name", ["adamw", "momentum", "hook"])
def test_the_host_waits_where_an_update_cannot_be_skipped_on_the_device(name: str) -> None:
    hook = name == "hook"
    assert set(watched(OPTIMIZERS["fused adamw" if hook else name], hook)[1]) == {bool}


@pytest.mark.parametrize("name", ["momentum", "fused momentum"])
def test_fp16_leaves_bad_updates_out_on_a_device_as_on_the_host(name: str) -> None:
    options: dict[str, Any] = {"nonfinite": "skip", "precision": "fp16"}
    trainers = [make(on_device, OPTIMIZERS[name], **options) for on_device in (False, True)]
    for trainer in trainers:
        fit(trainer, with_nan(20, 70))
        assert trainer.skipped == 4
    same(*trainers)


LOSSES: dict[str, Callable[[], Any]] = {
    "cross entropy": lambda: hr.CrossEntropy(ignore_index=-1),
    "with a prior": lambda: hr.CrossEntropy(ignore_index=-1) + hr.L2Prior(0.1),
    "class weights": lambda: hr.CrossEntropy(ignore_index=-1, class_weights=[1.0, 2.0, 3.0]),
    "of torch": lambda: nn.CrossEntropyLoss(ignore_index=-1),
}


@pytest.mark.parametrize(
    ("loss", "microbatch", "on_device"),
    sampled(
        product(LOSSES, [None, 6], [False, True]),
        keep=[("of torch", None, True), ("class weights", 6, False), ("cross entropy", None, False)],
        of=4,
    ),
)
def test_a_batch_without_any_weight_changes_nothing(loss: str, microbatch: int | None, on_device: bool) -> None:
    def small() -> nn.Module:
        return network() if microbatch is None else nn.Sequential(*[network()[k] for k in (0, 2, 3)])

    options: dict[str, Any] = {"loss": LOSSES[loss](), "microbatch": microbatch}
    dead = slice(BATCH, 2 * BATCH)
    y = Y.clone()
    y[dead] = -1
    kept = torch.ones(ROWS, dtype=torch.bool)
    kept[dead] = False
    trainer, without = make(on_device, of=small(), **options), make(on_device, of=small(), **options)
    before: Any = None
    for info in trainer.steps((X, y), epochs=2):
        now = state(trainer.model)
        assert (info.step in (2, 7)) == (not difference(now, before))
        assert info.step not in (2, 7) or info.losses["cross_entropy"] == 0.0
        before = now
    history = fit(without, (X[kept], Y[kept]))
    same(trainer, without)
    assert info.history.last["train/loss/cross_entropy"] == pytest.approx(history.last["train/loss/cross_entropy"])


def test_what_one_training_left_unsettled_is_no_concern_of_the_next() -> None:
    trainer = make(True, macrobatch=ROWS)
    for info in trainer.steps(with_nan(20)):
        if info.step == 3:
            break
    before = state(trainer.model)
    fit(trainer, epochs=1)
    assert difference(trainer.model, before)
