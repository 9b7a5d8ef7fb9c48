"""Models and losses whose passes are not what they were: with a tape they give torch's bits, or an error."""

import copy
import ctypes
import itertools
import math
import random
import threading
import types
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from kit.cheat_programs import ALL, CHANGED, OPTIMIZERS, READS, WRITES
from kit.cheats import CALLERS, LATE, ROWS, Cheat, called_by, numbers, plain, scaled
from kit.plain_loop import plain_loop
from kit.sampled import nightly, sampled
from kit.small import difference
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import headrace as hr
from headrace.step.tape import tapes

BATCH, EPOCHS = 10, 3
X, Y = numbers(1, 1)["x"], numbers(1, 1)["y"]
BY_HAND = [
    name for name in OPTIMIZERS if not any(word in name for word in ("zero_grad", "torchs_module", "class_replaced"))
]
"""What is effective in a loop that calls `step`; gradients are not zeroed by the optimizer here."""
OF_MODELS = [name for name, program in ALL.items() if name not in OPTIMIZERS and "batches" not in program.words]
"""What means something outside of a training, too."""
HOOKS = ["on_epoch_start", "on_epoch_end", "on_validation_end", "on_report", "on_checkpoint"]
IN_PARTS = [
    *("momentum_encoder", "data_multiplied", "view_written", "codebook", "by_numpy", "buffer_counts"),
    *("frozen_norm", "tensor_of_a_closure", "draws_from_torch", "counts_in_a_buffer", "annealed"),
]
"""Of these, some updates are not made, or are made in parts."""
WHYS = ["not finite", "ignored", "in microbatches"]


class AtReport(hr.Callback):
    """Changes something in the middle of an epoch, at a report; updates before and after it are made at once."""

    def __init__(self, change: Callable[[], Any]) -> None:
        self.change = change

    def on_report(self, info: hr.Info, row: Any) -> None:
        if info.step == LATE:
            self.change()


@pytest.fixture(autouse=True)
def however_long_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The time that passes take on this machine decides nothing."""
    monkeypatch.setattr(tapes, "GAIN", math.inf)
    monkeypatch.setattr(tapes, "SHARE", math.inf)


def begin(make: Callable[[], Cheat]) -> Cheat:
    """A cheat with the same random numbers as every other."""
    for seed in (torch.manual_seed, random.seed, np.random.seed):
        seed(3)
    return make()


def trained(make: Any, tape: Any, by_fit: bool = False, **options: Any) -> tuple[list[Tensor], str]:
    """Whatever is left of a training, to be compared, and what became of its passes."""
    cheat = begin(make)
    change = cheat.change or (lambda: None)
    optimizer = (cheat.optimizer or sgd)([param for param in cheat.model.parameters() if param.requires_grad])
    with cheat:
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


def scored(make: Any, tape: Any, at: str = "") -> list[Tensor]:
    """What a model predicts and scores, again and again, and what is left of it.

    Its change is made between two of these, or in the middle of each, `at` a hook of a callback.
    """
    cheat = begin(make)
    change = cheat.change or (lambda: None)
    callbacks = [hr.Lambda(**{at: lambda info: change() if info.batch == 5 else None})] if at else []
    with cheat:
        trainer = hr.Trainer(cheat.model, cheat.loss, sgd(cheat.model.parameters()), macrobatch=BATCH, tape=tape)
        found = []
        for turn in range(2):
            found.append(trainer.predict({"x": X}, batch_size=BATCH, callbacks=callbacks))
            found.append(torch.tensor(trainer.validate((X, Y), batch_size=BATCH)["val/loss"]))
            if turn == 0 and not at:
                change()
        return [*found, *(value.clone() for value in cheat.model.state_dict().values()), *cheat.beside]


def same(a: list[Tensor], b: list[Tensor]) -> bool:
    """A number that is not finite is one in both."""
    return not difference([value.nan_to_num() for value in a], [value.nan_to_num() for value in b])


def sgd(params: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(params, 0.05, 0.9)


@cache
def by_torch(name: str) -> list[Tensor]:
    """What is left of the training of a cheat without a tape."""
    return trained(ALL[name], False)[0]


def check(
    make: Any, ways: Sequence[str] = ("steps", "fit"), expected: list[Tensor] | None = None, *, insists: bool = True
) -> None:
    """Fails unless a training is the same with a tape as without, or an error where a tape is required (`insists`)."""
    expected = trained(make, False)[0] if expected is None else expected
    for way in ways:
        try:
            found, note = trained(make, "auto", way == "fit")
        except hr.ModelError as error:
            pytest.fail(f"{way}, tape='auto': {error}")
        if not same(expected, found):
            pytest.fail(f"{way}, tape='auto': {note}")
    if not insists:
        return
    with suppress(hr.ModelError):
        insisted, note = trained(make, True, by_fit=True)
        if not same(expected, insisted):
            pytest.fail(f"fit, tape=True: {note}")


@pytest.mark.filterwarnings("ignore:Full backward hook is firing:UserWarning")
@pytest.mark.filterwarnings("ignore:functools.partial will be a method:FutureWarning")  # of Python 3.13
@pytest.mark.parametrize("name", ALL)
def test_a_pass_that_changes_gives_the_bits_of_torch_or_is_an_error(name: str) -> None:
    """Some are driven by steps, the others by fit, and half of them again with a tape required; nightly, all by all."""
    place = list(ALL).index(name)
    way = "fit" if name in READS or place % 2 else "steps"
    insists = place % 4 < 2 or bool(nightly(name))
    check(ALL[name], (way, *nightly("steps", "fit")), by_torch(name), insists=insists)


@pytest.mark.parametrize(
    ("way", "name"),
    sampled(
        product([*CALLERS, "metric", "schedule"], CHANGED),
        keep={*product(CALLERS, ["annealed"]), *product(["step_post_hook", "step_of_the_instance"], CHANGED)},
    ),
)
def test_what_an_update_calls_may_change_the_updates_after_it(way: str, name: str) -> None:
    check(lambda: called_by(way, ALL[name]), insists=list(CHANGED).index(name) % 2 == 0 or bool(nightly(name)))


def by_hand(make: Callable[[], Cheat]) -> list[Tensor]:
    """The weights after a loop as it is written with torch alone."""
    cheat = begin(make)
    assert cheat.optimizer is not None
    optimizer, change = cheat.optimizer(cheat.model.parameters()), cheat.change or (lambda: None)
    with cheat:
        plain_loop(cheat.model, optimizer, (X, Y), BATCH, after=lambda step: step == LATE and change())
        return [value.clone() for value in cheat.model.state_dict().values()]


@pytest.mark.parametrize("name", BY_HAND)
def test_what_changes_an_optimizer_is_as_effective_as_in_a_loop_by_hand(name: str) -> None:
    def make() -> Cheat:
        return OPTIMIZERS[name]()._replace(loss=hr.RowMean(cross_entropy))

    expected = by_hand(make)
    assert same(expected, trained(make, False)[0][: len(expected)])


@pytest.mark.parametrize(
    ("hook", "name"),
    sampled(
        product(HOOKS, CHANGED),
        keep={*product(HOOKS, ["annealed"]), *((HOOKS[k % len(HOOKS)], name) for k, name in enumerate(CHANGED))},
    ),
)
def test_any_hook_of_a_callback_may_change_what_a_pass_reads(hook: str, name: str, tmp_path: Path) -> None:
    found = []
    for tape in (False, "auto"):
        calls = itertools.count(1)
        changes: list[Any] = []

        def make(changes: list[Any] = changes) -> Cheat:
            cheat = ALL[name]()
            assert cheat.change is not None
            changes.append(cheat.change)
            return cheat._replace(change=None)

        def at_second(*given: Any, calls: Any = calls, changes: list[Any] = changes) -> None:
            if next(calls) == 2:
                changes[0]()

        options = {"val": (X, Y), "run": tmp_path / str(tape), "callbacks": [hr.Lambda(**{hook: at_second})]}
        found.append(trained(make, tape, by_fit=True, **options)[0])
    assert same(*found)


@pytest.mark.parametrize(
    ("hook", "name"), [(["on_step_end", "on_macrobatch_end"][k % 2], name) for k, name in enumerate(CHANGED)]
)
def test_a_callback_of_a_prediction_may_change_the_model(hook: str, name: str) -> None:
    assert same(scored(ALL[name], False, hook), scored(ALL[name], "auto", hook))


@pytest.mark.filterwarnings("ignore:the model has .* with microbatches:UserWarning")
@pytest.mark.parametrize(
    ("what", "name"),
    sampled(
        product(WHYS, IN_PARTS),
        keep={*product(WHYS, ["annealed"]), *((WHYS[k % 3], name) for k, name in enumerate(IN_PARTS))},
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


@pytest.mark.filterwarnings("ignore:predict. an output of shape")  # one adds up its rows
@pytest.mark.parametrize(
    "name",
    sampled(OF_MODELS, keep=[*(set(WRITES) & set(OF_MODELS)), "class_of_settings", "fast_path_of_attention"], of=8),
)
def test_predictions_and_validations_of_a_pass_that_changes_are_those_of_torch(name: str) -> None:
    assert same(scored(ALL[name], False), scored(ALL[name], "auto"))


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
        return ALL["annealed"]()._replace(change=None)

    steady, note = trained(unchanged, True)
    assert "replayed" in note
    assert not same(trained(ALL["annealed"], True)[0], steady)


def beside_draws(model: nn.Module, late: bool) -> Cheat:
    """A model with weights that are made already; a thread draws random numbers, from the beginning or from late on."""
    ended, drawn = threading.Event(), threading.Event()

    def draw() -> None:
        while not ended.is_set():
            torch.rand(1)
            drawn.set()

    def begin() -> None:
        thread.start()
        drawn.wait()

    def end() -> None:
        ended.set()
        if thread.is_alive():
            thread.join()

    thread = threading.Thread(target=draw)
    if not late:
        begin()
    return Cheat(copy.deepcopy(model), change=begin if late else lambda: None, undo=end)


@pytest.mark.parametrize(
    ("tape", "by_fit", "late"), [("auto", True, True), ("auto", False, False), (True, True, False), (True, False, True)]
)
def test_random_numbers_of_another_thread_do_not_disturb_a_model_that_draws_none(
    tape: Any, by_fit: bool, late: bool
) -> None:
    model = plain()
    *expected, _, losses = trained(lambda: Cheat(copy.deepcopy(model), change=lambda: None), False)[0]
    for _ in range(3):
        *found, _, found_losses = trained(lambda: beside_draws(model, late), tape, by_fit)[0]
        assert same([*expected, losses], [*found, found_losses])


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("by_fit", [False, True])
def test_random_numbers_of_another_thread_do_not_end_a_training_with_dropout(by_fit: bool, late: bool) -> None:
    model = plain(nn.Dropout(0.3))
    for _ in range(3):
        trained(lambda: beside_draws(model, late), "auto", by_fit)


@pytest.mark.filterwarnings("ignore:Full backward hook is firing:UserWarning")
@pytest.mark.filterwarnings("ignore:functools.partial will be a method:FutureWarning")
@pytest.mark.parametrize(
    "name", [name for name, program in ALL.items() if program.late is not None and "quiet" not in program.words]
)
def test_each_change_makes_another_training_of_it(name: str) -> None:
    """The control: a change that changes nothing proves nothing."""
    steady, _ = trained(lambda: ALL[name]()._replace(change=lambda: None), False)
    assert not same(by_torch(name), steady)
