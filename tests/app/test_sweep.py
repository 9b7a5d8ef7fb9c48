"""`headrace sweep`: a run for each combination; one that is killed goes on where it stopped."""

import json
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from kit.cli_parts import LIMIT_S, headrace, process, refused
from kit.sampled import nightly

from headrace.app.recipe import load_recipe

pytest_plugins = ["kit.cli_place"]
pytestmark = pytest.mark.usefixtures("place")

GRID = ["sweep", "sines.py:small", "--lr", "1e-1,1e-2", "--width", "4,8", "--run", "r", "--progress", "off"]
NAMES = [f"lr={lr},width={width}" for lr in (0.1, 0.01) for width in (4, 8)]
TRIALS = ["sweep", "sines.py:small", "--lr", "1e-3..1:log", "--width", "4..32", "--kind", "sgd,adam", "--trials"]
ON = ["--run", "t", "--steps", "4", "--progress", "off"]


def rows(run: Path) -> list[dict[str, Any]]:
    found = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [{key: value for key, value in row.items() if key != "minutes"} for row in found]


def log(run: Path) -> str:
    return (run / "log.txt").read_text()


def starts(run: Path) -> int:
    return log(run).count(" started") + log(run).count("going on from step")


def test_every_combination_gets_a_run_that_is_named_by_it(place: Path, capsys: Any) -> None:
    assert headrace(*GRID) == 0
    assert sorted(path.name for path in (place / "r").iterdir()) == sorted(NAMES)
    shown = capsys.readouterr()
    assert [line.split()[-2:] for line in shown.out.splitlines()[1:]] == [
        ["0.01", "4"],
        ["0.01", "8"],
        ["0.1", "4"],
        ["0.1", "8"],
    ]
    assert shown.err.splitlines() == [f"headrace: r/{name}" for name in NAMES]
    load_recipe("sines.py:small", {"lr": 0.01, "width": 4}).run(run="alone", progress=False)
    assert rows(place / "r" / NAMES[2]) == rows(place / "alone")


def test_what_is_finished_is_not_made_again_unless_more_is_asked_for(place: Path, capsys: Any) -> None:
    assert headrace(*GRID) == 0
    before = {path: path.stat().st_mtime_ns for path in (place / "r").rglob("*") if path.is_file()}
    capsys.readouterr()
    assert headrace(*GRID, "--json") == 0
    shown = capsys.readouterr()
    assert shown.err.splitlines() == [f"headrace: r/{name} is finished" for name in NAMES]
    assert [each["state"] for each in json.loads(shown.out)] == ["finished"] * 4
    assert {path: path.stat().st_mtime_ns for path in (place / "r").rglob("*") if path.is_file()} == before
    assert headrace(*GRID, "--width", "8,16", "--epochs", "3") == 0
    epochs = {path.name: rows(path)[-1]["epoch"] for path in (place / "r").iterdir()}
    assert epochs == {name: 2 + ("width=4" not in name) for name in [*NAMES, *_wide()]}
    assert "going on from step 10" in log(place / "r" / NAMES[1])


def _wide() -> list[str]:
    return [f"lr={lr},width=16" for lr in (0.1, 0.01)]


PASSES = '''
import headrace as hr
from sines import small

def passes(lr: float = 0.1, epochs: int = 2) -> hr.Recipe:
    """Trains.

    Args:
        lr: learning rate.
        epochs: of the recipe's own.
    """
    made = small(lr)
    made.fit = {"epochs": epochs}
    return made
'''


def test_runs_of_a_recipe_with_its_own_epochs_go_on_to_more_of_them(place: Path, capsys: Any) -> None:
    (place / "several.py").write_text(PASSES)
    words = ["sweep", "several.py", "--lr", "0.1,0.2", "--run", "r", "--progress", "off", "--epochs"]
    for epochs, step in ((1, 5), (1, 5), (3, 15)):
        assert headrace(*words, epochs) == 0
        assert {path.name: rows(path)[-1]["step"] for path in (place / "r").iterdir()} == {
            "lr=0.1": step,
            "lr=0.2": step,
        }
    assert [starts(path) for path in (place / "r").iterdir()] == [2, 2]
    assert headrace("sweep", "several.py", "--epochs", "1,2", "--run", "s", "--progress", "off") == 0
    assert {path.name for path in (place / "s").iterdir()} == {"epochs=1", "epochs=2"}


@pytest.mark.parametrize("step", [7, *nightly(1)])
def test_a_sweep_that_is_killed_goes_on_where_it_stopped(
    step: int, place: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed in its third run: two are as they were, the third is resumed, and all are as without the kill."""
    monkeypatch.setenv("GATE", "0")  # with it, the recipe has no metrics
    how = ["--checkpoint_every", "3 steps"]
    with process(place, *GRID, *how, GATE=str(step)) as child:
        for _ in range(2):
            child.until("there")
            child.say("go on")
        child.until("there")
        until = time.monotonic() + LIMIT_S
        while step > 3 and not [*(place / "r" / NAMES[2]).glob("checkpoints/step-*/COMMIT")]:  # a thread writes it
            assert time.monotonic() < until
        child.send(signal.SIGKILL)
        child.ending()
    made = [place / "r" / name for name in NAMES]
    before = [(path, log(path)) for path in made[:2]]
    assert not made[3].exists()
    assert headrace(*GRID, *how) == 0
    assert [(path, log(path)) for path in made[:2]] == before
    assert [starts(path) for path in made] == [1, 1, 2, 1]
    assert ("going on from step" in log(made[2])) == (step == 7)
    capsys.readouterr()
    assert headrace(*GRID, *how, "--run", "whole") == 0
    assert [rows(path) for path in made] == [rows(place / "whole" / name) for name in NAMES]


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), *nightly((signal.SIGTERM, 143))])
def test_a_sweep_that_is_ended_early_says_how_to_go_on(number: int, status: int, place: Path, capsys: Any) -> None:
    with process(place, *GRID, GATE="7") as child:
        child.until("there")
        child.send(number)
        child.say("go on")
        assert child.ending() == status
        assert "headrace: the same command goes on from here\nheadrace: interrupted\n" in child.output
        assert "Traceback" not in child.output
    assert [path.name for path in (place / "r").iterdir()] == [NAMES[0]]
    assert headrace(*GRID) == 0
    assert "going on from step 7" in log(place / "r" / NAMES[0])


def test_a_run_that_fails_does_not_end_the_others(place: Path, capsys: Any) -> None:
    assert headrace(*GRID, "--width", "4,-1,8", "--lr", "0.1") == 1
    shown = capsys.readouterr()
    assert "headrace: r/lr=0.1,width=-1 failed: " in shown.err
    assert {path.name for path in (place / "r").iterdir()} == set(NAMES[:2])


def test_runs_with_other_values_are_not_taken_for_those_of_the_sweep(place: Path, capsys: Any) -> None:
    assert headrace(*GRID) == 0
    capsys.readouterr()
    assert headrace(*GRID, "--config", str(_file(place, "kind: sgd"))) == 1
    assert "was made with other values:\n  kind: 'adam' in the run, 'sgd' now" in capsys.readouterr().err
    assert headrace("sweep", "sines.py:small", "--lr", "1,2", "--run", f"r/{NAMES[0]}") == 1
    assert "is a run. Name a directory" in capsys.readouterr().err


def _file(place: Path, text: str) -> Path:
    (place / "more.yaml").write_text(text)
    return place / "more.yaml"


LISTS = '''
import pydantic  # with it, cyclopts checks values against the types of options by itself

import headrace as hr
from sines import small

def lists(layers: list[int] = [3], name: str = "a", gentle: bool = False) -> hr.Recipe:
    """Trains.

    Args:
        layers: widths.
        name: a name.
        gentle: a switch.
    """
    assert all(isinstance(layer, int) for layer in layers)
    return small(width=sum(layers))
'''


def test_values_may_be_lists_words_and_switches(place: Path, capsys: Any) -> None:
    (place / "lists.py").write_text(LISTS)
    words = ["--layers", "[3, 4],[5]", "--name", "../b,c d", "--gentle", "true,false", "--steps", "1"]
    assert headrace("sweep", "lists.py", *words, "--progress", "off") == 0
    names = {path.name for path in (place / "runs/lists-sweep").iterdir()}
    assert len(names) == 8
    assert "layers=%5B3%2C 4%5D,name=..%2Fb,gentle=true" in names
    assert "layers=%5B5%5D,name=c d,gentle=false" in names


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--lr", "0.1"], "nothing varies. Give a parameter several values, with commas between: --lr 1e-3,1e-4."),
        (["--lr", "0.1,1e-1"], "--lr: 0.1 is given twice."),
        (["--lr", "0.1,x"], "--lr: expected float, got 'x'."),
        (["--lr", "1e-3..1"], "--lr is a range, of which --trials N chooses."),
        (["--lr", "1..1e-3", "--trials", "2"], "--lr: 1..1e-3: a range goes up, and begins above 0 with :log."),
        (["--lr", "0..1:log", "--trials", "2"], "a range goes up, and begins above 0 with :log."),
        (["--lr", "0.1,0.2", "--trials", "0"], 'Invalid value "0" for --trials. Must be >= 1.'),
        (["--lr", "0.1,0.2", "--resume", "must"], "Unknown option: --resume."),
        (["--lr", "0.1,0.2", "--epochs", "1,2"], "--epochs: expected int, got '1,2'."),
    ],
)
def test_a_sweep_that_makes_no_sense_is_refused_before_its_first_run(
    words: list[str], said: str, place: Path, capsys: Any
) -> None:
    assert said in refused(capsys, "sweep", "sines.py:small", *words, status=2)
    assert not (place / "runs").exists()


# --- Optuna ------------------------------------------------------------------------------------------------


def test_trials_are_chosen_by_the_results_of_those_before(place: Path, capsys: Any) -> None:
    pytest.importorskip("optuna")
    assert headrace(*TRIALS, "14", *ON, "--json") == 0
    found = [each["arguments"] for each in json.loads(capsys.readouterr().out)]
    assert len({json.dumps(each) for each in found}) == 14
    assert all(1e-3 <= each["lr"] <= 1 and 4 <= each["width"] <= 32 for each in found)
    assert {each["kind"] for each in found} == {"sgd", "adam"}
    assert headrace(*TRIALS, "14", *ON, "--monitor", "min val/loss", "--run", "again", "--json") == 0
    assert [each["arguments"] for each in json.loads(capsys.readouterr().out)] == found
    assert headrace(*TRIALS, "14", *ON, "--monitor", "max val/loss", "--run", "other", "--json") == 0
    other = [each["arguments"] for each in json.loads(capsys.readouterr().out)]
    assert other[:10] == found[:10], "the first are drawn at random"
    assert other[10:] != found[10:]


def test_trials_that_are_killed_go_on_as_if_nothing_had_been(
    place: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("optuna")
    monkeypatch.setenv("GATE", "0")
    words = [*TRIALS, "12", *ON]
    with process(place, *words, GATE="2") as child:
        for _ in range(11):
            child.until("there")
            child.say("go on")
        child.until("there")
        child.send(signal.SIGKILL)
        child.ending()
    assert len([*(place / "t").iterdir()]) == 12
    assert headrace(*words) == 0
    assert headrace(*words, "--run", "whole") == 0
    names = sorted(path.name for path in (place / "whole").iterdir())
    assert sorted(path.name for path in (place / "t").iterdir()) == names
    for name in names:
        assert starts(place / "t" / name) == 1 + name.startswith("011")
        assert rows(place / "t" / name) == rows(place / "whole" / name)
    capsys.readouterr()
    assert headrace(*TRIALS, "12", *ON, "--kind", "sgd") == 1
    assert "was made with other" in capsys.readouterr().err


def test_a_number_that_is_not_measured_cannot_be_chosen_by(place: Path, capsys: Any) -> None:
    pytest.importorskip("optuna")
    assert headrace(*TRIALS, "2", *ON, "--monitor", "val/recall") == 1
    said = capsys.readouterr().err
    assert "has not measured it. There are: " in said
    assert "val/accuracy" in said
    assert headrace(*TRIALS, "2", *ON, "--monitor", "val/score") == 1
    assert 'say "min val/score" or "max val/score".' in capsys.readouterr().err


def test_without_optuna_the_error_says_how_to_get_it(place: Path, capsys: Any, monkeypatch: Any) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    said = refused(capsys, *TRIALS, "2")
    assert said == 'headrace: --trials needs Optuna, which is not installed: pip install "headrace[optuna]".\n'
    assert not (place / "runs").exists()
