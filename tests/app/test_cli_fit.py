"""`headrace fit` and `resume`: how a training begins, ends and goes on."""

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from kit.cli_parts import answer, headrace, process, refused
from kit.forked import start, take_over
from kit.torch_workers import run_torchrun

from headrace.app.recipe import load_recipe
from headrace.step.weights import saved_weights

pytest_plugins = ["kit.cli_place"]
pytestmark = pytest.mark.usefixtures("place")


# --- a run and how it goes on ---------------------------------------------------------------------------


def test_a_training_writes_down_its_recipe_and_says_what_comes_next(place: Path, capsys: Any) -> None:
    words = ["--lr", "0.05", "--width=6", "--epochs", "1", "--run", "runs/one", "--progress", "off"]
    assert headrace("fit", "sines.py:small", *words) == 0
    said = capsys.readouterr().out
    assert "test/accuracy" in said
    assert "headrace report runs/one" in said
    assert "headrace resume runs/one --recipe sines.py:small --epochs N" in said
    document = json.loads((place / "runs/one/recipe.json").read_text())
    assert document == {
        "recipe": str(place / "sines.py:small"),
        "arguments": {"lr": 0.05, "width": 6, "kind": "adam", "tested": True},
        "fit": {"epochs": 1},
    }
    more = ["--config", "runs/one/recipe.json", "--run", "runs/two"]
    again = answer(capsys, "fit", "sines.py:small", *more)
    assert (again["step"], again["run"]) == (5, "runs/two")
    weights = [saved_weights(place / "runs" / name, "last").tensors["model.safetensors"] for name in ("one", "two")]
    assert all(torch.equal(value, weights[1][name]) for name, value in weights[0].items())
    assert weights[0]["0.weight"].shape == (6, 5)


def test_a_run_is_trained_on_from_where_it_stands(place: Path, capsys: Any) -> None:
    how = ["--lr", "0.05", "--run", "runs/one", "--json"]
    assert headrace("fit", "sines.py:small", *how, "--epochs", "1") == 0
    assert headrace("resume", "runs/one", "--trust", "--epochs", "3", "--json") == 0
    first, on = (json.loads(line) for line in capsys.readouterr().out.splitlines())
    assert (first["step"], on["step"]) == (5, 15)
    assert json.loads((place / "runs/one/recipe.json").read_text())["fit"] == {"epochs": 3}
    whole = load_recipe("sines.py:small", {"lr": 0.05}).run(epochs=3, progress=False).last
    assert on["val/loss"] == whole["val/loss"]
    assert headrace("resume", "runs/one", "--trust", "--lr", "0.5", "--json") == 1
    assert "lr" in json.loads(capsys.readouterr().err)["error"]
    assert headrace("fit", "sines.py:small", *how, "--width", "16") == 1
    said = json.loads(capsys.readouterr().err)["error"].splitlines()
    assert said[:2] == ["the recipe is given other values than the run has:", "  width: 8 in the run, 16 now"]
    with pytest.warns(UserWarning, match="than it had:\n  tested: True in the run, False now"):
        assert headrace("fit", "sines.py:small", *how, "--no-tested", "--epochs", "4") == 0
    assert said[2].startswith("Give those, or name another run.")
    assert json.loads((place / "runs/one/recipe.json").read_text())["arguments"]["width"] == 8


def test_runs_in_a_directory_get_numbers(place: Path, capsys: Any) -> None:
    how = ["sines.py:small", "--run", "runs/", "--epochs", "1", "--progress", "off"]
    assert headrace("fit", *how) == 0
    said = capsys.readouterr().out
    assert "headrace report runs/001    " in said
    assert "headrace resume runs/001 --recipe sines.py:small --epochs N" in said
    assert (place / "runs/001/recipe.json").is_file()
    for options, run, step in (
        (["--epochs", "2"], "runs/001", 10),
        (["--lr", "0.5"], "runs/002", 5),  # a setting of the trainer
        (["--no-tested"], "runs/003", 5),  # of the recipe alone
        (["--no-tested"], "runs/003", 5),
    ):
        found = answer(capsys, "fit", *how, *options)
        assert (found["run"], found["step"]) == (run, step)
    assert "this run is new, since runs/002 differs: " in (place / "runs/003/log.txt").read_text()
    assert "tested: True in the run, False now" in (place / "runs/003/log.txt").read_text()
    assert answer(capsys, "resume", "runs/002", "--trust", "--epochs", "2")["step"] == 10


@pytest.mark.parametrize("recipe", ["small", "passes"])
def test_a_limit_to_go_on_to_takes_the_place_of_those_before(recipe: str, place: Path, capsys: Any) -> None:
    assert headrace("fit", f"sines.py:{recipe}", "--steps", "3", "--run", "r", "--progress", "off") == 0
    assert f"headrace resume r --recipe sines.py:{recipe} --steps N" in capsys.readouterr().out
    for flag in ("--xyz", "--run", "--resume"):
        assert f"Unknown option: {flag}" in refused(capsys, "resume", "r", "--trust", flag, "must", status=2)
    assert answer(capsys, "resume", "r", "--trust", "--steps", "4")["step"] == 4
    assert answer(capsys, "resume", "r", "--trust", "--epochs", "2")["step"] == 10


def test_a_parameter_that_is_called_as_an_option_is_the_recipes(place: Path, capsys: Any) -> None:
    assert answer(capsys, "fit", "sines.py:passes", "--epochs", "1", "--run", "r")["epoch"] == 1
    assert json.loads((place / "r/recipe.json").read_text())["arguments"] == {"epochs": 1}
    assert answer(capsys, "resume", "r", "--trust", "--epochs", "2")["epoch"] == 2


def test_a_run_of_a_script_is_told_apart_and_goes_on_with_the_recipe_that_is_named(place: Path, capsys: Any) -> None:
    load_recipe("sines.py:small").run(run="r", epochs=1, progress=False)
    assert "Run the script again, or name the recipe: --recipe file.py." in refused(capsys, "resume", "r")
    assert answer(capsys, "resume", "r", "--recipe", "sines.py:small", "--epochs", "2")["epoch"] == 2
    (place / "r/recipe.json").write_text("recipe: [")
    assert "what r says of its recipe cannot be read" in refused(capsys, "resume", "r", "--trust")


def test_a_run_that_was_killed_before_its_first_checkpoint_begins_with_its_options(place: Path, capsys: Any) -> None:
    assert headrace("fit", "sines.py:small", "--run", "r", "--epochs", "1", "--json") == 0
    document = (place / "r/recipe.json").read_text()
    run = (place / "r/run.json").read_text()
    capsys.readouterr()
    (place / "killed").mkdir()
    (place / "killed/run.json").write_text(run)
    assert "--recipe file.py" in refused(capsys, "resume", "killed", "--trust")
    (place / "killed/recipe.json").write_text(document)
    assert answer(capsys, "resume", "killed", "--recipe", "sines.py:small")["step"] == 5


# --- workers --------------------------------------------------------------------------------------------


def test_several_workers_get_the_same_arguments(place: Path, capsys: Any) -> None:
    how = ["--workers", "2", "--strategy", "periodic:every=2 steps", "--width", "6", "--json"]
    assert headrace("fit", "sines.py:small", *how, "--run", "r") == 0
    assert headrace("resume", "r", "--trust", "--epochs", "4", "--json") == 0
    first, on = (json.loads(line) for line in capsys.readouterr().out.splitlines())
    assert (first["epoch"], on["epoch"]) == (2, 4)
    assert json.loads((place / "r/recipe.json").read_text())["fit"]["workers"] == 2
    assert saved_weights(place / "r", "last").tensors["model.safetensors"]["0.weight"].shape == (6, 5)


def torchrun(place: str, words: list[str]) -> None:
    """Starts a command in two processes of torch's."""
    os.chdir(place)
    take_over()
    run_torchrun(["--standalone", "--nproc-per-node=2"], headrace, *words)


def test_workers_in_processes_and_under_torchrun_get_the_same_arguments(place: Path) -> None:
    how = ["fit", "sines.py:small", "--width", "6", "--epochs", "1", "--json"]
    found = []
    with process(place, *how, "--workers", "2", "--engine", "processes", "--run", "r") as child:
        assert child.ending() == 0, child.output
        found.append(json.loads(child.told[-1]))
    with start(torchrun, place, place, [*how, "--run", "t"]) as child:
        assert child.ending() == 0, child.output
        found.append(json.loads(child.told[-1]))
    one, other = found
    assert one["step"] == other["step"] == 5
    assert one["val/loss"] == pytest.approx(other["val/loss"])
    assert (place / "r/recipe.json").is_file()
    assert (place / "t/recipe.json").is_file()


# --- signals --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_training_that_is_ended_early_goes_on_bit_for_bit(place: Path, number: int, status: int) -> None:
    with process(place, "fit", "sines.py:small", "--run", "r", "--epochs", "3", GATE="7") as child:
        child.until("there")
        child.send(number)
        child.say("go on")
        assert (child.ending(), child.told) == (status, ["there"])
        assert "headrace: saved at step 7 in r; run again to go on\nheadrace: interrupted\n" in child.output
        assert "Traceback" not in child.output
    assert headrace("resume", "r", "--trust", "--json") == 0
    load_recipe("sines.py:small").run(run="whole", epochs=3, progress=False)
    found, whole = (saved_weights(place / name, "last") for name in ("r", "whole"))
    assert found.step == whole.step == 15
    expected = whole.tensors["model.safetensors"]
    assert all(torch.equal(value, expected[name]) for name, value in found.tensors["model.safetensors"].items())


def test_ctrl_c_before_the_training_is_no_traceback(place: Path) -> None:
    (place / "waits.py").write_text("import os\nprint('there', flush=True)\nos.read(0, 1)\n")
    with process(place, "fit", "waits.py") as child:
        child.until("there")
        child.send(signal.SIGINT)
        assert child.ending() == 130
        assert child.output == "headrace: interrupted\n"


# --- devices --------------------------------------------------------------------------------------------


def test_the_device_is_that_of_the_option_unless_the_recipe_names_another(place: Path, capsys: Any) -> None:
    assert answer(capsys, "fit", "sines.py:small", "--device", "cpu", "--epochs", "1")["step"] == 5
    assert "device='nonsense' is not a device" in refused(capsys, "fit", "sines.py:small", "--device", "nonsense")
    (place / "own.py").write_text(
        "import torch\nimport headrace as hr\nfrom sines import rows\n"
        "def own() -> hr.Recipe:\n"
        "    model = torch.nn.Linear(5, 2)\n"
        "    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "    return hr.Recipe(hr.Trainer(model, hr.CrossEntropy(), optimizer, device='cpu'), rows(8))\n"
    )
    said = refused(capsys, "fit", "own.py", "--device", "meta", "--epochs", "1")
    assert "--device meta: the recipe trains on cpu, which it names itself" in said
