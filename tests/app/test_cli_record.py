"""What can be found out from a run of a recipe, by commands: when, why, fork, diff, verify, without."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from kit.cli_parts import answer, headrace, refused
from kit.recorded import EPOCHS, POISONED_LATE, columns, forged, make
from kit.small import same

import headrace as hr
from headrace.store.contents import MODEL

pytest_plugins = ["kit.cli_place"]
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore:SpikeGuard:UserWarning")]
RECIPE = """
from kit.recorded import POISONED_LATE, columns, make
import headrace as hr

def poisoned(norm: float | None = None, epochs: int = 3, guarded: bool = False) -> hr.Recipe:
    '''Trains a classifier on rows of which one is poisoned.

    Args:
        norm: the largest norm of gradients
        epochs: of the recipe's own
        guarded: whether losses are watched
    '''
    guards = [hr.SpikeGuard(2, 6)] if guarded else []
    fit = {"epochs": epochs, "log_every": "1 step", "callbacks": guards}
    return hr.Recipe(make("noisy", clip_norm=norm), columns(POISONED_LATE), fit=fit)
"""


@pytest.fixture
def run(place: Path) -> str:
    (place / "poisoned.py").write_text(RECIPE)
    train("runs/a")
    return "runs/a"


def train(run: str, *words: object) -> None:
    how = "--checkpoint-every", "7 steps", "--keep", "all", "--progress", "off"
    assert headrace("fit", "poisoned.py", "--run", run, *how, *words) == 0


def weights(run: str) -> dict[str, torch.Tensor]:
    record = hr.Record(run)
    tensors: dict[str, torch.Tensor] = record.checkpoint(record.steps).common["model"]
    return tensors


def test_when_and_why_name_the_row_behind_a_loss(run: str, capsys: Any) -> None:
    steps = answer(capsys, "when", run, "--row", POISONED_LATE)["steps"]
    assert steps == hr.Record(run).when(POISONED_LATE)
    assert POISONED_LATE in answer(capsys, "when", run, "--step", steps[-1])["rows"]
    found = answer(capsys, "why", run, "--step", steps[-1], "--trust", "--report")
    assert (found["exact"], found["worst"]) == (True, [POISONED_LATE])
    assert str(POISONED_LATE) in Path(run, "report.html").read_text()
    train("runs/guarded", "--guarded")
    noted = hr.Record("runs/guarded").spikes
    found = answer(capsys, "why", "runs/guarded", "--recipe", "poisoned.py")
    assert found["step"] == max(noted, key=lambda spike: spike[1] - spike[2])[0]


def test_a_fork_ends_as_its_parent_or_goes_on_with_other_options(run: str, capsys: Any) -> None:
    assert headrace("fork", f"{run}@14", "runs/same", "--trust", "--progress", "off") == 0
    assert same(weights(run), weights("runs/same"))
    assert headrace("fork", f"{run}@17", "runs/replayed", "--recipe", "poisoned.py", "--progress", "off") == 0
    assert same(weights(run), weights("runs/replayed"))
    assert headrace("fork", f"{run}@14", "runs/other", "--trust", "--norm", "0.1", "--progress", "off") == 0
    assert not same(weights(run), weights("runs/other"))
    assert hr.Record("runs/other").settings["clip_norm"] == 0.1
    assert headrace("resume", "runs/other", "--trust", "--epochs", "4", "--progress", "off") == 0
    listed = answer(capsys, "runs", "runs")
    assert {each["run"]: [Path(parent).name for parent in each["parents"]] for each in listed} == {
        "runs/a": [],
        "runs/other": ["a@14"],
        "runs/replayed": ["a@17"],
        "runs/same": ["a@14"],
    }
    found = answer(capsys, "diff", run, "runs/other", "--trust", status=1)
    assert any("clip_norm" in each for each in found["about"])
    assert found["update"] == 15
    assert answer(capsys, "diff", run, "runs/same")["checkpoint"] is None


def test_a_run_is_verified_and_a_forged_one_is_found(run: str, capsys: Any) -> None:
    found = answer(capsys, "verify", run, "--segments", "2", "--trust", "--out", "certificate.json")
    assert (found["ok"], len(found["stretches"])) == (True, 2)
    assert json.loads(Path("certificate.json").read_text())["ok"]
    forged(Path(run), Path("runs/forged"), 14, MODEL, "0.weight")
    for words in ([], ["--segments", "0", "--trust"]):
        assert answer(capsys, "verify", "runs/forged", *words)["ok"], "its hashes are right"
    assert not answer(capsys, "verify", "runs/forged", "--segments", "9", "--trust", status=1)["ok"]


def test_a_run_without_rows_is_that_of_rows_without_weight(
    run: str, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = "without", run, "--rows", f"{POISONED_LATE},3", "--run", "runs/clean", "--trust"
    assert headrace(*words) == 0
    never, data = make("noisy"), columns(POISONED_LATE)
    data["w"][[POISONED_LATE, 3]] = 0
    never.fit(data, epochs=EPOCHS, progress=False)
    assert all(torch.equal(value, weights("runs/clean")[name]) for name, value in never.model.state_dict().items())
    assert not same(weights(run), weights("runs/clean"))
    capsys.readouterr()
    said = refused(capsys, "resume", "runs/clean", "--trust", "--epochs", "5", "--progress", "off")
    assert "other data" in said, "it does not go on with the rows in silence"
    shutil.rmtree(max(Path("runs/clean/checkpoints").glob("step-*")))
    assert headrace(*words) == 0, "one that was killed goes on"
    assert all(torch.equal(value, weights("runs/clean")[name]) for name, value in never.model.state_dict().items())
    monkeypatch.setenv("HEADRACE_CACHE", str(Path("cache").absolute()))
    train(url := f"file://{Path.cwd()}/bucket/a")
    assert headrace("without", url, "--rows", "3", "--run", "runs/cleaner", "--trust") == 0
    assert Path("runs/cleaner/recipe.py").read_text() == RECIPE


WRONG: list[tuple[tuple[Any, ...], str, int]] = [
    (("when", "{run}"), "--step N", 2),
    (("when", "{run}", "--step", 3, "--row", 4), "--step N", 2),
    (("when", "{run}", "--step", 99), "there is no update 99", 1),
    (("why", "{run}", "--step", 3), "That is code", 1),
    (("why", "{run}", "--trust"), "no SpikeGuard has noted", 2),
    (("why", "{run}", "--trust", "--step", 3, "--out", "a.txt"), "--out", 2),
    (("verify", "{run}", "--segments", 2), "That is code", 1),
    (("verify", "{run}", "--out", "nowhere/a.json"), "there is no directory nowhere", 1),
    (("verify", "{run}", "--segments", -1), "--segments", 2),
    (("fork", "{run}", "runs/b", "--trust"), "runs/a@600", 1),
    (("fork", "{run}@14", "{run}", "--trust", "--progress", "off"), "is there already", 1),
    (("without", "{run}", "--rows", "a", "--run", "runs/b", "--trust"), "--rows is numbers", 2),
    (("without", "{run}", "--rows", "3", "--run", "runs/b"), "That is code", 1),
]


def test_what_a_command_cannot_do_it_says(run: str, capsys: Any) -> None:
    capsys.readouterr()
    for words, says, status in WRONG:
        assert says in refused(capsys, *[str(word).format(run=run) for word in words], status=status)
