"""What cannot go on: another model, other data, state that cannot be saved. It is told, and nothing is touched."""

import warnings
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from kit import small
from kit.own_data import Pulled
from kit.small import data, difference, drive, fit, same, state
from kit.stand_ins import Recorder
from torch import Tensor, nn

import headrace as hr
from headrace.loss import tally

ROWS, BATCH = 20, 4  # five batches
X, Y = DATA = data(ROWS)
COLUMNS = {"x": X, "y": Y}
network = partial(small.model, norm=True)


def make(model: nn.Module | None = None, optimizer: Any = small.adam, **options: Any) -> hr.Trainer:
    model = network() if model is None else model
    return small.trainer(model, **{"optimizer": optimizer, "batch_size": BATCH} | options)


def steps(trainer: hr.Trainer, run: Path, until: int | None = None, data: Any = DATA, **options: Any) -> int:
    """The loop, left after so many steps or trained to its end; the step at which it went on."""
    return drive(trainer, data, until=until, run=run, **options)


def refused(trainer: hr.Trainer, run: Path, *words: str, data: Any = DATA, **options: Any) -> None:
    """Fails unless all of this is said, nothing has changed, and the trainer can train without the run."""
    before = state(trainer)
    checkpoints = {file: file.read_bytes() for file in (run / "checkpoints").rglob("*.*")}
    with pytest.raises((hr.CheckpointError, hr.SourceError)) as caught:
        steps(trainer, run, data=data, **options)
    assert [word for word in words if word not in str(caught.value)] == [], str(caught.value)
    assert not (where := difference(trainer, before)), where
    assert {file: file.read_bytes() for file in (run / "checkpoints").rglob("*.*")} == checkpoints
    fit(trainer, data, epochs=1)


# --- another model, other data ------------------------------------------------------------------------------


def wide() -> hr.Trainer:
    model: Any = network(width=9)
    model.extend([nn.Linear(3, 3), nn.PReLU()])
    model[0].bias = None
    return make(model)


class Prototypes(hr.Objective, nn.Module):
    """An objective with weights of its own."""

    def __init__(self, width: int = 3) -> None:
        nn.Module.__init__(self)
        self.centers = nn.Parameter(torch.zeros(3, width))
        self.register_buffer("directions", torch.randn(3, 3))

    def terms(self: Any, model: nn.Module, batch: hr.Batch) -> dict[str, hr.Term]:
        out = model(batch["x"]) - self.directions[batch["y"]]
        distance = (out[:, : self.centers.shape[1]] - self.centers[batch["y"]]).square().sum()
        return {"distance": hr.Term(distance, float(batch.rows))}


def with_prototypes(width: int = 3, seed: int = 0) -> hr.Trainer:
    model, objective = network(seed=seed), Prototypes(width)
    return make(model, torch.optim.Adam([*model.parameters(), *objective.parameters()]), loss=objective)


def of_groups(*groups: Any) -> hr.Trainer:
    """The optimizer has groups with the parameters of these layers."""
    model = network(seed=1)
    made = [{"params": [p for layer in group for p in model[layer].parameters()]} for group in groups]
    return make(model, torch.optim.Adam(made, lr=0.02))


with_momentum = partial(make, optimizer=small.momentum)
MISSING = "missing in the checkpoint: 4.weight, 4.bias, 5.weight", "not in this model: 0.bias", "of another shape: 0.w"
DOUBLE = "0.weight (float32[8, 6] there, float64[8, 6] here)"
OTHERS: dict[str, tuple[Any, Any, dict[str, Any], tuple[str, ...]]] = {
    "another model": (make, wide, {}, MISSING),
    "another precision": (make, lambda: make(network().double()), {"data": (X.double(), Y)}, (DOUBLE,)),
    "another objective": (with_prototypes, lambda: with_prototypes(2), {}, ()),
    "another optimizer": (make, with_momentum, {}, ("Adam", "SGD")),
    "another optimizer, overridden": (make, with_momentum, {"override": True}, ("Adam", "SGD")),
    "an optimizer of other parameters": (make, lambda: of_groups([1, 3]), {}, ("0.bias", "0.weight")),
    "an optimizer of other groups": (make, lambda: of_groups([0], [1, 3]), {}, ("optimizer",)),
    "more rows": (make, make, {"data": (torch.cat([X, X]), torch.cat([Y, Y]))}, ("rows: saved 20, now 40",)),
    "fewer rows": (make, make, {"data": (X[:10], Y[:10])}, ("rows: saved 20, now 10",)),
    "another dtype": (make, make, {"data": {"x": X, "y": Y.int()}}, ("other data",)),
}


@pytest.mark.parametrize("name", OTHERS)
def test_what_a_run_cannot_go_on_with_is_refused_with_all_that_is_different(name: str, tmp_path: Path) -> None:
    """The control: only names, shapes and dtypes count; values come back."""
    first, other, options, words = OTHERS[name]
    steps(first(), tmp_path / "run", 3)
    refused(other(), tmp_path / "run", *words, **options)
    assert steps(with_prototypes(seed=1) if first is with_prototypes else make(network(seed=5)), tmp_path / "run") == 3


# --- sources ------------------------------------------------------------------------------------------------


def stream() -> Pulled:
    """Rows that come one batch after the other, without a state to go back to."""
    return Pulled(COLUMNS, state=False)


@pytest.mark.filterwarnings("ignore:Pulled has no state_dict")
@pytest.mark.parametrize("keep", [1, 3])
@pytest.mark.parametrize("every", ["1 epoch", "3 steps"])
def test_a_source_without_state_that_was_left_within_an_epoch_goes_on_from_its_beginning(
    every: str, keep: int, tmp_path: Path
) -> None:
    """Whenever checkpoints are due and however few are kept, the one to go on from is there."""
    whole, parts = make(), make()
    history = fit(whole, stream(), steps=20)
    options = {"run": tmp_path / "run", "every": every, "keep": keep}
    fit(parts, stream(), steps=7, **options)
    for limit, before in ((14, 5), (17, 10), (20, 15)):
        parts = make(network(seed=limit))
        with pytest.warns(UserWarning, match=rf"within an epoch, at step .* It goes on from step {before}, with data"):
            found = fit(parts, stream(), steps=limit, **options)
    assert same(parts, whole)
    assert list(found["train/loss"]) == list(history["train/loss"])


@pytest.mark.filterwarnings("ignore:Pulled has no state_dict", "ignore:.*does not shard")
def test_workers_that_read_a_source_without_state_go_on_from_the_beginning_of_an_epoch(tmp_path: Path) -> None:
    def trained(run: Path | None, limit: int) -> Any:
        trainer = make()
        fit(trainer, stream(), steps=limit, run=run, every="3 steps", keep=1)
        return state(trainer)

    hr.launch(trained, tmp_path / "run", 7, workers=2)
    with pytest.warns(UserWarning, match="It goes on from step 5, with data that have to begin an epoch there"):
        parts = hr.launch(trained, tmp_path / "run", 12, workers=2)
    assert same(parts, hr.launch(trained, None, 12, workers=2))


def test_a_source_without_state_is_refused_where_there_is_no_checkpoint_between_epochs(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="Pulled has no state_dict"):
        steps(make(), tmp_path / "run", 7, data=stream())
    for path in (tmp_path / "run" / "checkpoints").iterdir():
        if not path.name.startswith(f"step-{7:012d}-"):
            path.rename(tmp_path / path.name)
    words = "within an epoch, and Pulled cannot go back", "state_dict"
    refused(make(network(seed=2)), tmp_path / "run", *words, data=stream())


class Marked(Pulled):
    """A source with a state, which may be anything."""

    def __init__(self, more: Any = None) -> None:
        super().__init__(COLUMNS)
        self.more = more

    def state_dict(self) -> dict[str, Any]:
        return {"at": self.at, "deep": {"list": [1, self.more]}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.at, self.more = state["at"], state["deep"]["list"][1]


class Notes(hr.Callback):
    def __init__(self, note: Any) -> None:
        self.note, self.seen = note, 0

    def on_step_end(self, info: hr.Info) -> None:
        self.seen += 1

    def state_dict(self) -> dict[str, Any]:
        return {"note": self.note, "seen": self.seen}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.note, self.seen = state["note"], state["seen"]


class Unsaid(nn.Sequential):
    def get_extra_state(self) -> Any:
        return {"what": {1, 2}}

    def set_extra_state(self, state: Any) -> None:
        pass


UNFIT = [("a object", object()), ("tuple", (1, 2)), ("sparse", torch.eye(3).to_sparse())]


@pytest.mark.parametrize(
    ("words", "make_given"),
    [
        *((f"deep/list/1.*{words}", lambda value=value: {"data": Marked(value)}) for words, value in UNFIT),
        ("callbacks/Notes/note/inner.*a object", lambda: {"callbacks": [Notes({"inner": object()})]}),
        ("_extra_state/what.*a set", lambda: {"model": Unsaid(*network())}),
    ],
)
def test_state_that_cannot_be_saved_is_refused_before_the_first_step(
    words: str, make_given: Any, tmp_path: Path
) -> None:
    given = make_given()
    trainer = make(given.pop("model", None))
    before = state(trainer)
    with pytest.raises(hr.CheckpointError, match=rf"(?s){words}"):
        steps(trainer, tmp_path / "run", **given)
    assert not difference(trainer, before)
    assert not list((tmp_path / "run" / "checkpoints").glob("step-*"))


def test_callbacks_of_one_kind_get_back_what_each_of_them_had(tmp_path: Path) -> None:
    first = [Notes("a"), Notes((1, float("inf"))), Notes(X)]
    steps(make(), tmp_path / "run", 3, callbacks=first)
    second = [Notes(None) for _ in range(4)]
    assert steps(make(), tmp_path / "run", 5, callbacks=second) == 3
    assert [notes.seen for notes in second] == [5, 5, 5, 2]
    assert [notes.note for notes in second[:2]] == ["a", (1, float("inf"))]
    assert same(second[2].note, X)
    with pytest.warns(UserWarning, match="saved with a callback Notes 4 that is not there now"):
        steps(make(), tmp_path / "run", callbacks=second[:3], until=6)


def test_a_metric_that_forgets_is_right_or_told_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has been fed within the epoch, as it is once its block of outputs is full."""
    monkeypatch.setattr(tally, "BLOCK_BYTES", 1)
    trainer = make(metrics={"rows": Recorder()})
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        steps(make(metrics={"rows": Recorder()}), tmp_path / "run", 3)
        steps(trainer, tmp_path / "run", epochs=1, override=True)
    told = any("rows" in str(warning.message) and "state_dict" in str(warning.message) for warning in caught)
    assert told or sum(trainer.history.last["train/rows"]) == ROWS


# --- what it costs ------------------------------------------------------------------------------------------


class Huge(hr.Table):
    """A thousand million rows, made when they are asked for."""

    streams = (hr.Stream("x", (6,)), hr.Stream("y", (), "int64"))

    def __init__(self) -> None:
        self.asked: list[int] = []

    def __len__(self) -> int:
        return 10**9

    def take(self, indices: Tensor) -> hr.Batch:
        self.asked += indices.tolist()
        return hr.Batch({"x": torch.sin(indices[:, None] * torch.arange(1, 7) * 1e-3), "y": indices % 3})


@pytest.mark.parametrize("order", ["full", "blocks", "none"])
def test_a_run_far_into_its_data_goes_on_without_reading_what_came_before(order: str, tmp_path: Path) -> None:
    def trained(position: int, until: int) -> list[int]:
        source = hr.Reader(table := Huge(), order, seed=3, block=10**6)
        source.load_state_dict({**source.state_dict(), "position": position})
        assert steps(make(macrobatch=BATCH), tmp_path / "run", until, data=source, steps=9) in (0, 3)
        return table.asked

    there = 9 * 10**8
    expected = hr.Reader(Huge(), order, seed=3, block=10**6).order.indices(0, there, there + 6 * BATCH).tolist()
    first, second = trained(there, 3), trained(0, 6)
    ahead = 3 * BATCH  # read, perhaps, and not used yet
    assert first[: 3 * BATCH] == expected[: 3 * BATCH]
    assert second[: 3 * BATCH] == expected[3 * BATCH :]
    assert len(second) <= 3 * BATCH + ahead
