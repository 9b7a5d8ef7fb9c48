"""Runs that somebody has changed who can compute a sha256: refused in a sentence, and nothing outside is touched."""

import contextlib
import io
import json
import os
import re
import shutil
import struct
import warnings
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from kit.fault_harness import recommit, scratch
from kit.sampled import sampled, seeds
from torch import nn

import headrace as hr
from headrace.errors import CheckpointError, HeadraceError

KINDS = ["one worker", "a torch schedule", "two workers"]
TRAINER, WORKER = "trainer.json", "rank-00000.json"
MARK = "EarlyStopping val/loss"


def rates(optimizer: torch.optim.Optimizer, total: int | None) -> torch.optim.lr_scheduler.LRScheduler:
    return torch.optim.lr_scheduler.StepLR(optimizer, 2)


def work(kind: str, run: str, epochs: int) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.1), nn.Linear(4, 2))
    draw = torch.Generator().manual_seed(1)
    x = torch.randn(32, 3, generator=draw)
    data = x, (x[:, 0] > 0).long()
    optimizer: torch.optim.Optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    given: dict[str, Any] = {"schedule": hr.Cosine()}
    if kind == "a torch schedule":
        optimizer, given = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), {"schedule": hr.Schedule(rates)}
    if kind == "two workers":
        given = {"strategy": hr.Periodic("2 steps")}
    hr.Trainer(model, hr.CrossEntropy(), optimizer, batch_size=8, metrics="accuracy", **given).fit(
        data,
        val=data,
        epochs=epochs,
        run=hr.Run(run, every="3 steps"),
        callbacks=[hr.EarlyStopping("val/loss", patience=50), hr.TensorBoard()],
        progress=False,
    )


def train(kind: str, run: Path, epochs: int) -> None:
    hr.launch(work, kind, str(run), epochs, workers=2 if kind == "two workers" else 1)


@pytest.fixture(scope="module", params=KINDS)
def made(request: pytest.FixtureRequest) -> Iterator[tuple[str, Path]]:
    """A kind of training, and a run of it with one checkpoint, which is the best too."""
    with scratch() as path, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        train(request.param, path / "made", 2)
        for checkpoint in checkpoints(path / "made")[:-1]:
            shutil.rmtree(checkpoint)
        yield request.param, path / "made"


def checkpoints(run: Path) -> list[Path]:
    return sorted((run / "checkpoints").glob("step-*"))


def change(run: Path, files: dict[str, bytes | None]) -> None:
    """Gives files of the checkpoint other bytes, or takes them away; the manifest and COMMIT vouch for that."""
    at = checkpoints(run)[-1]
    told = json.loads((at / "manifest.json").read_bytes())
    told["files"] = [entry for entry in told["files"] if files.get(entry["name"], b"") is not None]
    there = {name: data for name, data in files.items() if data is not None}
    recommit(at, manifest=json.dumps(told).encode(), files=there)


def document(run: Path, name: str) -> Any:
    return json.loads((checkpoints(run)[-1] / name).read_bytes())


def command(*arguments: str) -> None:
    from headrace.app.cli import main

    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), contextlib.suppress(SystemExit):
        main(list(arguments))


def uses(kind: str, run: Path) -> dict[str, Callable[[], Any]]:
    """Everything that reads a run."""
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.1), nn.Linear(4, 2))
    return {
        "best": lambda: hr.load_weights(model, run),
        "last": lambda: hr.load_weights(model, run, which="last"),
        "list": lambda: command("checkpoint", "list", str(run)),
        "export": lambda: command("checkpoint", "export", str(run)),
        "report": lambda: command("report", str(run)),
        "resume": lambda: train(kind, run, 3),
    }


def outcomes(kind: str, run: Path) -> dict[str, str]:
    """What each use has come to: "", or an error of ours; any other error is raised."""
    found = {}
    for name, use in uses(kind, run).items():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                use()
                found[name] = ""
            except HeadraceError as error:
                found[name] = f"{type(error).__name__}: {error}"
                assert len(found[name]) < 4_000
    return found


# --- one change, of which it is known what is to be said ------------------------------------------------------

ONE: list[tuple[str, tuple[Any, ...], Any, str, str]] = [
    (TRAINER, ("best",), "x", "best", "best is not a dict: 'x'"),
    (TRAINER, ("best", "step"), "x", "best", "best/step is not a whole number of 0 or more: 'x'"),
    (TRAINER, ("best", "step"), None, "best", "best/step is not a whole number of 0 or more: None"),
    (TRAINER, ("counters",), None, "resume", "trainer.json: counters is not a dict: None"),
    (TRAINER, ("counters", "minutes"), "x", "resume", "counters/minutes is not a number of 0 or more: 'x'"),
    (TRAINER, ("counters", "steps"), 10**30, "resume", "counters/steps is not a whole number of 0 or more: 1000"),
    (TRAINER, ("counters", "steps"), -1, "resume", "counters/steps is not a whole number of 0 or more: -1"),
    (TRAINER, ("marks", MARK, "keep"), 3, "resume", f"marks/{MARK}/keep is not a list: 3"),
    (TRAINER, ("marks", MARK, "step"), "x", "resume", f"marks/{MARK}/step is not a whole number"),
    (TRAINER, ("config",), None, "resume", "config is not a dict: None"),
    (TRAINER, ("limits", "epochs"), [], "resume", "limits/epochs is not a number: a list"),
    (TRAINER, ("history", "last", 0, "step"), {"$float": "nan"}, "resume", "history/last/0/step is not a whole number"),
    (TRAINER, ("worker x",), {"a": 1}, "resume", "trainer.json has 'worker x', which is no part of a training's state"),
    (WORKER, ("counters",), {}, "resume", "rank-00000.json has 'counters', which is no part of a training's state"),
    (TRAINER, ("step", "optimizers", "", "groups", 0, "lr"), "x", "resume", "groups/0/lr is not a number: 'x'"),
    (TRAINER, ("step", "optimizers", "", "groups", 0, "betas"), [1, "x"], "resume", "group 0/betas/1 is not a number"),
    (TRAINER, ("step", "optimizers", "", "groups", 0, "betas"), [], "resume", "saved hyperparameters make no update"),
    (TRAINER, ("step", "optimizers", "", "state", "0.bias", "step"), {}, "resume", "of '0.bias' has no 'step' of use"),
    (TRAINER, ("callbacks", "EarlyStopping", "reference"), "x", "resume", "EarlyStopping cannot take back the state"),
    (WORKER, ("rng",), {}, "resume", "rank-00000.json: rng has no 'python'"),
    (WORKER, ("rng", "python"), [3, "x", 0], "resume", "a state that makes no sense"),
    (WORKER, ("rng", "numpy", "state"), 1, "resume", "a state that makes no sense"),
    (WORKER, ("tally",), [], "resume", "tally is not a dict: a list"),
    (TRAINER, ("source",), {"cursor": 1}, "resume", "source has no 'initial'"),
]


@pytest.mark.parametrize("made", ["one worker"], indirect=True)
@pytest.mark.parametrize(
    ("name", "path", "value", "use", "said"),
    sampled([pytest.param(*case, id="/".join(map(str, case[1]))) for case in ONE], keep=["best", "config"], of=3),
)
def test_a_value_that_does_not_fit_is_named_with_its_file_and_its_key(
    name: str, path: tuple[Any, ...], value: Any, use: str, said: str, made: tuple[str, Path], tmp_path: Path
) -> None:
    kind, run = made[0], shutil.copytree(made[1], tmp_path / "run")
    found = inside = document(run, name)
    for key in path[:-1]:
        inside = inside[key]
    inside[path[-1]] = value
    change(run, {name: json.dumps(found).encode()})
    with pytest.raises(CheckpointError, match=re.escape(said)):
        uses(kind, run)[use]()


@pytest.mark.parametrize("made", ["one worker"], indirect=True)
@pytest.mark.parametrize("name", ["model.safetensors", "optim.safetensors", TRAINER, WORKER, "rank-00000.safetensors"])
def test_a_file_that_the_manifest_does_not_name_is_missed(name: str, made: tuple[str, Path], tmp_path: Path) -> None:
    run = shutil.copytree(made[1], tmp_path / "run")
    change(run, {name: None})
    found = outcomes(made[0], run)
    assert found["resume"].startswith("CorruptError")
    assert found["last"].startswith("CorruptError" if name == "model.safetensors" else "")
    assert found["best"].startswith("CorruptError" if name in ("model.safetensors", TRAINER) else "")


@pytest.mark.parametrize("made", ["one worker"], indirect=True)
@pytest.mark.parametrize("counter", ["samples", "epoch"])
def test_a_report_that_does_not_count_is_none(counter: str, made: tuple[str, Path], tmp_path: Path) -> None:
    run = shutil.copytree(made[1], tmp_path / "run")
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    rows[0][counter] = "x"
    (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert set(outcomes(made[0], run).values()) == {""}


@pytest.mark.parametrize("made", ["one worker"], indirect=True)
def test_a_record_of_tensorboard_that_is_none_is_written_anew(made: tuple[str, Path], tmp_path: Path) -> None:
    run = shutil.copytree(made[1], tmp_path / "run")
    (events,) = (run / "tb").iterdir()
    data = b"\xff" * 20
    length = struct.pack("<Q", len(data))
    events.write_bytes(length + _masked(length) + data + _masked(data))
    assert set(outcomes(made[0], run).values()) == {""}
    assert data not in events.read_bytes()


def _masked(data: bytes) -> bytes:
    """CRC-32C, as TensorBoard writes it."""
    from tensorboard.compat.tensorflow_stub.pywrap_tensorflow import masked_crc32c

    return struct.pack("<I", masked_crc32c(data))


# --- many changes, drawn ------------------------------------------------------------------------------------

WRONG: list[Any] = [None, True, [], {}, "x", "", -1, 0, 2**62, 2**70, 10**400, 1e308, 0.5, [[]], [None], {"": None}]
WRONG += [{"$float": "nan"}, {"$float": "inf"}, {"$tuple": []}, ["x"], {"a": 1}, "@60", "@300", "\ud800", "\n", "../x"]


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, Any, tuple[Any, ...]]]:
    """Every place in a document: what it is in, its key there, and the way to it."""
    keys = list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else []
    for key in keys:
        yield value, key, (*path, key)
        yield from places(value[key], (*path, key))


def changed(found: Any, random: Random) -> tuple[bytes, str]:
    """A document with one thing in it that does not belong there; every depth is as likely; and what it is."""
    deepest = max(len(path) for *_, path in places(found))
    depth = random.randrange(1, 1 + deepest)
    inside, key, path = random.choice([place for place in places(found) if len(place[2]) == depth])
    how = random.random()
    if how < 0.12:
        del inside[key]
    elif how < 0.2:
        inside[key] = [inside[key]]
    elif how < 0.27:
        other, there, _ = random.choice(list(places(found)))
        inside[key] = json.loads(json.dumps(other[there]))
    else:
        inside[key] = random.choice(WRONG)
    text = re.sub(r'"@(\d+)"', lambda nested: "[" * int(nested[1]) + "]" * int(nested[1]), json.dumps(found))
    return text.encode(), f"{path}: {text[:200]}"


def test_whatever_a_document_holds_it_is_used_or_refused_in_a_sentence(made: tuple[str, Path]) -> None:
    chosen = seeds(6, nightly=600)
    assert survey(*made, chosen) > len(chosen) / 3, "hardly a change was noticed: is it made?"


def survey(kind: str, whole: Path, seeds: Iterable[int]) -> int:
    """How many of the changes that are drawn a training refuses that goes on; whatever reads the run is tried."""
    names = [TRAINER, WORKER, "run.json", "best/best.json"] + ["rank-00001.json"] * (kind == "two workers")
    refused = 0
    for seed in seeds:
        random = Random(seed)
        with scratch() as path:
            run = shutil.copytree(whole, path / "run")
            name = random.choices(names, [6, 4, 1, 1, 3][: len(names)])[0]
            own = (run / name).exists()
            found = json.loads((run / name).read_bytes()) if own else document(run, name)
            data, what = changed(found, random)
            if own:
                (run / name).write_bytes(data)
            else:
                change(run, {name: data})
            try:
                refused += outcomes(kind, run)["resume"] != ""
            except Exception as error:
                raise AssertionError(f"seed {seed}, {name} with {what}") from error
    return refused


# --- links --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("made", ["one worker"], indirect=True)
def test_no_link_in_a_run_leads_out_of_it(made: tuple[str, Path]) -> None:
    """Whatever of a run is a link to the same outside: used or refused, and nothing outside is written or made."""
    kind, whole = made
    names = [str(path.relative_to(whole)) for path in sorted(whole.rglob("*"))]
    names += ["report.html", ".model.new.safetensors", ".run.json.new", ".probe", ".config.json.new"]
    for name in sampled(names, keep=["checkpoints", "best", "report.html", ".probe", "metrics.jsonl", "lock"], of=4):
        with scratch() as path:
            run, outside = shutil.copytree(whole, path / "run"), path / "outside"
            if (run / name).exists():
                (run / name).rename(outside)
            else:
                outside.write_text("precious")
            (run / name).symlink_to(outside)
            before = contents(outside)
            try:
                outcomes(kind, run)
            except Exception as error:
                raise AssertionError(name) from error
            assert contents(outside) == before, name


def contents(path: Path) -> dict[str, bytes]:
    """Every file at or below a path, and its bytes."""
    files = [path] if path.is_file() else [Path(at, name) for at, _, names in os.walk(path) for name in names]
    return {str(file): file.read_bytes() for file in files}
