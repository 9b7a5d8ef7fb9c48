"""The loop driven by its user, single updates, predictions, and the modes that modules keep."""

import copy
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from kit import small
from kit.sampled import each
from kit.small import BATCH, ROWS, Parts, data, drive, fit, momentum, same
from torch import Tensor, nn

import headrace as hr
from headrace.step.update import Update

X, Y = DATA = data()  # batches of 16, 16, 16 and 2


def make(model: nn.Module | None = None, **options: Any) -> hr.Trainer:
    return small.trainer(small.model(norm=True, dropout=0.2) if model is None else model, **options)


def ordinary(trainer: hr.Trainer) -> bool:
    """Parameters are alone in their memory, and those that the optimizer holds."""
    params = list(trainer.model.parameters())
    alone = all(p.untyped_storage().nbytes() == p.nbytes and p.grad is None for p in params)
    held = [p for group in trainer.optimizer.param_groups for p in group["params"]]
    return alone and all(p is q for p, q in zip(params, held, strict=True))


def test_steps_shows_where_the_loop_is_after_every_update() -> None:
    trainer = make(macrobatch=2 * BATCH)
    seen, fired = [], []
    for info in trainer.steps(DATA, epochs=2):
        assert (info.batches, info.macrobatches, info.rate) == (4, 2, 0.1)
        assert info.trainer is trainer
        assert info.losses.keys() == {"total_loss", "cross_entropy"}
        assert all(type(loss) is float for loss in info.losses.values())
        seen.append((info.step, info.samples, info.epoch, info.batch, info.macrobatch, info.ends_epoch))
        if info.fires("3 steps"):
            fired.append(info.step)
        with pytest.raises(hr.ConfigError, match="every='5 minutes': minutes differ from run to run"):
            info.fires("5 minutes")
    assert seen == [
        (1, 16, 0, 1, 1, False),
        (2, 32, 0, 2, 1, False),
        (3, 48, 0, 3, 2, False),
        (4, 50, 1, 4, 2, True),
        (5, 66, 1, 1, 1, False),
        (6, 82, 1, 2, 1, False),
        (7, 98, 1, 3, 2, False),
        (8, 100, 2, 4, 2, True),
    ]
    assert fired == [3, 6]
    assert info.history.stopped == "2 epochs reached"
    assert ordinary(trainer)


def test_steps_can_be_left_early_asked_to_stop_or_fail_and_the_model_is_released() -> None:
    trainer = make()
    trainer.model[3].eval()
    drive(trainer, until=3)
    assert trainer.history.stopped == "left"
    assert ordinary(trainer)
    assert [m.training for m in trainer.model] == [True, True, True, False, True]
    for info in trainer.steps(DATA, val=DATA):
        if info.step == 6:
            info.stop("enough")
    assert (info.step, info.history.stopped, info.history.last["step"]) == (6, "enough", 6)
    assert {"train/loss", "val/loss"} <= info.history[-1].keys()

    def fails() -> None:
        for info in trainer.steps(DATA):
            raise ZeroDivisionError(info.step)

    with pytest.raises(ZeroDivisionError, match="1"):
        fails()
    assert ordinary(trainer)
    fit(copy.deepcopy(trainer))


FORMS: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "tuple": lambda x, y: (x, y),
    "arrays": lambda x, y: (x.numpy(), y.numpy()),
    "dict": lambda x, y: {"x": x, "y": y},
    "samples": lambda x, y: hr.samples([{"x": row, "y": label} for row, label in zip(x, y, strict=True)]),
    "plain samples": lambda x, y: hr.samples([{"x": r.numpy(), "y": int(k)} for r, k in zip(x, y, strict=True)]),
    "Batch": lambda x, y: hr.Batch({"x": x, "y": y}),
}


@pytest.mark.parametrize("form", FORMS)
def test_step_makes_one_update_and_returns_every_loss_by_name(form: str) -> None:
    model, raw = small.model(), small.model()
    trainer, optimizer = make(model, loss=hr.CrossEntropy() + 0.5 * hr.L2Prior(1.0)), momentum(raw)
    for part in (slice(0, 16), slice(16, 21)):
        optimizer.zero_grad()
        loss = F.cross_entropy(raw(X[part]), Y[part])
        prior: Any = 0.5 * 0.5 * sum(p.square().sum() for p in raw.parameters() if p.dim() > 1)
        (loss + prior).backward()
        found = {name: float(value) for name, value in trainer.step(FORMS[form](X[part], Y[part])).items()}
        expected = {"total_loss": loss + prior, "cross_entropy": loss, "l2_prior": prior}
        assert found == pytest.approx({name: float(value.detach()) for name, value in expected.items()}, rel=1e-5)
        optimizer.step()
    torch.testing.assert_close(model.state_dict(), raw.state_dict())
    trainer.release()
    assert ordinary(trainer)


def test_single_steps_have_torchs_bits_and_less_preparation_where_nothing_changes_between_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    prepared, prepare = list[hr.Batch](), Update.prepare

    def counted(update: Update, batch: hr.Batch) -> Any:
        prepared.append(batch)
        return prepare(update, batch)

    monkeypatch.setattr(Update, "prepare", counted)

    def train(tape: bool, unchanged: bool) -> tuple[list[float], Any, int]:
        prepared.clear()
        torch.manual_seed(0)
        trainer, losses = make(tape=tape), []
        with hr.Feed(hr.Reader(hr.ArrayTable({"x": X, "y": Y}), "full"), "cpu", batch_size=BATCH) as feed:
            for epoch in range(9):
                trainer.optimizer.param_groups[0]["lr"] = 0.1 / (1 + epoch)
                losses += [trainer.step(batch, unchanged=unchanged)["total_loss"] for batch in feed]
        trainer.release()
        return losses, trainer.model, len(prepared)

    losses, model, _ = train(tape=False, unchanged=False)
    for tape, unchanged in ((False, True), (True, False), (True, True)):
        found, other, looks = train(tape, unchanged)
        assert found == losses
        assert same(model, other)
        assert (looks < 36) == unchanged


def test_a_batch_of_another_macrobatch_is_looked_at_though_nothing_else_has_changed() -> None:
    model = nn.Linear(6, 3)
    trainer = hr.Trainer(model, hr.BinaryCrossEntropy(), momentum(model), batch_size=BATCH)
    trainer.step((X, torch.ones(len(X), 3, dtype=torch.bool)), unchanged=True)
    with pytest.raises(hr.DataError, match=r"targets"):
        trainer.step((X, torch.full((len(X), 3), -2.0)), unchanged=True)
    trainer.release()


# --- predictions ------------------------------------------------------------------------------------------------


class Pair(NamedTuple):
    logits: Tensor
    inner: Any


def gives(give: Callable[[Tensor], Any]) -> nn.Module:
    """A model that returns what it is told to make of its rows."""
    return Parts(lambda self, x: give(self.layer(x)), layer=nn.Linear(6, 3))


OUTPUTS: dict[str, Callable[[Tensor], Any]] = {
    "tensor": lambda out: out,
    "vector": lambda out: out[:, 0],
    "tuple": lambda out: (out, out[:, :1]),
    "list": lambda out: [out, out[:, 0]],
    "dict": lambda out: {"logits": out, "more": (out[:, 0], {"p": out.softmax(1)})},
    "named": lambda out: Pair(out, [out + 1]),
}


@pytest.mark.parametrize(("kind", "macrobatch"), each(OUTPUTS, ["auto", 1, 20]))
def test_predict_keeps_order_and_structure_for_any_batch_size(kind: str, macrobatch: int | str) -> None:
    trainer = make(gives(OUTPUTS[kind]), macrobatch=macrobatch)
    with torch.no_grad():
        expected = trainer.model(X)
    for size in (1, 7, 16, 50, 1000, None):
        got = trainer.predict(X, batch_size=size)
        assert type(got) is type(expected)
        torch.testing.assert_close(got, expected)
    torch.testing.assert_close(trainer.predict({"x": X.numpy(), "y": Y}), expected)


@pytest.mark.parametrize("extra", [None, "name"])
def test_predict_keeps_outputs_that_are_no_tensors(extra: Any) -> None:
    """As models do that return a dict with `None` for what was not asked."""
    trainer = make(gives(lambda out: {"logits": out, "extra": extra}))
    once = trainer.predict(X, batch_size=1000)
    many = make(trainer.model, macrobatch=3 * BATCH).predict(X)
    torch.testing.assert_close(many["logits"], once["logits"])
    assert (once["extra"], many["extra"]) == ([extra], [extra] * 4)


# --- modes ------------------------------------------------------------------------------------------------------


class Modes(nn.Module):
    """Writes down its mode; raises when it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[bool] = []
        self.raises = False

    def forward(self, x: Tensor) -> Tensor:
        self.seen.append(self.training)
        if self.raises:
            raise KeyError("on purpose")
        return x


USES: dict[str, Callable[[hr.Trainer], Any]] = {
    "fit": lambda trainer: trainer.fit(DATA, epochs=1, progress=False),
    "steps": lambda trainer: list(trainer.steps(DATA, epochs=1)),
    "step": lambda trainer: trainer.step(DATA),
    "validate": lambda trainer: trainer.validate(DATA),
    "predict": lambda trainer: trainer.predict(X),
    "test": lambda trainer: trainer.test(DATA),
    "release": lambda trainer: trainer.release(),
    "find_lr": lambda trainer: trainer.find_lr(DATA),
    "find_batch_size": lambda trainer: trainer.find_batch_size(DATA),
}
PASSES = [*USES][:5]


@pytest.mark.parametrize(("call", "owner", "raises"), each(PASSES, ["trains", "froze one", "rests"], [True, False]))
def test_every_module_has_its_own_mode_back(owner: str, call: str, raises: bool) -> None:
    one, other = Modes(), Modes()
    model = nn.Sequential(one, nn.Linear(6, 3), other)
    if owner == "rests":
        model.eval()
    elif owner == "froze one":
        one.eval()
    other.raises = raises
    before = [m.training for m in model.modules()]
    trainer = make(model)
    if raises:
        with pytest.raises(KeyError, match="on purpose"):
            USES[call](trainer)
    else:
        USES[call](trainer)
    assert [m.training for m in model.modules()] == before
    trains = call in ("fit", "steps", "step")
    assert set(one.seen) == {trains and owner != "froze one"}
    assert set(other.seen) == {trains}


# --- one thread at a time ---------------------------------------------------------------------------------------


def elsewhere(call: Callable[..., Any]) -> Any:
    """What a call gives, or raises, in another thread."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(call).result()


def test_another_thread_cannot_use_or_set_a_trainer_that_trains() -> None:
    def second(info: hr.Info) -> None:
        for use in USES.values() if info.step == 3 else ():
            with pytest.raises(hr.ConfigError, match=r"\(\) was called while another thread trains"):
                elsewhere(lambda use=use: use(trainer))
        if info.step == 3:
            with pytest.raises(hr.ConfigError, match=r"setting clip_norm was called while another thread trains"):
                elsewhere(lambda: setattr(trainer, "clip_norm", 0.1))

    trainer, alone = make(), make()
    torch.manual_seed(0)
    fit(alone)
    torch.manual_seed(0)
    fit(trainer, callbacks=[hr.Lambda(on_step_end=second)])
    assert same(trainer, alone)
    assert trainer.history.rows == alone.history.rows
    for use in USES.values():
        elsewhere(lambda use=use: use(trainer))  # afterwards any thread may
    elsewhere(lambda: setattr(trainer, "clip_norm", 0.1))


def test_the_thread_that_trains_may_use_the_trainer_as_it_likes() -> None:
    trainer, seen = make(), []

    def use_all(info: hr.Info) -> None:
        seen.append([USES[use](trainer) for use in ("predict", "validate", "step", "fit", "release")])

    for info in trainer.steps(DATA, epochs=1, callbacks=[hr.Lambda(on_step_end=use_all)]):
        use_all(info)
    assert len(seen) == 8


def test_a_map_that_calls_the_trainer_that_reads_it_is_refused() -> None:
    """The thread that reads ahead would wait for the trainer, and the trainer for what is read."""
    trainer = make()

    def predicting(fields: Any) -> Any:
        trainer.predict(X[:5])
        return fields

    change: Any = predicting
    table = hr.map(hr.ArrayTable({"x": X, "y": Y}), change)
    assert trainer.validate(table) == trainer.validate((X, Y)), "the thread that validates calls it"
    change.thread_safe = True
    table = hr.map(hr.ArrayTable({"x": X, "y": Y}), change)
    with pytest.raises(hr.HeadraceError, match=r"the\s+two would wait for each other"):
        trainer.validate(table)


def test_a_loop_may_be_handed_from_thread_to_thread() -> None:
    trainer = make()
    steps = iter(trainer.steps(DATA, epochs=1))
    seen = [elsewhere(lambda: next(steps).step), next(steps).step, elsewhere(lambda: next(steps).step)]
    assert trainer.predict(X).shape == (ROWS, 3), "the thread that had it last has ended"
    elsewhere(lambda: steps.close())
    assert seen == [1, 2, 3]
    assert ordinary(trainer)
