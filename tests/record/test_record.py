"""A run as a record: rows of updates, states of steps, causes of losses, forks, differences, and proofs."""

import copy
import json
import re
import shutil
import subprocess
import tracemalloc
from collections.abc import Callable, Mapping
from functools import partial
from html import escape
from pathlib import Path
from typing import Any

import pytest
import torch
from kit.recorded import (
    EPOCHS,
    KINDS,
    POISONED_LATE,
    ROWS,
    UPDATES,
    adamw,
    columns,
    forged,
    make,
    noisy,
    plain,
    sgd,
    train,
)
from kit.sampled import sampled
from kit.small import Parts, same
from kit.torch_workers import with_forks

import headrace as hr
from headrace.errors import RunError
from headrace.record.verify import differences
from headrace.store.checkpoints import Store
from headrace.store.contents import MODEL, OPTIMIZER
from headrace.watch.report import write

pytestmark = pytest.mark.filterwarnings("ignore:the model has:UserWarning")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of the kind "noisy"."""
    path = tmp_path_factory.mktemp("record") / "run"
    train("noisy", path, columns())
    return path


# --- what is there ------------------------------------------------------------------------------------------


def test_nothing_that_is_asked_changes_the_run(run: Path) -> None:
    def files() -> dict[str, tuple[int, bytes]]:
        return {str(p): (p.stat().st_mtime_ns, p.read_bytes()) for p in run.rglob("*") if p.is_file()}

    before, record = files(), hr.Record(run)
    record.why(20, make("noisy"), columns())
    record.at(13, make("noisy"), columns())
    record.verify(make("noisy"), columns(), segments=1)
    record.rows(3), record.when(3)
    assert files() == before


# --- rows of updates ----------------------------------------------------------------------------------------


class Seen(hr.Callback):
    """The rows of every update, by a stream that numbers them."""

    def __init__(self) -> None:
        self.rows: list[list[int]] = []

    def on_step_end(self, info: hr.Info) -> None:
        assert info.outcome is not None
        self.rows.append([row for _, batch in info.outcome.outputs for row in batch["row"].tolist()])


def mixed(data: dict[str, Any]) -> hr.Source:
    parts = [{k: v[:100] for k, v in data.items()}, {k: v[100:] for k, v in data.items()}]
    return hr.mix(parts, [3, 1], seed=2)


def ended(data: dict[str, Any]) -> hr.Source:
    return hr.Reader(hr.ArrayTable(data), max_samples=250)


def begun(rows: int, data: dict[str, Any]) -> hr.Source:
    reader = hr.Reader(hr.ArrayTable(data))
    reader.next_batch(203), reader.next_batch(rows)
    return reader


@pytest.mark.parametrize(
    ("read", "settings"),
    [
        (lambda data: data, {}),
        (lambda data: data, {"order": "none"}),
        (lambda data: data, {"batch_size": {0: 16, "1 epoch": 31, "400 samples": 20}}),
        (lambda data: hr.Reader(hr.ArrayTable(data), "blocks", block=16, seed=3), {}),
        (lambda data: hr.Reader(hr.ArrayTable(data), "blocks", block=16, mix=3, seed=3), {}),
        (lambda data: hr.Reader(hr.ArrayTable(data), "blocks-only", block=17, seed=1), {}),
        (lambda data: hr.Reader(hr.ArrayTable(data), "rows-only", block=17, seed=1), {}),
        (lambda data: hr.Reader(hr.ArrayTable(data), cross_epochs=True), {}),
        (lambda data: hr.Reader(hr.ArrayTable(data), cross_epochs=True), {"batch_size": {0: 16, "1 epoch": 31}}),
        (partial(begun, 40), {}),
        (partial(begun, 40), {"batch_size": {0: 16, "1 epoch": 31}}),
        (ended, {}),
        (mixed, {}),
    ],
)
def test_rows_and_when_are_those_that_were_used(read: Callable[..., Any], settings: Any, tmp_path: Path) -> None:
    data = columns(rows=203) | {"row": torch.arange(203)}
    seen, trainer = Seen(), make("plain", tape=False, **{"batch_size": 24, **settings})
    source, unknown = read(data), {mixed: "mix of tables", ended: "has an end"}.get(read)
    trainer.fit(source, epochs=EPOCHS, progress=False, run=str(tmp_path / "run"), callbacks=[seen])
    record, given = hr.Record(tmp_path / "run"), (read(data),) if unknown else ()
    assert [record.rows(step, *given) for step in range(1, record.steps + 1)] == seen.rows
    for row in (0, 7, 101, 202):
        assert record.when(row, *given) == [k + 1 for k, rows in enumerate(seen.rows) for _ in range(rows.count(row))]
    if unknown:
        with pytest.raises(RunError, match=unknown):
            record.rows(1)


def test_the_rows_of_an_update_that_has_ended_a_run_before_its_first_report_are_known(tmp_path: Path) -> None:
    data = columns()
    data["x"][POISONED_LATE] = torch.nan
    with pytest.raises(hr.NonFiniteError) as error:
        make("plain").fit(data, epochs=EPOCHS, progress=False, run=str(tmp_path / "run"))
    found = re.search(r"step (\d+)", str(error.value))
    assert found is not None
    record = hr.Record(tmp_path / "run")
    assert record.reports == []
    assert POISONED_LATE in record.rows(int(found[1]))


@pytest.mark.parametrize("order", [{}, {"kind": "blocks", "block": 100}, {"kind": "blocks", "block": 7, "mix": 9}])
def test_when_a_row_was_used_is_found_without_a_list_of_all_rows(order: dict[str, Any]) -> None:
    rows = 10**9
    tracemalloc.start()
    try:
        made = hr.Order(rows, **order)
        (place,) = made.positions(3, rows * 2 // 3)
        assert made.indices(3, place, place + 1)[0] == rows * 2 // 3
        assert tracemalloc.get_traced_memory()[1] < 1_000_000, "bytes"
    finally:
        tracemalloc.stop()


def test_a_row_is_found_below_splits_filters_and_mixes(tmp_path: Path) -> None:
    data = columns(rows=200) | {"row": torch.arange(200)}
    table = hr.map(hr.filter(data, lambda batch: batch["row"] % 2 == 1), lambda batch: batch)
    parts = [hr.split(table, 0.5, 0.5)[1], hr.skip(data, 150)]
    source = hr.mix(parts, [1, 1])
    make("plain").fit(source, steps=1, progress=False, run=tmp_path / "run")
    run = hr.Record(tmp_path / "run")
    for row in (0, 7, 49, 50, 99):
        which, number = run.origin(row, source)
        assert which == (row >= 50)
        assert number == int(source.table.take(torch.tensor([row]))["row"])
    with pytest.raises(RunError, match="data are batches"):
        run.origin(0, [{"x": torch.ones(2, 20), "y": torch.zeros(2, dtype=torch.int64)}])


# --- states of steps, and causes of losses ------------------------------------------------------------------


@pytest.mark.parametrize("step", [0, 1, 6, 7, 8, 20])
def test_the_trainer_as_it_stood_after_an_update(step: int, run: Path) -> None:
    other = make("noisy")
    if step:
        other.fit(columns(), steps=step, progress=False)
    standing = torch.get_rng_state()
    found = hr.Record(run).at(step, make("noisy"), columns())
    assert same(other, found)
    assert step == 0 or torch.equal(standing, torch.get_rng_state()), "random numbers go on from there"


FEW = ("noisy", "clipped", "rates by lengths", "microbatches", "parts", "bf16", "growing batches")
"""Kinds whose updates are put together, scaled or rounded in a way of their own; others run nightly."""
NAMED = [*FEW, "as stored", "another seed", "with a prior"]


def blamed(run: Path, row: int, trainer: hr.Trainer, data: Any) -> tuple[hr.Record, Any]:
    """The record of a run, and what it knows of the update whose loss a row has raised most."""
    record = hr.Record(run)
    step = max(record.when(row), key=lambda step: record.loss(step) or 0.0)
    return record, record.why(step, trainer, data)


@pytest.mark.parametrize("kind", sampled(KINDS, keep=NAMED))
def test_a_poisoned_row_is_named(kind: str, tmp_path: Path) -> None:
    settings = KINDS[kind].settings
    order = hr.Order(ROWS, settings.get("order", "full"), seed=settings.get("seed", 0))
    (row,) = order.indices(0, ROWS - 12 - list(KINDS).index(kind), ROWS)[:1].tolist()  # used first when much is learnt
    data = columns(poisoned=row)
    train(kind, tmp_path / "run", data)
    _, found = blamed(tmp_path / "run", row, make(kind), data)
    assert found.worst == [row]
    assert found.exact, "the recorded loss came out bit for bit"
    assert found.rows[0].row == row
    assert f"step {found.step}" in str(found)


@pytest.mark.parametrize("keyed", [False, True], ids=["one loss", "a loss for each"])
def test_a_poisoned_row_is_named_where_there_are_several_optimizers(keyed: bool, tmp_path: Path) -> None:
    def trainer() -> hr.Trainer:
        torch.manual_seed(0)
        model: Any = Parts(lambda self, x: {"one": self.one(x), "other": self.other(x)}, one=noisy(), other=plain())
        optimizers = {"one": adamw(model.one), "other": sgd(model.other)}
        losses = {name: hr.CrossEntropy(output=name, weight="w") for name in optimizers}
        given: tuple[Any, Any] = (losses, optimizers)
        if not keyed:
            given = (losses["one"] + losses["other"], list(optimizers.values()))
        return hr.Trainer(model, *given, batch_size=24, inputs="x")

    data = columns(poisoned=POISONED_LATE)
    run = hr.Run(tmp_path / "run", every="7 steps", keep="all")
    trainer().fit(data, epochs=EPOCHS, progress=False, log_every="1 step", run=run)
    _, found = blamed(tmp_path / "run", POISONED_LATE, trainer(), data)
    assert (found.worst, found.exact) == ([POISONED_LATE], True)
    assert len(found.rows[0].terms) == 2
    assert bool(found.losses) is not keyed, "what would be without a row is shown for one update"


def test_an_update_without_a_cause_names_no_row(run: Path) -> None:
    found = hr.Record(run).why(4, make("noisy"), columns())
    assert (found.worst, found.exact) == ([], True)
    assert sum(found.norms.values()) > 0


def test_what_would_be_without_the_worst_rows(tmp_path: Path) -> None:
    data = columns(poisoned=5)
    train("plain", tmp_path / "run", data)
    _, found = blamed(tmp_path / "run", 5, make("plain"), data)
    assert found.losses["with"][0] == pytest.approx(found.loss, rel=1e-5)
    assert found.losses["without"][0] < found.losses["with"][0]
    assert found.norm["without"] < found.norm["with"]
    page = write(tmp_path / "run").read_text()
    assert "share of the loss" not in page
    found.write(tmp_path / "run")
    page = write(tmp_path / "run").read_text()
    assert f"<summary>step {found.step}</summary><pre>{escape(str(found))}" in page


def _drawn(fields: Mapping[str, Any], draws: hr.Draws) -> Mapping[str, Any]:
    return {**fields, "x": fields["x"] + draws.normal(20)}


def test_updates_of_rows_that_a_trainer_augments_are_made_again(tmp_path: Path) -> None:
    data, never = columns(poisoned=POISONED_LATE), columns(poisoned=POISONED_LATE)
    train("plain", tmp_path / "run", data, augment=_drawn)
    record, found = blamed(tmp_path / "run", POISONED_LATE, make("plain", augment=_drawn), data)
    assert (found.worst, found.exact) == ([POISONED_LATE], True)
    assert not found.losses, "those of rows that are not augmented would be of another training"
    never["w"][POISONED_LATE] = 0
    train("plain", tmp_path / "never", never, augment=_drawn)
    record.without([POISONED_LATE], make("plain", augment=_drawn), data, run=tmp_path / "clean")
    assert differences(tmp_path / "never", tmp_path / "clean", UPDATES) == []
    assert differences(record.path, tmp_path / "clean", UPDATES) != []


# --- several workers ------------------------------------------------------------------------------------------


def train_on_worker(path: Path, strategy: hr.Strategy, data: dict[str, Any]) -> None:
    train("noisy", path, data, strategy=strategy)


BY_WORKERS: list[tuple[hr.Strategy, int, str]] = [
    (hr.Synchronous(), 3, "local"),
    (hr.Periodic(every="5 steps"), 2, "local"),
    (hr.BlockMomentum(every="3 steps"), 2, "local"),
    (hr.Synchronous(), 3, "processes"),
    (hr.Periodic(every="5 steps"), 2, "processes"),
]


def train_on_workers(path: str, case: int) -> None:
    strategy, workers, engine = BY_WORKERS[case]
    data = columns(poisoned=POISONED_LATE)
    hr.launch(train_on_worker, Path(path), strategy, data, workers=workers, engine=engine)


@pytest.mark.filterwarnings("ignore:this replay may not be exact:UserWarning")
@pytest.mark.parametrize(
    "case",
    sampled(range(len(BY_WORKERS)), keep=[0, 4]),
    ids=lambda case: f"{BY_WORKERS[case][0].kind}-{BY_WORKERS[case][2]}",
)
def test_what_workers_made_is_made_again(case: int, tmp_path: Path) -> None:
    strategy, _, engine = BY_WORKERS[case]

    def again() -> hr.Trainer:
        return make("noisy", strategy=copy.deepcopy(strategy))

    data = columns(poisoned=POISONED_LATE)
    if engine == "processes":
        with_forks(train_on_workers, tmp_path, str(tmp_path / "run"), case)
    else:
        train_on_workers(str(tmp_path / "run"), case)
    record, found = blamed(tmp_path / "run", POISONED_LATE, again(), data)
    assert (found.worst, found.exact) == ([POISONED_LATE], True)
    assert sorted(row.row for row in found.rows) == sorted(record.rows(found.step))
    assert bool(found.losses) == (strategy.kind == "Synchronous")
    certificate = record.verify(again(), data, segments=1)
    assert certificate.ok
    assert len(certificate.stretches) == 1


@pytest.mark.filterwarnings("ignore:this replay may not be exact:UserWarning")
def test_what_workers_made_is_forked_and_made_without_rows(tmp_path: Path) -> None:
    def again() -> hr.Trainer:
        return make("noisy", strategy=hr.Synchronous())

    data, never = columns(poisoned=30), columns(poisoned=30)
    hr.launch(train_on_worker, tmp_path / "run", hr.Synchronous(), data, workers=3)
    record = hr.Record(tmp_path / "run")
    fork = record.fork(tmp_path / "fork", 10, again(), data)
    assert fork.checkpoints == [10]
    hr.launch(train_on_worker, tmp_path / "fork", hr.Synchronous(), data, workers=3)
    assert differences(record.path, fork.path, UPDATES) == []
    never["w"][30] = 0
    hr.launch(train_on_worker, tmp_path / "never", hr.Synchronous(), never, workers=3)
    record.without([30], again(), data, run=tmp_path / "clean")
    assert differences(tmp_path / "never", tmp_path / "clean", UPDATES) == []
    assert differences(record.path, tmp_path / "clean", UPDATES) != []


def test_another_number_of_workers_is_said_before_the_replay(tmp_path: Path) -> None:
    """The negative control: one worker adds up otherwise than three."""
    data = columns(poisoned=30)
    hr.launch(train_on_worker, tmp_path / "run", hr.Synchronous(), data, workers=3)
    record, made = hr.Record(tmp_path / "run"), make("noisy", strategy=hr.Synchronous())
    with pytest.warns(UserWarning, match="3 workers made the updates, and 1 make them again"):
        record.at(20, made, data)
    there = Store(tmp_path / "run" / "checkpoints", record.id).load(21).tensors[MODEL]
    assert not torch.equal(made.model.state_dict()["0.weight"], there["0.weight"])


def test_rows_that_a_center_lent_are_not_known(tmp_path: Path) -> None:
    strategy = hr.Elastic(every="2 steps")
    hr.launch(train_on_worker, tmp_path / "run", strategy, columns(), workers=2)
    with pytest.raises(RunError, match="from a center"):
        hr.Record(tmp_path / "run").rows(3)


# --- forks ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", sampled(KINDS, keep=FEW[:-1]))
def test_a_fork_without_changes_ends_with_the_bits_of_its_parent(kind: str, tmp_path: Path) -> None:
    whole = train(kind, tmp_path / "a", columns())
    at = 14 if list(KINDS).index(kind) % 2 else 17  # with a checkpoint, and without
    fork = hr.Record(tmp_path / "a").fork(tmp_path / "b", at, make(kind), columns())
    assert [(each["step"], each["run"]) for each in fork.parents] == [(at, str(tmp_path / "a"))]
    assert fork.checkpoints == [at]
    forked = train(kind, tmp_path / "b", columns())
    assert same(whole, forked)
    assert [row["train/loss"] for row in fork.reports] == [
        row["train/loss"] for row in hr.Record(tmp_path / "a").reports
    ]


def test_a_training_begins_with_a_parent_and_keeps_its_parents(run: Path, tmp_path: Path) -> None:
    def fit(path: Path, parent: Path | str, at: int, **settings: Any) -> hr.Trainer:
        trainer = make("noisy")
        kept = hr.Run(path, every="7 steps", parent=f"{parent}@{at}")
        trainer.fit(columns(), progress=False, log_every="1 step", run=kept, **settings)
        return trainer

    b, c = tmp_path / "b", tmp_path / "c"
    fit(b, run, 14, steps=21)
    done = fit(b, run, 14, epochs=EPOCHS)  # once more, as after a kill: it goes on, and does not begin again
    assert "going on from step 21" in (b / "log.txt").read_text()
    again = fit(c, b, 21, epochs=EPOCHS)
    assert same(done, again)
    assert same(again, hr.Record(run).at(UPDATES, make("noisy"), columns()))
    assert [(each["run"], each["step"]) for each in hr.Record(c).parents] == [(str(b), 21), (str(run), 14)]
    shutil.rmtree(b)
    fit(c, b, 21, epochs=EPOCHS)  # what has begun does not need its parent any more
    with pytest.raises(RunError, match="goes on from"):
        fit(c, run, 14, epochs=EPOCHS)
    with pytest.raises(RunError, match="began by itself"):
        fit(run, c, 21, epochs=EPOCHS)


def test_a_fork_that_was_cut_short_gets_its_checkpoint_again(run: Path, tmp_path: Path) -> None:
    b = hr.Record(run).fork(tmp_path / "b", 14).path
    shutil.rmtree(b / "checkpoints")
    (b / "metrics.jsonl").write_bytes((b / "metrics.jsonl").read_bytes()[:200])
    trainer = make("noisy")
    trainer.fit(columns(), epochs=EPOCHS, progress=False, log_every="1 step", run=hr.Run(b, parent=f"{run}@14"))
    assert same(trainer, hr.Record(run).at(UPDATES, make("noisy"), columns()))
    assert [row["step"] for row in hr.Record(b).reports] == list(range(1, UPDATES + 1))
    shutil.rmtree(b / "checkpoints")
    shutil.copytree(run, tmp_path / "a")
    facts = json.loads((tmp_path / "a" / "run.json").read_text())
    (tmp_path / "a" / "run.json").write_text(json.dumps(facts | {"id": "0" * 32}))
    facts = json.loads((b / "run.json").read_text())
    facts["parents"][0]["run"] = str(tmp_path / "a")
    (b / "run.json").write_text(json.dumps(facts))
    with pytest.raises(RunError, match="another run than the one that is at"):
        make("noisy").fit(columns(), epochs=1, progress=False, run=hr.Run(b, parent=f"{tmp_path / 'a'}@14"))


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"parent": "runs/a"}, "as in 'runs/a@600'"),
        ({"parent": "runs/a@last"}, "as in 'runs/a@600'"),
        ({"parent": "runs/a@3", "path": None}, "path of the new run"),
        ({"parent": "runs/a@3", "path": "runs/"}, "path of the new run"),
        ({"parent": "runs/a@3", "resume": "never"}, "resume='never'"),
    ],
)
def test_what_is_no_parent_is_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(hr.ConfigError, match=words):
        hr.Run(**{"path": "runs/b", **settings})


def test_a_fork_is_not_made_again_with_what_its_parent_had(run: Path, tmp_path: Path) -> None:
    fork = hr.Run(tmp_path / "b", every="7 steps", keep="all", parent=f"{run}@14", override=True)
    settings: dict[str, Any] = {"epochs": EPOCHS, "progress": False, "log_every": "1 step"}
    make("noisy", clip_norm=0.1).fit(columns(), run=fork, **settings)
    record = hr.Record(tmp_path / "b")
    assert record.why(17, make("noisy", clip_norm=0.1), columns()).exact
    assert record.verify(make("noisy", clip_norm=0.1), columns(), segments=9).ok
    with pytest.raises(RunError, match="went on from step 14 in another way: clip_norm"):
        record.at(17, make("noisy"), columns())
    changed = columns()
    changed["w"][3] = 0
    fork = hr.Run(tmp_path / "c", every="7 steps", keep="all", parent=f"{run}@14", override=True)
    make("noisy").fit(changed, run=fork, **settings)
    assert hr.Record(tmp_path / "c").why(17, make("noisy"), changed).exact
    with pytest.raises(RunError, match="the data are not those"):
        hr.Record(tmp_path / "c").at(17, make("noisy"), columns())


# --- differences ------------------------------------------------------------------------------------------------


def test_runs_that_differ_in_a_setting_a_row_or_a_bit_are_told_apart(run: Path, tmp_path: Path) -> None:
    assert not hr.diff(run, run)
    train("noisy", tmp_path / "rate", columns(), clip_norm=0.2)
    found = hr.diff(run, tmp_path / "rate", (make("noisy"), make("noisy", clip_norm=0.2)), (columns(), columns()))
    assert any("clip_norm" in each for each in found.about)
    assert found.checkpoint == 7
    assert found.update is not None
    assert found.update <= 7

    other = columns()
    other["x"][9, 3] += 1e-3
    train("noisy", tmp_path / "row", other)
    found = hr.diff(run, tmp_path / "row", (make("noisy"), make("noisy")), (columns(), other))
    assert any("fingerprints" in each for each in found.about)
    assert found.update == hr.Record(run).when(9)[0]
    assert found.tensor == "the output of 0"

    shutil.copytree(run, tmp_path / "version")
    facts = json.loads((tmp_path / "version" / "run.json").read_text())
    facts["versions"]["numpy"] = "1.0"
    (tmp_path / "version" / "run.json").write_text(json.dumps(facts))
    assert [each.partition(":")[0] for each in hr.diff(run, tmp_path / "version").about] == ["versions"]

    forged(run, tmp_path / "bit", 14, MODEL, "0.weight")
    found = hr.diff(run, tmp_path / "bit")
    assert (found.checkpoint, found.state) == (14, ["model.safetensors: 0.weight"])


# --- proofs -----------------------------------------------------------------------------------------------------


def test_a_sound_run_is_certified(run: Path, tmp_path: Path) -> None:
    found = hr.Record(run).verify(make("noisy"), columns(), segments=2)
    assert found.ok
    assert len(found.stretches) == 2
    assert list(found.checkpoints) == hr.Record(run).checkpoints
    found.write(tmp_path / "certificate.json")
    assert json.loads((tmp_path / "certificate.json").read_text())["ok"]


@pytest.mark.parametrize("file", ["model.safetensors", "optim.safetensors", "rank-00000.safetensors", "trainer.json"])
def test_a_flipped_bit_is_found_with_its_file_and_step(file: str, run: Path, tmp_path: Path) -> None:
    shutil.copytree(run, tmp_path / "run")
    [path] = tmp_path.glob(f"run/checkpoints/step-000000000014-*/{file}")
    data = bytearray(path.read_bytes())
    data[-9] ^= 1
    path.write_bytes(data)
    found = hr.Record(tmp_path / "run").verify()
    assert not found.ok
    assert list(found.corrupt) == [14]
    assert file in found.corrupt[14]


def test_a_report_that_was_changed_is_found(run: Path, tmp_path: Path) -> None:
    shutil.copytree(run, tmp_path / "run")
    reports = tmp_path / "run" / "metrics.jsonl"
    with open(reports, "ab") as file:
        file.write(b'{"step": 99}\n')  # as a training at work does
    assert hr.Record(tmp_path / "run").verify().ok
    reports.write_bytes(reports.read_bytes().replace(b'"train/loss":1.', b'"train/loss":0.', 1))
    found = hr.Record(tmp_path / "run").verify()
    assert not found.ok
    assert "metrics.jsonl is not as it was" in found.corrupt[UPDATES]


@pytest.mark.parametrize(
    ("file", "name"),
    [(MODEL, "0.weight"), (MODEL, "1.running_mean"), (OPTIMIZER, None), ("rank-00000.safetensors", "rng/torch")],
    ids=["weight", "buffer", "moment", "random state"],
)
def test_a_forged_checkpoint_is_found_by_training_again(file: str, name: str | None, run: Path, tmp_path: Path) -> None:
    if name is None:
        store = Store(run / "checkpoints", hr.Record(run).id)
        name = next(
            key for key, t in store.load(14).tensors[file].items() if t.dtype == torch.float32 and t.numel() > 1
        )
    forged(run, tmp_path / "run", 14, file, name)
    record = hr.Record(tmp_path / "run")
    assert record.verify().ok, "its hashes are right"
    found = record.verify(make("noisy"), columns(), segments=99)
    assert not found.ok
    wrong = [(each.start, each.stop) for each in found.stretches if each.differs]
    assert wrong[0] == (7, 14)
    is_random = name is not None and name.startswith("rng")
    assert found.stretches[1].differs == ["random state of worker 0" if is_random else f"{file}: {name}"]


@pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="there is no ssh-keygen here")
def test_a_certificate_is_signed(run: Path, tmp_path: Path) -> None:
    key = tmp_path / "key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)], check=True, timeout=400)
    assert "BEGIN SSH SIGNATURE" in hr.Record(run).verify(key=key).signature
    with pytest.raises(hr.ConfigError, match="cannot be signed"):
        hr.Record(run).verify(key=tmp_path / "none")


# --- rows that are left out -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "kind", sampled([kind for kind in KINDS if kind != "bf16"], keep={*FEW} - {"bf16", "rates by lengths"})
)
def test_a_training_without_rows_has_the_bits_of_one_that_never_counted_them(kind: str, tmp_path: Path) -> None:
    data, rows = columns(poisoned=30), [30, 77, 150]
    train(kind, tmp_path / "a", data)
    trainer, weights = make(kind), data["w"].clone()
    hr.Record(tmp_path / "a").without(rows, trainer, data, run=tmp_path / "clean")
    weights[rows] = 0
    never = make(kind)
    never.fit(data | {"w": weights}, epochs=EPOCHS, progress=False)
    assert same(never, trainer)


# --- what is refused --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ask", "kind", "words"),
    [
        (lambda run, at: hr.Record(at / "none"), RunError, "none"),
        (lambda run, at: hr.Record(run).rows(0), RunError, "updates 1 to 30.*no update 0"),
        (lambda run, at: hr.Record(run).rows(31), RunError, "no update 31"),
        (lambda run, at: hr.Record(run).why(31, make("noisy"), columns()), RunError, "updates 1 to 30.*no update 31"),
        (lambda run, at: hr.Record(run).when(ROWS), RunError, "no row 240"),
        (lambda run, at: hr.Record(run).fork(at / "b", 15), RunError, "no checkpoint of step 15"),
        (lambda run, at: hr.Record(run).fork(run, 14), RunError, "is there already"),
        (lambda run, at: hr.Record(run).at(31, make("noisy"), columns()), RunError, "ended before step 31"),
        (
            lambda run, at: hr.Record(run).without([1], make("noisy", loss=hr.CrossEntropy()), columns(), run=at / "c"),
            hr.ConfigError,
            "weight='w'",
        ),
    ],
)
def test_what_cannot_be_answered_is_refused(
    ask: Any, kind: type[Exception], words: str, run: Path, tmp_path: Path
) -> None:
    with pytest.raises(kind, match=words):
        ask(run, tmp_path)


@pytest.mark.filterwarnings("ignore:the run was saved with a callback:UserWarning")
def test_a_replay_that_may_not_be_exact_says_so(tmp_path: Path) -> None:
    trainer = make("plain")
    stops = hr.EarlyStopping("train/loss", patience=50)
    trainer.fit(columns(), epochs=2, progress=False, run=str(tmp_path / "run"), callbacks=[stops])
    with pytest.warns(UserWarning, match="callbacks EarlyStopping, which are not given"):
        hr.Record(tmp_path / "run").at(12, make("plain"), columns())
