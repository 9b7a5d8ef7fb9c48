"""The command line: what it prints, how it ends, and models that other programs can read."""

import fcntl
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from kit import trainees
from kit.cli_parts import LIMIT_S, environment
from kit.forked import start
from torch import Tensor

import headrace as hr
from headrace.app.cli import main


def checkpoint(run: Path, step: int) -> Path:
    """The directory of a checkpoint."""
    [found] = run.glob(f"checkpoints/step-{step:012d}-*")
    return found


RECIPE = """
import torch
from torch import nn
import headrace as hr

def data(rows=40):
    x = torch.sin(torch.arange(rows * 5.0)).reshape(rows, 5)
    return x, (x[:, 0] > x[:, 1]).long()

def small(width: int = 8) -> hr.Recipe:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, width), nn.BatchNorm1d(width), nn.ReLU(), nn.Dropout(0.5), nn.Linear(width, 2))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    trainer = hr.Trainer(model, hr.CrossEntropy(), optimizer, batch_size=8)
    return hr.Recipe(trainer, data(), val=data(20), fit={"epochs": 4, "progress": False})
"""


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("recipes") / "small_recipe.py"
    path.write_text(RECIPE)
    return path


def made(path: Path, name: str) -> hr.Recipe:
    space: dict[str, Any] = {}
    exec(compile(path.read_text(), str(path), "exec"), space)
    found: hr.Recipe = space[name]()
    return found


@pytest.fixture(scope="module")
def trained(recipe: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of 20 updates, with checkpoints after 10, 15 and 20."""
    run = tmp_path_factory.mktemp("runs") / "small"
    made(recipe, "small").run(run=run)
    return run


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Path:
    return shutil.copytree(trained, tmp_path / "run")


Result = tuple[int, str, str]


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Callable[..., Result]:
    """Runs `headrace` here: exit status, what it printed and what it said of errors."""

    def call(*arguments: object) -> Result:
        try:
            status = main([str(argument) for argument in arguments])
        except SystemExit as error:
            status = int(error.code or 0)
        printed = capsys.readouterr()
        return status, printed.out, printed.err

    return call


def damage(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)


# --- list and verify --------------------------------------------------------------------------------------


def test_list_shows_every_checkpoint_and_what_is_wrong_with_it(run: Path, command: Callable[..., Result]) -> None:
    (checkpoint(run, 15) / "COMMIT").write_text("0" * 64)
    status, text, errors = command("checkpoint", "list", run)
    assert (status, errors) == (0, "")
    assert [line.split()[0] for line in text.splitlines()] == [checkpoint(run, step).name for step in (10, 15, 20)]
    assert ["not usable" in line for line in text.splitlines()] == [False, True, False]

    status, text, _ = command("checkpoint", "list", run, "--json")
    found = json.loads(text)
    assert status == 0
    assert [entry["step"] for entry in found] == [10, 15, 20]
    sizes = [file.stat().st_size for file in checkpoint(run, 20).iterdir()]
    assert 0 < found[2]["bytes"] < sum(sizes)


def test_verify_names_the_file_that_is_not_as_it_was_written(run: Path, command: Callable[..., Result]) -> None:
    assert command("checkpoint", "verify", run)[0] == 0
    damage(checkpoint(run, 15) / "optim.safetensors")

    status, text, _ = command("checkpoint", "verify", run)
    assert status == 1
    assert [line.endswith("sound") for line in text.splitlines()] == [True, False, True]
    assert f"{checkpoint(run, 15).name}/optim.safetensors" in text

    status, text, _ = command("checkpoint", "verify", run, "--json")
    assert status == 1
    assert [(entry["step"], entry["sound"]) for entry in json.loads(text)] == [(10, True), (15, False), (20, True)]


def test_a_run_can_be_looked_at_while_it_is_being_trained(run: Path, command: Callable[..., Result]) -> None:
    with open(run / "lock", "r+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert [command("checkpoint", action, run)[0] for action in ("list", "verify", "export")] == [0, 0, 0]


def train_for_long(run: str) -> None:
    """A training in a process of its own that saves and removes a checkpoint at every update, until it is stopped."""
    trainer = trainees.trainer(microbatch=None)
    trainer.fit(trainees.Rows(), run=hr.Run(run, every="1 step", keep=3), epochs=10**6, progress=False)


@pytest.mark.slow
def test_a_run_is_sound_while_checkpoints_come_and_go(tmp_path: Path, command: Callable[..., Result]) -> None:
    run, sound, problems = tmp_path / "run", set[str](), set[str]()
    with start(train_for_long, tmp_path, run, limit_s=60) as child:
        while not list(run.glob("checkpoints/step-*")):
            assert not child.wait(0.001)
        while len(sound) < 20:  # different ones: they have come and gone
            assert not child.wait(0), child.output
            status, text, _ = command("checkpoint", "verify", run)
            (problems if status else sound).add(text)
            assert "not usable" not in command("checkpoint", "list", run)[1]
        child.send(signal.SIGTERM)
        assert child.ending() == trainees.PREEMPTED, child.output
    assert problems <= {f"{run} has no checkpoints\n"}, "all that were listed may have gone, if it took long"


def test_a_run_without_checkpoints_is_not_sound(run: Path, command: Callable[..., Result]) -> None:
    shutil.rmtree(run / "checkpoints")
    assert command("checkpoint", "list", run) == (0, f"{run} has no checkpoints\n", "")
    assert command("checkpoint", "verify", run)[0] == 1
    assert command("checkpoint", "export", run) == (1, "", f"headrace: {run} has no checkpoint.\n")


@pytest.mark.parametrize("action", ["list", "verify", "export"])
def test_a_run_that_is_none_is_told_in_a_sentence_and_as_json(
    action: str, tmp_path: Path, command: Callable[..., Result]
) -> None:
    status, text, errors = command("checkpoint", action, tmp_path / "nowhere")
    assert (status, text) == (1, "")
    assert errors.startswith("headrace: ")
    assert errors.count("\n") == 1
    assert str(tmp_path / "nowhere") in errors

    (tmp_path / "run.json").write_text("[" * 100_000)
    status, text, errors = command("checkpoint", action, tmp_path, "--json")
    assert (status, text) == (1, "")
    assert json.loads(errors)["kind"] == "RunError"
    assert str(tmp_path / "run.json") in json.loads(errors)["error"]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["checkpont", "list", "r"], 'Unknown command "checkpont". Did you mean "checkpoint"?'),
        (["checkpoint", "verfy", "r"], 'Unknown command "verfy". Did you mean "verify"?'),
        (["checkpoint", "export", "r", "--which", "bets"], "--which: expected"),
        (["checkpoint", "export", "r", "--which", "first"], "--which: expected int or best|last, got 'first'."),
        (["checkpoint", "list", "r", "--js"], "--js"),
        (["checkpoint", "list"], "RUN"),
    ],
)
def test_a_command_that_makes_no_sense_is_told_the_nearest_that_does(
    arguments: list[str], told: str, command: Callable[..., Result]
) -> None:
    status, text, errors = command(*arguments)
    assert (status, text) == (2, "")
    assert told in errors
    assert "--help" in errors
    status, text, errors = command(*arguments, "--json")
    assert (status, text) == (2, "")
    assert told in json.loads(errors)["error"]


@pytest.mark.parametrize(
    "arguments", [["--help"], [], ["checkpoint"], ["checkpoint", "--help"], ["checkpoint", "export", "--help"]]
)
def test_help_is_no_error(arguments: list[str], command: Callable[..., Result]) -> None:
    status, text, errors = command(*arguments)
    assert (status, errors) == (0, "")
    assert "headrace" in text


def test_it_is_a_program_of_its_own(tmp_path: Path) -> None:
    program = [sys.executable, "-m", "headrace", "runs", str(tmp_path / "nowhere"), "--json"]
    done = subprocess.run(program, capture_output=True, text=True, timeout=LIMIT_S, env=environment(), check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert "there is no directory" in json.loads(done.stderr)["error"]


# --- export -----------------------------------------------------------------------------------------------


def weights(run: Path, which: str | int, recipe: Path) -> dict[str, Tensor]:
    model = made(recipe, "small").trainer.model
    hr.load_weights(model, run, which=which)
    return model.state_dict()


@pytest.mark.parametrize(("which", "step"), [("last", 20), ("10", 10), (None, 20)])
def test_exported_weights_are_those_of_the_checkpoint(
    which: str | None, step: int, run: Path, recipe: Path, tmp_path: Path, command: Callable[..., Result]
) -> None:
    out = tmp_path / "weights.safetensors"
    chosen = ["--which", which] if which else []
    status, text, _ = command("checkpoint", "export", run, "--out", out, "--json", *chosen)
    assert (status, json.loads(text)) == (0, {"file": str(out), "step": step})
    loaded, expected = safetensors.torch.load_file(out), weights(run, step, recipe)
    assert loaded.keys() == expected.keys()
    assert all(torch.equal(loaded[name], expected[name]) for name in expected)


def test_the_best_is_exported_if_there_is_one(recipe: Path, tmp_path: Path, command: Callable[..., Result]) -> None:
    history = made(recipe, "small").run(
        run=hr.Run(tmp_path / "run", keep=1), callbacks=[hr.BestModel("val/loss", mode="max")]
    )
    worst = max(history, key=lambda row: row["val/loss"])["step"]
    assert worst != 20
    assert f"weights of step {worst}" in command("checkpoint", "export", tmp_path / "run")[1]
    assert (tmp_path / "run" / "model.safetensors").is_file()


def test_what_is_there_is_never_written_over(run: Path, command: Callable[..., Result]) -> None:
    (run / "model.safetensors").write_text("precious")
    status, text, errors = command("checkpoint", "export", run)
    assert (status, text) == (1, "")
    assert f"{run / 'model.safetensors'} is there already" in errors
    assert (run / "model.safetensors").read_text() == "precious"


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--which", "7"], "no checkpoint of step 7. It has those of steps [10, 15, 20]"),
        (["--which", "best"], "has no best checkpoint: nothing told good from bad"),
        (["--out", "a file/weights"], "there is no directory a file"),
        (["--out", "folder"], "folder is there already"),
    ],
)
def test_an_export_that_cannot_be_is_told_in_a_sentence(
    arguments: list[str], told: str, run: Path, monkeypatch: pytest.MonkeyPatch, command: Callable[..., Result]
) -> None:
    monkeypatch.chdir(run)
    Path("a file").touch()
    Path("folder").mkdir()
    before = set(os.listdir(run))
    status, text, errors = command("checkpoint", "export", run, *arguments)
    assert (status, text) == (1, "")
    assert told in errors
    assert "Traceback" not in errors
    assert set(os.listdir(run)) - {"__pycache__"} == before


def test_a_damaged_checkpoint_is_passed_over_with_a_warning(
    run: Path, recipe: Path, command: Callable[..., Result]
) -> None:
    damage(checkpoint(run, 20) / "model.safetensors")
    with pytest.warns(
        UserWarning, match=r"step-000000000020-\d+/model\.safetensors is not what was written.*step-0*15"
    ):
        status, text, _ = command("checkpoint", "export", run)
    assert status == 0
    assert "weights of step 15" in text
    expected = weights(run, 15, recipe)
    assert all(torch.equal(t, expected[n]) for n, t in safetensors.torch.load_file(run / "model.safetensors").items())


def test_if_all_are_damaged_nothing_is_exported(run: Path, command: Callable[..., Result]) -> None:
    for folder in (run / "checkpoints").iterdir():
        damage(folder / "model.safetensors")
    status, _, errors = command("checkpoint", "export", run)
    assert status == 1
    assert errors.count("model.safetensors is not what was written") == 3
    assert not (run / "model.safetensors").exists()


def test_a_shell_can_complete_commands_and_options(
    tmp_path: Path, command: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert command("--install-completion", "--shell", "bash")[0] == 0
    (script,) = tmp_path.rglob("completions/headrace")
    assert {"sweep", "--checkpoint-every", "--install-completion"} <= set(re.findall(r"[\w-]+", script.read_text()))
