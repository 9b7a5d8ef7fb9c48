"""The whole path of a new user at a real terminal: train, report, a changed flag, Ctrl-C, resume, predict."""

import atexit
import csv
import gc
import json
import os
import re
import shlex
import shutil
import signal
import sys
import termios
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pexpect
import pytest
from kit import sampled, screens
from kit.screens import environment, screen, sit_down

from headrace.app.cli import main

ROOT = Path(__file__).parents[2]
COLUMNS = 100
HIDE, SHOW, ESCAPE = "\x1b[?25l", "\x1b[?25h", "\x1b"
FIT = "headrace fit digits.py --width 4 --batch-size 32 --epochs 5 --lr 0.01"
HELD_FIT = FIT.replace("digits", "held")

WAITS = '''
import time
import torch
import headrace as hr

class Waits(hr.Callback):
    """From the third update on, until somebody ends it."""

    def on_step_end(self, info):
        if info.step == 3:
            while not list(info.run.glob("checkpoints/step-*2-*/COMMIT")):  # which is written meanwhile
                time.sleep(0.01)
            print("waiting")
            while not info.trainer.signals.why:
                time.sleep(0.01)
            print("heard")
            while True:
                time.sleep(0.01)

def waits() -> hr.Recipe:
    model = torch.nn.Linear(2, 1)
    trainer = hr.Trainer(model, hr.MSE(), torch.optim.SGD(model.parameters(), lr=0.1), batch_size=2)
    data = torch.zeros(20, 2), torch.zeros(20, 1)
    return hr.Recipe(trainer, data, fit={"epochs": 1, "run": hr.Run(every="2 steps"), "callbacks": [Waits()]})
'''

HELD = '''
import time
from pathlib import Path
import headrace as hr
from digits import digits

class Held(hr.Callback):
    """In the third epoch, until somebody interrupts it."""

    def on_step_end(self, info):
        while info.step == 100 and Path("hold").exists() and not info.trainer.signals.why:
            time.sleep(0.01)

def held(lr: float = 0.1, epochs: int = 20, batch_size: int = 64, width: int = 32) -> hr.Recipe:
    """As digits.

    Args:
        lr: as there.
        epochs: as there.
        batch_size: as there.
        width: as there.
    """
    recipe = digits(lr=lr, epochs=epochs, batch_size=batch_size, width=width)
    recipe.fit = {**recipe.fit, "callbacks": [Held()]}
    return recipe
'''
"""The training of `digits.py`, which stays in its middle for as long as there is a file `hold`."""


class Said(NamedTuple):
    """What a command sent to the terminal, and its exit status."""

    text: str
    status: int

    @property
    def lines(self) -> list[str]:
        """What a person sees in the end."""
        return [line for line in screen(self.text, COLUMNS) if line]


def a_shell(name: str, home: str) -> None:
    """A shell that has imported everything once; its commands are processes of their own, in the foreground."""
    import sklearn.datasets  # noqa: F401

    sit_down(name)
    os.chdir(home)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    gc.freeze()
    while True:
        print("$ ", end="", flush=True)
        if not (line := sys.stdin.readline()):
            return
        child = os.fork()
        if child == 0:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            called(shlex.split(line))
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        print(f"[{status if status >= 0 else 128 - status}]", flush=True)


def called(words: list[str]) -> None:
    """Does what a command says, and ends."""
    if "&>" in words:
        file = os.open(words.pop(), os.O_WRONLY | os.O_CREAT)
        words.remove("&>")
        os.dup2(file, 1), os.dup2(file, 2)
    try:
        status = main(words[1:])
    except SystemExit as error:
        status = int(error.code or 0)
    atexit._run_exitfuncs()
    sys.stdout.flush(), sys.stderr.flush()
    os._exit(status)


class Shell:
    """A terminal with a prompt; after every command it says `[status]`."""

    def __init__(self, home: Path, terminal: Any) -> None:
        self.home, self.terminal = home, terminal
        terminal.expect_exact("$ ")
        self.flags = termios.tcgetattr(terminal.fileno())

    def run(self, line: str, *interrupts: str) -> Said:
        """A command; Ctrl-C is pressed as each of these appears, one after the other."""
        self.terminal.sendline(line)
        self.terminal.expect_exact(f"{line}\r\n")
        text = ""
        for wanted in interrupts:
            self.terminal.expect(wanted)
            text += self.terminal.before + self.terminal.after
            self.terminal.send("\x03")
        self.terminal.expect(r"\[(\d+)\]\r\n\$ ")
        assert termios.tcgetattr(self.terminal.fileno()) == self.flags, "the terminal is as it was"
        return Said(text + self.terminal.before, int(self.terminal.match[1]))


@contextmanager
def bash(home: Path) -> Iterator[Shell]:
    """A shell as a user has it, whose commands are new interpreters."""
    where = {"cwd": str(home), "env": environment() | {"PS1": "$ ", "PROMPT_COMMAND": 'echo "[$?]"'}}
    arguments = ["--norc", "--noediting", "-i"]
    child = pexpect.spawn("bash", arguments, **where, encoding="utf-8", timeout=100, dimensions=(24, COLUMNS))
    try:
        shell = Shell(home, child)
        shell.run(f'headrace() {{ {shlex.quote(sys.executable)} -m headrace "$@"; }}')
        yield shell
    finally:
        child.close(force=True)


ALL_DAY = sampled.EVERY in os.environ


@pytest.fixture(scope="module", params=["forked", *(["bash"] if ALL_DAY else [])])
def shell(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    """Where the user is: beside a recipe and a file of rows. A night is long enough for the real one."""
    home = tmp_path_factory.mktemp("home")
    shutil.copy(ROOT / "recipes" / "digits.py", home)
    (home / "waits.py").write_text(WAITS)
    (home / "held.py").write_text(HELD)
    np.save(home / "rows.npy", np.random.default_rng(0).random((5, 1, 8, 8), dtype=np.float32))
    if request.param == "bash":
        with bash(home) as made:
            yield made
        return
    where = tmp_path_factory.mktemp("shell")
    with screens.terminal(a_shell, where, home, columns=COLUMNS) as terminal:
        yield Shell(home, terminal)


@pytest.fixture(scope="module")
def straight(shell: Shell) -> Said:
    """A training that nobody interrupts."""
    return shell.run(f"{FIT} --run runs/straight")


@pytest.fixture(scope="module")
def interrupted(shell: Shell) -> Said:
    """The same, until Ctrl-C in the third epoch."""
    hold = shell.home / "hold"
    hold.touch()
    said = shell.run(f"{HELD_FIT} --run runs/first", r"epoch +2/\d+  train/loss")
    hold.unlink()
    return said


@pytest.fixture(scope="module")
def resumed(shell: Shell, interrupted: Said) -> Said:
    return shell.run("headrace resume runs/first --trust")


def rows(shell: Shell, run: str) -> list[dict[str, float]]:
    return [json.loads(line) for line in (shell.home / run / "metrics.jsonl").read_text().splitlines()]


def test_the_first_command_lists_the_others(shell: Shell) -> None:
    said = shell.run("headrace --help")
    assert said.status == 0
    for command in ("fit", "resume", "report", "predict", "doctor", "new"):
        assert any(line.strip("│ ").split()[:1] == [command] for line in said.lines)


@pytest.mark.slow
def test_a_training_shows_a_bar_and_leaves_a_line_for_each_epoch(straight: Said, shell: Shell) -> None:
    assert straight.status == 0
    assert "━" in straight.text
    assert "\r" in straight.text.replace("\r\n", "")
    assert not any("━" in line or "batch " in line for line in straight.lines), "of the bar nothing is left"
    told = [line.split()[1] for line in straight.lines if re.match(r"epoch \d+/5  train/loss", line)]
    assert told == [f"{epoch}/5" for epoch in range(1, 6)]
    (ended,) = (line for line in straight.lines if line.startswith("ended after"))
    assert "5 epochs reached" in ended
    accuracy = rows(shell, "runs/straight")[-1]["test/accuracy"]
    assert any(re.fullmatch(rf"test/accuracy +{accuracy:.4g}", line) for line in straight.lines)
    assert accuracy > 0.7


def test_it_says_what_comes_next_and_the_report_is_written(straight: Said, shell: Shell) -> None:
    assert any("headrace report runs/straight" in line for line in straight.lines)
    said = shell.run("headrace report runs/straight")
    assert said.status == 0
    assert "runs/straight/report.html" in said.text
    page = (shell.home / "runs/straight/report.html").read_text()
    assert "<html" in page
    assert "val/accuracy" in page


def test_a_changed_flag_is_another_run(straight: Said, shell: Shell) -> None:
    before = rows(shell, "runs/straight")
    said = shell.run(f"{FIT} --lr 0.02 --run runs/straight")
    assert said.status == 1
    assert "lr" in said.text
    assert "0.01" in said.text
    assert "0.02" in said.text
    assert "override" in said.text
    assert "Traceback" not in said.text
    assert rows(shell, "runs/straight") == before


@pytest.mark.slow
def test_ctrl_c_leaves_a_run_to_resume_and_the_terminal_sane(interrupted: Said, shell: Shell) -> None:
    assert interrupted.status == 130
    assert "Traceback" not in interrupted.text
    assert interrupted.text.rfind(SHOW) >= interrupted.text.rfind(HIDE), "the cursor is there"
    assert not any("━" in line for line in interrupted.lines), "and nothing of the bar"
    (ended,) = (line for line in interrupted.lines if line.startswith("ended after"))
    assert "SIGINT received" in ended
    assert any(re.search(r"saved at step \d+ in runs/first; run again to go on", line) for line in interrupted.lines)
    assert max(row["epoch"] for row in rows(shell, "runs/first")) < 5


@pytest.mark.slow
def test_a_resumed_training_ends_as_if_nobody_had_interrupted_it(straight: Said, resumed: Said, shell: Shell) -> None:
    assert resumed.status == 0
    assert any(line.startswith("going on from step ") for line in resumed.lines)
    assert not any(line.startswith("epoch 1/") for line in resumed.lines), "what was trained is not trained again"
    runs = [shell.home / "runs" / name for name in ("straight", "first")]
    assert rows(shell, "runs/first") == rows(shell, "runs/straight")
    last = [max((run / "checkpoints").iterdir()).name for run in runs]
    assert last[0] == last[1]
    weights = [(run / "checkpoints" / last[0] / "model.safetensors").read_bytes() for run in runs]
    assert weights[0] == weights[1]
    scores = [[line for line in said.lines if line.startswith("test/")] for said in (straight, resumed)]
    assert scores[0] == scores[1] != []


def test_it_predicts_on_a_file(resumed: Said, shell: Shell) -> None:
    said = shell.run("headrace predict runs/first rows.npy --trust --out answers.csv")
    assert said.status == 0
    assert "answers.csv" in said.text
    assert "5 rows" in said.text
    with (shell.home / "answers.csv").open() as file:
        answers = list(csv.DictReader(file))
    assert len(answers) == 5
    for answer in answers:
        outputs = [float(answer[f"output_{k}"]) for k in range(10)]
        assert int(answer["class"]) == int(np.argmax(outputs))
        assert float(answer["probability"]) == pytest.approx(float(np.exp(max(outputs)) / np.exp(outputs).sum()))


def test_checkpoints_are_listed_and_sound(resumed: Said, shell: Shell) -> None:
    listed, verified = (shell.run(f"headrace checkpoint {action} runs/first") for action in ("list", "verify"))
    assert (listed.status, verified.status) == (0, 0)
    assert len(listed.lines) == len(verified.lines) >= 1
    assert all(line.endswith("sound") for line in verified.lines)


@pytest.mark.slow
def test_a_file_gets_plain_lines_of_the_other_run(shell: Shell) -> None:
    said = shell.run("headrace fit digits.py --width 4 --epochs 3 --lr 0.01 --run runs/other &> piped.txt")
    assert said == Said("", 0)
    text = (shell.home / "piped.txt").read_text()
    assert ESCAPE not in text
    assert "\r" not in text
    epochs = [line for line in text.splitlines() if line.startswith("epoch ")]
    assert [line.split()[1] for line in epochs if "train/loss" in line] == ["1/3", "2/3", "3/3"]


@pytest.mark.slow
def test_a_second_ctrl_c_ends_at_once_and_leaves_the_last_checkpoint(shell: Shell) -> None:
    said = shell.run("headrace fit waits.py --run runs/waits", "waiting", "heard")
    assert said.status == 130
    assert said.text.rfind(SHOW) >= said.text.rfind(HIDE), "the cursor is there"
    listed = shell.run("headrace checkpoint list runs/waits")
    assert [line.split()[0] for line in listed.lines] == ["step-000000000000-000001", "step-000000000002-000002"]


@pytest.mark.slow
def test_a_real_shell_hears_how_a_command_ended_and_sends_it_where_it_is_told(tmp_path: Path) -> None:
    """New interpreters in the foreground of bash, which hands Ctrl-C and the terminal on to them."""
    (tmp_path / "waits.py").write_text(WAITS)
    with bash(tmp_path) as shell:
        said = shell.run("headrace fit waits.py --run runs/waits", "waiting", "heard")
        assert said.status == 130
        assert said.text.rfind(SHOW) >= said.text.rfind(HIDE), "the cursor is there"
        assert shell.run("headrace fit waits.py --widht 4 &> piped.txt") == Said("", 2)
        assert "--widht" in (tmp_path / "piped.txt").read_text()


@pytest.mark.slow
def test_ctrl_c_without_a_run_leaves_the_terminal_sane_as_well(shell: Shell) -> None:
    said = shell.run("headrace fit digits.py --width 4 --epochs 100000", r"epoch +2/\d+  train/loss")
    assert said.status == 130
    assert "Traceback" not in said.text
    assert said.text.rfind(SHOW) >= said.text.rfind(HIDE), "the cursor is there"
    assert not any("━" in line for line in said.lines)
    assert said.lines[-1].startswith("headrace: ")


@pytest.mark.slow
def test_a_typing_error_is_told_in_a_line(shell: Shell) -> None:
    for line, meant in [
        ("headrace fti digits.py", 'Did you mean "fit"?'),
        ("headrace fit digits.py --widht 4", "Did you mean --width?"),
        ("headrace fit digit.py", "digit.py"),
    ]:
        said = shell.run(line)
        assert said.status in (1, 2)
        assert meant in said.text
        assert "Traceback" not in said.text
