"""Runs in an object store: an S3 server over HTTP, that answers badly, vanishes, or kills trainers."""

import hashlib
import json
import os
import re
import shutil
import signal
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from io import BytesIO
from pathlib import Path
from random import Random
from typing import Any
from zipfile import ZIP_DEFLATED, ZIP_STORED, ZipFile

import pytest
import torch
from kit import sampled
from kit.forked import Child, prepare, start, tell
from kit.s3_server import Server, s3
from kit.sharded_models import MODELS, by_workers, data, distance, make
from torch import nn

import headrace as hr
from headrace.store import claim, mirror, packed, remote
from headrace.store.cache import folder_of

pytestmark = pytest.mark.slow
X = torch.sin(torch.arange(72.0)).reshape(24, 3)
DATA = (X, (X[:, 0] > 0).long())
STEPS, EVERY = 12, 4
ZIP_BYTES, LARGE = 12_000, "rank-00000.safetensors"  # which then is not in the zip
PARTS = 4  # of the kinds of requests at which trainings are killed


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with s3() as server:
        prepare("s3fs")  # for the processes that are killed
        yield server


@pytest.fixture
def store(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """The server, an empty cache on this machine, and short times."""
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "cache"))
    quick()
    server.rule, server.drops = lambda method, key: "", set()
    server.log.clear()
    yield server
    server.rule, server.drops = lambda method, key: "", set()


def quick(expiry_s: float = 2.0) -> None:
    """Times of this process that suit a test, and zips so small that some files of a checkpoint are not in them."""
    packed.ZIP_BYTES = ZIP_BYTES
    claim.EXPIRY_S, claim.POLL_S, mirror.RENEW_S, mirror.REPORT_S = expiry_s, 0.1, 0.2, 0.2  # type: ignore[attr-defined]
    mirror.FIRST_PATIENCE_S, mirror.PATIENCE_S, remote.SAID_AFTER_S = 200.0, 200.0, 0.5  # type: ignore[attr-defined]


def url(tmp_path: Path) -> str:
    """A run of this test's own."""
    return f"s3://bucket/{tmp_path.name}/run"


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 2), nn.Dropout(0.1))


def train(
    run: str | Path, steps: int = STEPS, callbacks: Any = (), every: str = f"{EVERY} steps", **options: Any
) -> str:
    """Trains, and gives all that the training comes to."""
    model = network()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    trainer = hr.Trainer(model, hr.CrossEntropy(), optimizer, batch_size=4, metrics=["accuracy"])
    history = trainer.fit(
        DATA,
        DATA,
        steps=steps,
        run=hr.Run(run, every=every, **options),
        log_every="2 steps",
        callbacks=[*callbacks, hr.BestModel("val/loss")],
        progress=False,
    )
    tensors = [*model.state_dict().values(), *(v for s in optimizer.state_dict()["state"].values() for v in s.values())]
    return json.dumps([[tensor.tolist() for tensor in tensors], history.rows])


def calls(function: Callable[[hr.Info], object]) -> list[hr.Callback]:
    """Calls a function after each update."""
    return [hr.Lambda(on_step_end=function)]


def stopped(run: str, at: int) -> None:
    """A training that ends by an error."""

    def stop(info: hr.Info) -> None:
        if info.step == at:
            raise InterruptedError

    with pytest.raises(InterruptedError):
        train(run, callbacks=calls(stop))


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> str:
    return train(tmp_path_factory.mktemp("local") / "run")


@pytest.fixture(scope="module")
def objects(server: Server, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The objects of a run that has ended."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HEADRACE_CACHE", str(tmp_path_factory.mktemp("cache")))
        quick()
        train("s3://bucket/ended/run")
    there = remote.Remote("s3://bucket/ended/run")
    return {name: there.read(name) or b"" for name in there.objects()}


def written(run: str, objects: Mapping[str, bytes | None]) -> str:
    """A run of these objects, of which nothing is on this machine."""
    there = remote.Remote(run)
    for name, held in objects.items():
        if held is not None:
            there.write(name, held)
    forget(run)
    return run


def forget(run: str) -> None:
    """As on another machine: nothing of the run is here."""
    shutil.rmtree(folder_of(run), ignore_errors=True)


def files_of(run: str) -> set[str]:
    """The names of objects of a run, and of files in zips instead of them."""
    there, found = remote.Remote(run), set[str]()
    for name in there.objects():
        folder, _, last = name.rpartition("/")
        packed = unzipped(there.read(name) or b"") if last.endswith(".zip") else None
        found |= {name} if packed is None else {f"{folder}/{each}" for each in packed}
    return found


# --- the same as a folder -------------------------------------------------------------------------------------


@pytest.mark.parametrize("scheme", ["s3", "file"])
def test_a_run_in_a_store_ends_as_a_local_one_and_goes_on_anywhere(
    scheme: str, store: Server, reference: str, tmp_path: Path
) -> None:
    run = url(tmp_path) if scheme == "s3" else f"file://{tmp_path}/bucket/run"
    stopped(run, at=5)
    stopped(run, at=9)
    forget(run)
    with pytest.raises(hr.RunError, match="resume='never'"):
        train(run, resume="never")
    assert train(run, resume="must") == reference

    found = {name for name in files_of(run) if not name.startswith("claim/")}
    folder = folder_of(run)
    files = {str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file() and not p.name.startswith(".")}
    assert found == files - {"lock"} | {"overview.json"}
    assert len([name for name in found if name.endswith("/COMMIT")]) in (3, 4)


def test_everything_that_names_a_run_reads_it_from_the_store(store: Server, reference: str, tmp_path: Path) -> None:
    run = url(tmp_path)
    assert train(run, keep="all") == reference
    weights = json.loads(reference)[0][0]
    forget(run)
    model: Any = network()
    assert hr.load_weights(model, run, which="last") == STEPS
    assert model[0].weight.tolist() == weights
    forget(run)
    assert hr.load(run, network(), which="last").trainer.model[0].weight.tolist() == weights
    record = hr.Record(run)
    assert record.checkpoints[-1] == STEPS
    assert len(record.reports) == STEPS // 2
    before = len(store.log)
    hr.Record(run)
    assert [line.split()[0] for line in store.log[before:]] == ["LIST"], "what has not changed is not read again"
    assert train(f"{run}-b", parent=f"{run}@8") == reference
    with pytest.raises(hr.RunError, match=r"there is no run at s3://bucket/nothing"):
        hr.Record("s3://bucket/nothing")


def test_the_order_of_requests_makes_a_checkpoint_complete_or_absent(store: Server, tmp_path: Path) -> None:
    """Large files, then the history, and the zip with COMMIT last; of old ones the zip goes first."""
    train(url(tmp_path), keep=1)
    puts = [line.partition("/run/")[2] for line in store.log if line.startswith("PUT")]
    zips = [name for name in puts if name.endswith(".zip")]
    assert len(zips) >= 4
    for name in zips:
        folder = name.partition("COMMIT-")[0]
        own = [other.removeprefix(folder) for other in puts if other.startswith(folder)]
        assert own[:-1] == [LARGE]
        assert own[-1].startswith("COMMIT-")
    gone = [line.partition("/checkpoints/")[2] for line in store.log if line.startswith("DELETE ")]
    gone = [name for name in gone if name]
    assert len(gone) >= 4
    for commit, large in zip(gone[::2], gone[1::2], strict=True):
        assert commit.endswith(".zip")
        assert large == f"{commit.partition('/')[0]}/{LARGE}"


def test_a_save_of_a_small_model_takes_three_requests(
    store: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The zip, the history, and the removal of an old checkpoint; nobody is asked whether the claim holds.

    Reports come by the clock, and are not counted.
    """
    monkeypatch.setattr(packed, "ZIP_BYTES", 8 << 20)
    monkeypatch.setattr(mirror, "REPORT_S", 60.0)
    monkeypatch.setattr(mirror, "RENEW_S", 60.0)
    monkeypatch.setattr(claim, "EXPIRY_S", 120.0)
    at: dict[int, int] = {}
    count = calls(lambda info: at.update({info.step: len(store.log)}))
    train(url(tmp_path), every="2 steps", keep=1, wait=True, callbacks=count)
    asked = [line for line in store.log[at[3] : at[11]] if not line.endswith(("times.jsonl", "overview.json"))]
    assert len([line for line in asked if line.endswith(".zip") and line.startswith("PUT")]) == 4
    assert 8 <= len(asked) <= 12


def test_what_cannot_be_opened_is_refused_in_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path))
    monkeypatch.setitem(__import__("sys").modules, "gcsfs", None)
    with pytest.raises(hr.ConfigError, match=r'gs://b/r needs gcsfs, .*pip install "headrace\[gcs\]"'):
        train("gs://b/r")
    with pytest.raises(hr.ConfigError, match="nosuch://b/r cannot be opened"):
        train("nosuch://b/r")
    with pytest.raises(hr.RunError, match=r"runs are numbered on this machine only"):
        train("s3://bucket/runs/")


def trains_shards(run: str, epochs: int) -> None:
    trainer = make("layers")
    trainer.fit(data("layers"), epochs=epochs, progress=False, run=hr.Run(run, every="2 steps", keep=2))


def shards(environment: dict[str, str], local: str, run: str) -> None:
    """In a process of its own: two workers train in a folder, and in the store, where they go on without the folder."""
    os.environ.update(environment)
    quick()
    by_workers(trains_shards, local, 2)
    by_workers(trains_shards, run, 1)
    forget(run)
    by_workers(trains_shards, run, 2)


def test_workers_write_shards_of_a_model_into_the_store(store: Server, tmp_path: Path) -> None:
    local, run = tmp_path / "local", url(tmp_path)
    with start(shards, tmp_path, dict(os.environ), str(local), run) as child:
        assert child.ending() == 0, child.output
    forget(run)
    assert len([name for name in files_of(run) if "shard-00001-model" in name]) >= 2
    weights = [MODELS["layers"]() for _ in range(2)]
    for model, of in zip(weights, (str(local), run), strict=True):
        assert hr.load_weights(model, of, which="last") == 6
    assert distance(weights[0].state_dict(), weights[1].state_dict()) == 0


def test_reports_are_there_while_it_trains_and_not_too_often(
    store: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mirror, "REPORT_S", 0.5)
    monkeypatch.setattr(mirror, "RENEW_S", 0.5)
    seen = [b""]
    wait, began = threading.Event(), time.monotonic()

    def slowly(info: hr.Info) -> None:
        wait.wait(0.1)
        while info.step == 25 and b'"step":10,' not in seen[-1] and len(seen) < 3000:
            wait.wait(0.1)
            seen.append(remote.Remote(url(tmp_path)).read("metrics.jsonl") or b"")

    train(url(tmp_path), steps=28, every="1000 steps", callbacks=calls(slowly))
    assert b'"step":10,' in seen[-1]
    reports = sum(line.startswith("PUT") and line.endswith("overview.json") for line in store.log)
    assert reports <= (time.monotonic() - began) / mirror.REPORT_S + 2


# --- answers that are bad -------------------------------------------------------------------------------------

FAULTS = ["500", "503", "reset", "half", "lost", "slow"]


@pytest.mark.parametrize("faults", sampled.sampled([FAULTS, *([fault] for fault in FAULTS)], keep=[FAULTS]))
def test_a_store_that_answers_badly_now_and_then_changes_nothing(
    faults: list[str], store: Server, reference: str, tmp_path: Path
) -> None:
    random, run = Random(str(faults)), url(tmp_path)
    store.rule = lambda method, key: random.choice(faults) if random.random() < 0.1 else ""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*does not answer")  # several times in a row
        stopped(run, at=9)
        forget(run)
        assert train(run) == reference
    store.rule = lambda method, key: ""
    forget(run)
    assert hr.Record(run).checkpoints[-1] == STEPS


def flip(data: bytes) -> bytes:
    return data[: len(data) // 3] + bytes([data[len(data) // 3] ^ 1]) + data[len(data) // 3 + 1 :]


def zipped(files: dict[str, bytes], compression: int = ZIP_STORED) -> bytes:
    packed = BytesIO()
    with warnings.catch_warnings(), ZipFile(packed, "w", compression) as archive:
        warnings.simplefilter("ignore")  # of a name that is there twice
        for name, data in files.items():
            archive.writestr(name, data)
    return packed.getvalue()


def unzipped(data: bytes) -> dict[str, bytes]:
    with ZipFile(BytesIO(data)) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def with_other_model(data: bytes) -> bytes:
    return zipped((files := unzipped(data)) | {"model.safetensors": flip(files["model.safetensors"])})


def with_other_manifest(data: bytes) -> bytes:
    """A manifest and COMMIT that fit each other, and not the name."""
    files = unzipped(data)
    manifest = files["manifest.json"].replace(b'"world":1', b'"world":2')
    assert manifest != files["manifest.json"]
    return zipped(files | {"manifest.json": manifest, "COMMIT": hashlib.sha256(manifest).hexdigest().encode()})


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "a bit": flip,
    "cut": lambda data: data[:-30],
    "halved": lambda data: data[: len(data) // 2],
    "empty": lambda data: zipped({}),
    "another model": with_other_model,
    "another manifest": with_other_manifest,
    "a file less": lambda data: zipped({n: d for n, d in unzipped(data).items() if n != "model.safetensors"}),
    "compressed": lambda data: zipped(unzipped(data), ZIP_DEFLATED),
}


DAMAGED = r"step-\S+ in s3:\S+ is damaged: .*(cannot be read|is not what).* Put it back from a copy"


def newest(objects: dict[str, bytes], ending: str) -> str:
    return max(name for name in objects if name.endswith(ending))


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_zip_that_is_damaged_in_the_store_is_not_loaded(
    damage: str, store: Server, objects: dict[str, bytes], tmp_path: Path
) -> None:
    commit = newest(objects, ".zip")
    run = written(url(tmp_path), objects | {commit: DAMAGES[damage](objects[commit])})
    used = r"(cannot be read|is not what was written|says).*going on from step-"
    with pytest.warns(UserWarning, match=used), pytest.warns(UserWarning, match=DAMAGED):
        assert hr.load_weights(network(), run, which="last") < STEPS


@pytest.mark.parametrize("damage", ["a bit", "of another checkpoint", "gone", *sampled.nightly("cut")])
def test_a_large_file_that_is_damaged_in_the_store_is_not_loaded(
    damage: str, store: Server, reference: str, objects: dict[str, bytes], tmp_path: Path
) -> None:
    *_, before, last = sorted(name for name in objects if name.endswith(LARGE))
    held, other = objects[last], objects[before]
    assert len(held) == len(other)
    assert held != other
    damaged = {"a bit": flip(held), "cut": held[:-1], "of another checkpoint": other, "gone": None}[damage]
    run = written(url(tmp_path), {**objects, last: damaged})
    used = rf"{LARGE} (is not what was|cannot be read).*going on from step-"
    with pytest.warns(UserWarning, match=used), pytest.warns(UserWarning, match=DAMAGED):
        assert train(run) == reference


def test_names_of_objects_and_in_zips_never_leave_the_folder(
    store: Server, objects: dict[str, bytes], tmp_path: Path
) -> None:
    """Those that the manifest does not have are not written; with only these a checkpoint is loaded."""
    commit, names = newest(objects, ".zip"), ["../outside", "a/../../outside", ".hidden", "a//b"]
    harm = dict.fromkeys(["../../harm", "/tmp/harm", "a/b", "C:\\harm", "harm", "model.safetensors/"], b"harm")
    run = written(url(tmp_path), objects | {commit: zipped(harm | unzipped(objects[commit]))})
    fs = remote.Remote(run)._fs
    for name in [*names, "checkpoints/../../outside"]:
        fs.call_s3("put_object", Bucket="bucket", Key=f"{tmp_path.name}/run/{name}", Body=b"harm")
    model = network()
    assert hr.load_weights(model, run, which="last") == STEPS
    hr.Record(run)
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and path.read_bytes() == b"harm"]


@pytest.mark.parametrize(
    ("name", "match"),
    [(f"COMMIT-{'0' * 64}.zip", "two trainings have been mixed"), ("COMMIT", "as an earlier layout had")],
)
def test_a_checkpoint_that_two_layouts_or_trainings_have_written_is_refused(
    name: str, match: str, store: Server, objects: dict[str, bytes], tmp_path: Path
) -> None:
    folder = newest(objects, ".zip").rpartition("/")[0]
    run = written(url(tmp_path), objects | {f"{folder}/{name}": b"0" * 64})
    for use in (hr.Record, train):
        with pytest.raises(hr.RunError, match=match):
            use(run)


@pytest.mark.parametrize("stays", [False, True], ids=["once", "for ever"])
def test_a_list_that_names_what_has_been_removed_is_asked_for_again(
    stays: bool, store: Server, objects: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where a trainer removes old checkpoints while somebody reads."""
    run = written(url(tmp_path), objects)
    old = remote.Remote(run).objects()
    remote.Remote(run).remove([min(name for name in old if name.endswith(".zip"))])
    lists, now = [old] * (5 if stays else 1), remote.Remote.objects
    monkeypatch.setattr(remote.Remote, "objects", lambda self, folder="": lists.pop() if lists else now(self, folder))
    if stays:
        with pytest.raises(hr.RunError, match=r"lists an object that cannot be read: .*COMMIT"):
            hr.Record(run)
    else:
        assert hr.Record(run).checkpoints[-1] == STEPS


class Away(hr.Callback):
    """The store is away from step 7 on, once the checkpoint of step 6 is there, until step 9 and until that is said."""

    def __init__(self, store: Server) -> None:
        self.store, self.come = store, 0
        self.is_said: Callable[[], bool] = lambda: False

    def on_step_end(self, info: hr.Info) -> None:
        self.come = info.step
        if info.step == 7:
            while not any("step-000000000006" in line and line.endswith(".zip") for line in self.store.log):
                time.sleep(0.01)
            self.store.rule = lambda method, key: "" if self.come >= 9 and self.is_said() else "reset"

    def back(self) -> None:
        self.store.rule = lambda method, key: ""


def test_a_store_that_is_away_for_a_while_holds_up_the_next_save_only_and_is_said(
    store: Server, reference: str, tmp_path: Path
) -> None:
    """The upload of step 8 waits, and the save of step 12 for it."""
    run, away = url(tmp_path), Away(store)
    with pytest.warns(
        UserWarning, match=r"does not answer.*the training goes on, and only its next save waits"
    ) as said:
        away.is_said = lambda: len(said) > 0
        assert train(run, callbacks=[away]) == reference
    forget(run)
    assert hr.Record(run).checkpoints[-1] == STEPS


def test_an_error_that_stays_is_raised_at_the_next_save_and_the_folder_goes_on(
    store: Server, reference: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = url(tmp_path)
    away = Away(store)
    monkeypatch.setattr(mirror, "PATIENCE_S", 0.5)
    monkeypatch.setattr(mirror, "FIRST_PATIENCE_S", 0.5)
    with pytest.raises(hr.RunError, match=r"The last checkpoint is in .* on this machine") as caught:
        train(run, callbacks=[away])
    assert str(folder_of(run)) in str(caught.value)
    assert 8 <= away.come <= 12
    away.back()
    kept = {path.name for path in (folder_of(run) / "checkpoints").iterdir()}
    assert any(name.startswith("step-000000000008") for name in kept)
    before = len(store.log)
    assert train(run) == reference
    assert any("PUT" in line and "step-000000000008" in line for line in store.log[before:]), "what was missing"
    forget(run)
    assert hr.Record(run).checkpoints[-1] == STEPS


# --- one writer -----------------------------------------------------------------------------------------------


def train_slowly(environment: dict[str, str], run: str, clock_s: float = 0.0, renew_s: float = 0.2) -> None:
    """In a process of its own: trains until it is killed. Its clock may be off."""
    os.environ.update(environment)
    quick()
    mirror.RENEW_S = renew_s  # type: ignore[attr-defined]
    now = time.time
    time.time = lambda: now() + clock_s
    wait = threading.Event()

    def slowly(info: hr.Info) -> None:
        tell(f"step {info.step}")
        wait.wait(0.1)

    train(run, steps=10_000, callbacks=calls(slowly))


def other_machine(tmp_path: Path) -> dict[str, str]:
    return {**os.environ, "HEADRACE_CACHE": str(tmp_path / "other")}


@pytest.mark.parametrize("clock_s", [86_400.0, *sampled.nightly(-86_400.0)])
def test_a_second_trainer_is_refused_and_lets_in_once_the_first_is_dead(
    clock_s: float, store: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = url(tmp_path)
    monkeypatch.setattr(claim, "EXPIRY_S", 200.0)  # until the first is seen to be alive
    with start(train_slowly, tmp_path, other_machine(tmp_path), run, clock_s) as child:
        child.until("step 6")
        with pytest.raises(
            hr.RunError, match=rf"in use by process {child.pid} on {os.uname().nodename}, which renewed"
        ):
            train(run)
        child.kill()
        child.ending()
    monkeypatch.setattr(claim, "EXPIRY_S", 1.0)
    train(run)
    assert "going on from step" in (folder_of(run) / "log.txt").read_text()


def test_a_trainer_of_this_machine_is_refused_at_once_and_goes_on_at_once_after_a_kill(
    store: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = url(tmp_path)
    with start(train_slowly, tmp_path, dict(os.environ), run) as child:
        child.until("step 6")
        with pytest.raises(hr.RunError, match=f"is in use by process {child.pid}"):
            train(run)
        assert hr.Record(run).checkpoints, "who only reads uses what is there"
        child.kill()
        child.ending()
    monkeypatch.setattr(claim, "EXPIRY_S", 1000.0)
    train(run)


@pytest.mark.parametrize(
    "renew_s",
    [pytest.param(0.2, id="when it renews its claim"), *sampled.nightly(pytest.param(60.0, id="before it uploads"))],
)
def test_a_trainer_that_was_asleep_is_told_that_another_has_taken_over(
    renew_s: float, store: Server, tmp_path: Path
) -> None:
    run = url(tmp_path)
    with start(train_slowly, tmp_path, other_machine(tmp_path), run, 0.0, renew_s) as child:
        child.until("step 6")
        os.kill(child.pid, signal.SIGSTOP)
        train(run)
        os.kill(child.pid, signal.SIGCONT)
        assert child.ending() == 1
        assert "has been taken over by another trainer" in child.output
    forget(run)
    assert hr.Record(run).checkpoints[-1] == STEPS, "what it wrote meanwhile changes nothing that counts"


TAKEN_OVER = "taken over by another trainer"


def test_a_trainer_that_wakes_up_before_its_zip_leaves_no_checkpoint_that_lacks_its_large_file(
    store: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claim, "EXPIRY_S", 0.0)  # it has slept for longer than its claim holds
    there = remote.Remote(url(tmp_path))
    taken: list[str] = []

    def rule(method: str, key: str) -> str:
        if method == "PUT" and key.endswith(".zip") and f"step-{EVERY:012d}" in key and not taken:
            taken.append(f"checkpoints/{key.split('/')[-2]}")
            there.create("claim/000009.json", b"{}")
            there.remove([f"{taken[0]}/{LARGE}"])  # as what has no zip yet
        return ""

    store.rule = rule
    with pytest.raises(hr.RunError, match=TAKEN_OVER):
        train(url(tmp_path))
    assert taken
    assert not there.objects(taken[0])


@pytest.mark.parametrize("seconds", [3600.0, -3600.0])
@pytest.mark.parametrize("clock", ["time", "clock_gettime"])
def test_a_claim_is_asked_for_unless_it_was_renewed_lately_by_every_clock(
    clock: str, seconds: float, store: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One clock runs while the machine sleeps, and the other one may be set."""
    monkeypatch.setattr(claim, "EXPIRY_S", 60.0)
    mine = claim.Claim.make(remote.Remote(url(tmp_path)), "mine", [])
    before = len(store.log)
    mine.check()
    assert len(store.log) == before
    other = claim.Claim.make(mine.remote, "other", ["mine"])
    now = getattr(time, clock)
    monkeypatch.setattr(time, clock, lambda *which: now(*which) + seconds)
    with pytest.raises(hr.RunError, match=TAKEN_OVER):
        mine.check()
    other.check()
    with pytest.raises(hr.RunError, match=TAKEN_OVER):
        mine.renew(mine.remote)


def test_a_trainer_that_renews_its_claim_at_the_moment_of_a_take_over_is_told(store: Server, tmp_path: Path) -> None:
    there = remote.Remote(url(tmp_path))
    mine = claim.Claim.make(there, "mine", [])

    def rule(method: str, key: str) -> str:
        if method == "PUT":  # it has asked, and nobody had
            store.rule = lambda method, key: ""
            claim.Claim.make(there, "other", ["mine"])
        return ""

    store.rule = rule
    mine.renew(there)
    with pytest.raises(hr.RunError, match=TAKEN_OVER):
        mine.renew(there)


def test_a_store_without_conditional_writes_is_said_once(store: Server, tmp_path: Path) -> None:
    store.drops = {"If-None-Match"}
    with pytest.warns(UserWarning, match="cannot create an object only where there is none") as caught:
        train(url(tmp_path), steps=2)
    assert len([each for each in caught if "only where there is none" in str(each.message)]) == 1


# --- killed at any request ------------------------------------------------------------------------------------


def train_and_tell(environment: dict[str, str], run: str) -> None:
    """In a process of its own: what the training comes to."""
    os.environ.update(environment)
    quick(expiry_s=0.0)
    tell(f"comes to {train(run)}")


def kind_of(request: str) -> str:
    """What is asked, and of which object, whatever the number of a checkpoint or of a claim."""
    what, _, key = request.partition(" ")
    return f"{what} {re.sub('[0-9a-f]{32,64}|[0-9]{3,}', '#', key.partition('/run')[2].partition('/')[2])}"


class Kill:
    """Ends a process at a request of a kind, before the server gets it, or after, in which case the answer is lost."""

    def __init__(self, kind: str, number: int, after: bool) -> None:
        self.kind, self.left, self.after = kind, number, after
        self.child: Child | None = None
        self.done = False

    def __call__(self, method: str, key: str) -> str:
        if self.done or self.child is None or kind_of(f"{method} {key}") != self.kind:
            return "reset" if self.done else ""
        self.left -= 1
        if self.left:
            return ""
        self.done = True
        os.kill(self.child.pid, signal.SIGKILL)
        return "lost" if self.after else "reset"


@pytest.fixture(scope="module")
def kinds(server: Server, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """What a training asks for that is stopped, and goes on elsewhere."""
    server.log.clear()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HEADRACE_CACHE", str(tmp_path_factory.mktemp("cache")))
        quick()
        stopped(run := "s3://bucket/kinds/run", at=9)
        forget(run)
        train(run)
    found = sorted({*map(kind_of, server.log)})
    assert len(found) > 8
    return found


@pytest.mark.parametrize("seed", sampled.seeds(1, nightly=20))
@pytest.mark.parametrize("part", sampled.sampled(range(PARTS), keep=[0]))
def test_a_training_killed_at_any_request_goes_on_bit_for_bit(
    part: int, seed: int, kinds: list[str], store: Server, reference: str, tmp_path: Path
) -> None:
    """At a quarter of the kinds of requests, on one machine or the other; nightly at all, and at more of each kind."""
    random, runs, kills = Random(seed), 0, dict[str, bool]()
    machines = [dict(os.environ), other_machine(tmp_path)]
    for number, kind in enumerate(kinds[part::PARTS]):
        run = f"{url(tmp_path)}-{runs}"
        kill = Kill(kind, random.choice([1, 1, 2]), after=(number + part + seed) % 2 > 0)
        with start(train_and_tell, tmp_path, machines[number % 2], run) as child:
            kill.child = child
            store.rule = kill
            assert (child.ending() == -signal.SIGKILL) == kill.done, child.output
            if not kill.done:  # the training is over, and another one begins
                assert f"comes to {reference}" in child.told
                runs += 1
        store.rule = lambda method, key: ""
        kills[kind] = kill.done
    with start(train_and_tell, tmp_path, random.choice(machines), f"{url(tmp_path)}-{runs}") as child:
        assert child.until("comes to ") == reference
        assert child.ending() == 0, child.output
    assert sum(kills.values()) >= 3, kills


def test_a_training_that_forgets_its_random_state_would_be_noticed(
    store: Server, reference: str, tmp_path: Path
) -> None:
    """The negative control."""
    run = url(tmp_path)
    stopped(run, at=9)
    forget(run)
    forgets = calls(lambda info: torch.manual_seed(99) if info.step == 10 else None)
    assert train(run, callbacks=forgets) != reference


# --- room on this machine -------------------------------------------------------------------------------------


def test_runs_that_were_used_long_ago_make_room(store: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = [f"{url(tmp_path)}-{number}" for number in range(3)]
    for run in runs[:2]:
        train(run, steps=2)
    os.utime(folder_of(runs[0]) / ".mirror.json", (0, 0))
    monkeypatch.setenv("HEADRACE_CACHE_GB", "0.00002")
    train(runs[2], steps=2)
    assert [folder_of(run).exists() for run in runs][0::2] == [False, True]
