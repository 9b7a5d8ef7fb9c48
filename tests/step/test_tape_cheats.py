"""Models and losses whose passes are not what they were: with a tape they give torch's bits, or an error."""

import copy
import ctypes
import itertools
import math
import random
import threading
import types
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from kit.sampled import sampled
from kit.small import difference
from kit.tape_cheats import CHEATS, LATE, Change, Cheat, annealed, plain, scaled
from kit.tape_losses import LOSSES
from kit.tape_optimizers import CALLERS, OPTIMIZERS, called_by
from kit.tape_settings import SETTINGS
from kit.tape_torch import TORCH
from kit.tape_writes import WRITES
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import headrace as hr
from headrace.step.tape import tapes

ROWS, BATCH, EPOCHS = 80, 10, 3
X = torch.randn(ROWS, 6, generator=torch.Generator().manual_seed(1))
Y = torch.randint(0, 3, (ROWS,), generator=torch.Generator().manual_seed(2))
ALL = CHEATS | WRITES | SETTINGS | TORCH | LOSSES | OPTIMIZERS
READS = SETTINGS | TORCH | LOSSES
"""What a pass reads is looked at in the same way by `steps`: one way of these is enough."""
OF_BATCHES = {
    *OPTIMIZERS,
    *(name for name in TORCH | LOSSES if "batch" in name or "hook" in name),
    *("tensor_split_of_outputs", "packed_sequences", "lengths_of_labels_in_ctc"),
    *("parameter_of_no_optimizer", "error_of_a_number_in_a_batch"),
}
"""What means something in a training alone."""
QUIET = {
    *("cumulative_average", "spectral", "relu.__defaults___replaced", "subclass_with_a_step", "global_hook_late"),
    *("anomaly_mode_late", "deterministic_algorithms_late", "precision_of_products", "mkldnn_off"),
    *("default_device_late", "hook_of_the_state_late", "hook_of_the_state_until_late"),
    *("hook_of_a_loss_late", "smoothing_of_torchs_loss", "ignored_by_torchs_loss", "weights_of_torchs_loss"),
    *("optimizer_foreach_late", "optimizer_defaults_late", "optimizer_class_replaced_late"),
    *("optimizer_zero_grad_of_the_instance_late", "optimizer_zero_grad_of_the_class_late"),
    *("optimizer_function_of_torchs_module_late", "path_of_einsum", "fast_path_of_attention", "layout_of_memory"),
}
"""Changes after which the same is computed, with a tape or without."""
BY_HAND = [
    name for name in OPTIMIZERS if not any(word in name for word in ("zero_grad", "torchs_module", "class_replaced"))
]
"""What is effective in a loop that calls `step`; gradients are not zeroed by the optimizer here."""
CHANGED = [
    *("annealed", "variable_of_a_closure", "coefficient_of_a_loss", "dropout_changed", "mode_switched", "frozen"),
    *("memory_written", "module_replaced", "late_module_hook", "class_of_settings"),
]


HOOKS = ["on_epoch_start", "on_epoch_end", "on_validation_end", "on_report", "on_checkpoint"]
IN_PARTS = [
    *("momentum_encoder", "data_multiplied", "view_written", "codebook", "by_numpy", "buffer_counts"),
    *("frozen_norm", "tensor_of_a_closure", "draws_from_torch", "counts_in_a_buffer", "annealed"),
]
"""Of these, some updates are not made, or are made in parts."""
WHYS = ["not finite", "ignored", "in microbatches"]


class AtReport(hr.Callback):
    """Changes something in the middle of an epoch, at a report; updates before and after it are made at once."""

    def __init__(self, change: Change) -> None:
        self.change = change

    def on_report(self, info: hr.Info, row: Any) -> None:
        if info.step == LATE:
            self.change()


@pytest.fixture(autouse=True)
def however_long_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The time that passes take on this machine decides nothing."""
    monkeypatch.setattr(tapes, "GAIN", math.inf)
    monkeypatch.setattr(tapes, "SHARE", math.inf)


@contextmanager
def undone(cheat: Cheat) -> Iterator[None]:
    """The process is afterwards what it was."""
    try:
        yield
    finally:
        if cheat.undo is not None:
            cheat.undo()


def trained(make: Callable[[], Cheat], tape: Any, by_fit: bool = False, **options: Any) -> tuple[list[Tensor], str]:
    """Whatever is left of a training, to be compared, and what became of its passes."""
    torch.manual_seed(3)
    random.seed(3)
    np.random.seed(3)
    cheat = make()
    params = [param for param in cheat.model.parameters() if param.requires_grad]
    optimizer = (cheat.optimizer or (lambda params: torch.optim.SGD(params, 0.05, 0.9)))(params)
    change = cheat.change or (lambda: None)
    with undone(cheat):
        trainer = hr.Trainer(cheat.model, cheat.loss, optimizer, batch_size=BATCH, tape=tape, **cheat.options)
        every = "1 epoch" if cheat.change is None else f"{LATE} steps"  # else a report ends updates made at once
        options = {"epochs": EPOCHS, "log_every": every, "progress": False, **options}
        if by_fit:
            trainer.fit(cheat.data or (X, Y), **{"callbacks": [AtReport(change)], **options})
        else:
            for info in trainer.steps(cheat.data or (X, Y), **options):
                if info.step == LATE:
                    change()
        found = [*cheat.model.state_dict().values(), *cheat.beside, torch.get_rng_state()]
        losses = torch.tensor(trainer.history["train/loss"])
        return [*(value.clone() for value in found), losses], trainer.tape_note


def scored(make: Callable[[], Cheat], tape: Any) -> list[Tensor]:
    """What a model predicts and scores, again and again, and what is left of it."""
    torch.manual_seed(3)
    random.seed(3)
    np.random.seed(3)
    cheat = make()
    with undone(cheat):
        trainer = hr.Trainer(cheat.model, cheat.loss, torch.optim.SGD(cheat.model.parameters(), 0.05), tape=tape)
        found = [trainer.predict({"x": X}, batch_size=BATCH)]
        found.append(torch.tensor(trainer.validate((X, Y), batch_size=BATCH)["val/loss"]))
        if cheat.change is not None:
            cheat.change()
        found.append(torch.tensor(trainer.validate((X, Y), batch_size=BATCH)["val/loss"]))
        found.append(trainer.predict({"x": X}, batch_size=BATCH))
        return [*found, *(value.clone() for value in cheat.model.state_dict().values()), *cheat.beside]


def same(a: list[Tensor], b: list[Tensor]) -> bool:
    """A number that is not finite is one in both."""
    return not difference([value.nan_to_num() for value in a], [value.nan_to_num() for value in b])


def check(make: Callable[[], Cheat], ways: Sequence[str] = ("steps", "fit")) -> None:
    """Fails unless a training is the same with a tape as without, or an error where a tape is required."""
    expected, _ = trained(make, False)
    for way in ways:
        try:
            found, note = trained(make, "auto", way == "fit")
        except hr.ModelError as error:
            pytest.fail(f"{way}, tape='auto': {error}")
        if not same(expected, found):
            pytest.fail(f"{way}, tape='auto': {note}")
    with suppress(hr.ModelError):
        insisted, note = trained(make, True, by_fit=True)
        if not same(expected, insisted):
            pytest.fail(f"fit, tape=True: {note}")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Full backward hook is firing:UserWarning")
@pytest.mark.filterwarnings("ignore:functools.partial will be a method:FutureWarning")  # of Python 3.13
@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.slow) if n == "seeds_torch" else n for n in ALL])
def test_a_pass_that_changes_gives_the_bits_of_torch_or_is_an_error(name: str) -> None:
    check(ALL[name], ("fit",) if name in READS else ("steps", "fit"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("way", "name"),
    sampled(
        product([*CALLERS, "metric", "schedule"], CHANGED),
        keep={*product(CALLERS, ["annealed"]), *product(["step_post_hook", "step_of_the_instance"], CHANGED)},
        of=4,
    ),
)
def test_what_an_update_calls_may_change_the_updates_after_it(way: str, name: str) -> None:
    check(lambda: called_by(way, ALL[name]))


def by_hand(make: Callable[[], Cheat]) -> list[Tensor]:
    """The weights after a loop as it is written with torch alone."""
    torch.manual_seed(3)
    cheat, steps = make(), 0
    assert cheat.optimizer is not None
    optimizer, order = cheat.optimizer(cheat.model.parameters()), hr.Order(ROWS, seed=0)
    with undone(cheat):
        for epoch in range(EPOCHS):
            for rows in torch.from_numpy(order.indices(epoch, 0, ROWS)).split(BATCH):
                optimizer.zero_grad()
                cross_entropy(cheat.model(X[rows]), Y[rows]).backward()
                optimizer.step()
                steps += 1
                if steps == LATE and cheat.change is not None:
                    cheat.change()
        return [value.clone() for value in cheat.model.state_dict().values()]


@pytest.mark.slow
@pytest.mark.parametrize("name", BY_HAND)
def test_what_changes_an_optimizer_is_as_effective_as_in_a_loop_by_hand(name: str) -> None:
    def make() -> Cheat:
        return OPTIMIZERS[name]()._replace(loss=hr.RowMean(cross_entropy))

    expected = by_hand(make)
    assert same(expected, trained(make, False)[0][: len(expected)])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("hook", "name"),
    sampled(
        product(HOOKS, CHANGED),
        keep={*product(HOOKS, ["annealed"]), *((HOOKS[k % len(HOOKS)], name) for k, name in enumerate(CHANGED))},
        of=12,
    ),
)
def test_any_hook_of_a_callback_may_change_what_a_pass_reads(hook: str, name: str, tmp_path: Path) -> None:
    found = []
    for tape in (False, "auto"):
        calls = itertools.count(1)
        changes: list[Change] = []

        def make(changes: list[Change] = changes) -> Cheat:
            cheat = ALL[name]()
            assert cheat.change is not None
            changes.append(cheat.change)
            return cheat._replace(change=None)

        def at_second(*given: Any, calls: Any = calls, changes: list[Change] = changes) -> None:
            if next(calls) == 2:
                changes[0]()

        options = {"val": (X, Y), "run": tmp_path / str(tape), "callbacks": [hr.Lambda(**{hook: at_second})]}
        found.append(trained(make, tape, by_fit=True, **options)[0])
    assert same(*found)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("hook", "name"), [(["on_step_end", "on_macrobatch_end"][k % 2], name) for k, name in enumerate(CHANGED)]
)
def test_a_callback_of_a_prediction_may_change_the_model(hook: str, name: str) -> None:
    found = []
    for tape in (False, "auto"):
        torch.manual_seed(3)
        cheat = ALL[name]()
        change = cheat.change or (lambda: None)
        at = {hook: lambda info, change=change: change() if info.batch == 5 else None}
        optimizer = torch.optim.SGD(cheat.model.parameters(), 0.05)
        trainer = hr.Trainer(cheat.model, cheat.loss, optimizer, macrobatch=BATCH, tape=tape)
        with undone(cheat):
            for _ in range(2):
                found.append(trainer.predict({"x": X}, batch_size=BATCH, callbacks=[hr.Lambda(**at)]))
                found.append(torch.tensor(trainer.validate((X, Y), batch_size=BATCH)["val/loss"]))
    assert same(found[:4], found[4:])


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:the model has .* with microbatches:UserWarning")
@pytest.mark.parametrize(
    ("what", "name"),
    sampled(
        product(WHYS, IN_PARTS),
        keep={*product(WHYS, ["annealed"]), *((WHYS[k % 3], name) for k, name in enumerate(IN_PARTS))},
        of=4,
    ),
)
def test_updates_that_are_not_made_or_made_in_parts_leave_what_torch_leaves(what: str, name: str) -> None:
    x, y = X.clone(), Y.clone()
    options: dict[str, Any] = {}
    rows = torch.from_numpy(hr.Order(ROWS, seed=0).indices(0, 0, ROWS))[6 * BATCH :]  # of the last batches
    if what == "not finite":
        x[rows[0]], options = torch.nan, {"nonfinite": "skip"}
    elif what == "ignored":
        y[rows[:BATCH]] = -100
    else:
        options = {"microbatch": 4}

    def make() -> Cheat:
        return ALL[name]()._replace(data={"x": x, "y": y}, options=options)

    check(make)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    sampled(
        [name for name in ALL if name not in OF_BATCHES],
        keep=[*(name for name in WRITES if name not in OF_BATCHES), "class_of_settings", "fast_path_of_attention"],
        of=8,
    ),
)
def test_predictions_and_validations_of_a_pass_that_changes_are_those_of_torch(name: str) -> None:
    expected = scored(ALL[name], False)
    found = scored(ALL[name], "auto")
    assert same(expected, found)


def test_a_change_that_no_check_sees_is_found_in_the_next_epoch() -> None:
    def cheat() -> Cheat:
        number = float("1.5")

        def change() -> None:
            ctypes.c_double.from_address(id(number) + object.__basicsize__).value = 3.0

        return Cheat(scaled(lambda self: number), change=change)

    with pytest.raises(hr.ModelError, match=r"differs from torch's after .* replays.*tape=False"):
        trained(cheat, "auto")


def test_an_object_that_may_change_is_left_to_torch_and_the_note_names_it() -> None:
    def cheat() -> Cheat:
        settings = types.SimpleNamespace(factor=1.0)
        return Cheat(scaled(lambda self: settings.factor), change=lambda: setattr(settings, "factor", 3.0))

    expected, _ = trained(cheat, False)
    found, note = trained(cheat, "auto")
    assert same(expected, found)
    assert "'settings' of" in note
    assert "test_tape_cheats.py" in note
    assert "types.SimpleNamespace" in note
    with pytest.raises(hr.ModelError, match=r"tape=True, and a pass cannot be recorded.*types.SimpleNamespace"):
        trained(cheat, True)


def test_what_does_not_change_is_replayed() -> None:
    """The control: the cheats are not all left to torch."""

    def unchanged() -> Cheat:
        return annealed()._replace(change=None)

    assert "replayed" in trained(unchanged, True)[1]
    changed, steady = trained(annealed, True)[0], trained(unchanged, True)[0]
    assert not same(changed, steady)


class Draws:
    """A thread that draws random numbers of torch all the time, once it has begun."""

    def __init__(self) -> None:
        self.ended, self.drawn = threading.Event(), threading.Event()
        self.thread = threading.Thread(target=self.draw)

    def begin(self) -> None:
        self.thread.start()
        self.drawn.wait()

    def draw(self) -> None:
        while not self.ended.is_set():
            torch.rand(1)
            self.drawn.set()

    def end(self) -> None:
        self.ended.set()
        if self.thread.is_alive():
            self.thread.join()


def beside_draws(model: nn.Module, late: bool) -> Cheat:
    """A model with weights that are made already; the thread begins with the training, or late."""
    draws = Draws()
    if not late:
        draws.begin()
    return Cheat(copy.deepcopy(model), change=draws.begin if late else lambda: None, undo=draws.end)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("tape", "by_fit", "late"),
    [("auto", True, True), ("auto", False, False), (True, True, False), (True, False, True)],
)
def test_random_numbers_of_another_thread_do_not_disturb_a_model_that_draws_none(
    tape: Any, by_fit: bool, late: bool
) -> None:
    model = plain()
    *expected, _, losses = trained(lambda: Cheat(copy.deepcopy(model), change=lambda: None), False)[0]
    for _ in range(3):
        *found, _, found_losses = trained(lambda: beside_draws(model, late), tape, by_fit)[0]
        assert same([*expected, losses], [*found, found_losses])


@pytest.mark.slow
@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("by_fit", [False, True])
def test_random_numbers_of_another_thread_do_not_end_a_training_with_dropout(by_fit: bool, late: bool) -> None:
    model = plain(nn.Dropout(0.3))
    for _ in range(3):
        trained(lambda: beside_draws(model, late), "auto", by_fit)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Full backward hook is firing:UserWarning")
@pytest.mark.filterwarnings("ignore:functools.partial will be a method:FutureWarning")
@pytest.mark.parametrize("name", ALL)
def test_each_change_makes_another_training_of_it(name: str) -> None:
    """The control: a change that changes nothing proves nothing."""
    changes = False

    def unchanged() -> Cheat:
        nonlocal changes
        cheat = ALL[name]()
        changes = cheat.change is not None
        return cheat._replace(change=cheat.change and (lambda: None))

    steady, _ = trained(unchanged, False)
    assert not changes or name in QUIET or not same(trained(ALL[name], False)[0], steady)
