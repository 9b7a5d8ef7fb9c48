"""The whole path of a new user at a real terminal: train, report, a changed flag, Ctrl-C."""

import atexit
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

import pexpect
import pytest
from kit import screens
from kit.screens import environment, screen, sit_down

from headrace.app.cli import main

ROOT = Path(__file__).parents[2]
COLUMNS = 100
HIDE, SHOW, ESCAPE = "\x1b[?25l", "\x1b[?25h", "\x1b"
FIT = "headrace fit digits.py --width 4 --batch-size 32 --epochs 5 --lr 0.01"

WAITS = '''
import time
import torch
import headrace as hr

class Waits(hr.Callback):
    """At the third update, until somebody presses Ctrl-C, `twice`."""

    def __init__(self, twice):
        self.twice = twice

    def on_step_end(self, info):
        time.sleep(0.15)  # so that the bar is drawn
        if info.step == 3:
            while not list(info.run.glob("checkpoints/step-*2-*/COMMIT")):  # which is written meanwhile
                time.sleep(0.01)
            print("waiting")
            while not info.trainer.signals.why:
                time.sleep(0.01)
            print("heard")
            while self.twice:
                time.sleep(0.01)

def waits(twice: bool = False) -> hr.Recipe:
    """Trains until Ctrl-C.

    Args:
        twice: whether it is pressed twice.
    """
    model = torch.nn.Linear(2, 1)
    trainer = hr.Trainer(model, hr.MSE(), torch.optim.SGD(model.parameters(), lr=0.1), batch_size=2)
    data = torch.zeros(20, 2), torch.zeros(20, 1)
    return hr.Recipe(trainer, data, fit={"epochs": 1, "run": hr.Run(every="2 steps"), "callbacks": [Waits(twice)]})
'''


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
    child = pexpect.spawn("bash", arguments, **where, encoding="utf-8", timeout=400, dimensions=(24, COLUMNS))
    try:
        shell = Shell(home, child)
        shell.run(f'headrace() {{ {shlex.quote(sys.executable)} -m headrace "$@"; }}')
        yield shell
    finally:
        child.close(force=True)


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    """Where the user is: beside a recipe."""
    home = tmp_path_factory.mktemp("home")
    shutil.copy(ROOT / "recipes" / "digits.py", home)
    (home / "waits.py").write_text(WAITS)
    where = tmp_path_factory.mktemp("shell")
    with screens.terminal(a_shell, where, home, columns=COLUMNS) as terminal:
        yield Shell(home, terminal)


@pytest.fixture(scope="module")
def straight(shell: Shell) -> Said:
    """A training that nobody interrupts."""
    return shell.run(f"{FIT} --run runs/straight")


@pytest.fixture(scope="module")
def interrupted(shell: Shell) -> Said:
    """A training until Ctrl-C."""
    return shell.run("headrace fit waits.py --run runs/first", "waiting")


def rows(shell: Shell, run: str) -> list[dict[str, float]]:
    return [json.loads(line) for line in (shell.home / run / "metrics.jsonl").read_text().splitlines()]


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
    assert "━" in interrupted.text
    assert not any("━" in line for line in interrupted.lines), "and nothing of the bar"
    (ended,) = (line for line in interrupted.lines if line.startswith("ended after"))
    assert "SIGINT received" in ended
    assert any(re.search(r"saved at step 3 in runs/first; run again to go on", line) for line in interrupted.lines)


@pytest.mark.slow
def test_a_second_ctrl_c_in_a_real_shell_ends_at_once_and_leaves_the_last_checkpoint(tmp_path: Path) -> None:
    """New interpreters in the foreground of bash, which hands Ctrl-C and the terminal on to them."""
    (tmp_path / "waits.py").write_text(WAITS)
    with bash(tmp_path) as shell:
        said = shell.run("headrace fit waits.py --twice --run runs/waits", "waiting", "heard")
        assert said.status == 130
        assert said.text.rfind(SHOW) >= said.text.rfind(HIDE), "the cursor is there"
    names = ["step-000000000000-000001", "step-000000000002-000002"]
    kept = sorted(path.name for path in (tmp_path / "runs/waits/checkpoints").iterdir())
    assert kept == names, "it ended at once, with the last checkpoint"


@pytest.mark.slow
def test_a_file_gets_plain_lines_of_the_other_run(shell: Shell) -> None:
    said = shell.run("headrace fit digits.py --width 4 --epochs 3 --lr 0.01 --run runs/other &> piped.txt")
    assert said == Said("", 0)
    text = (shell.home / "piped.txt").read_text()
    assert ESCAPE not in text
    assert "\r" not in text
    epochs = [line for line in text.splitlines() if line.startswith("epoch ")]
    assert [line.split()[1] for line in epochs if "train/loss" in line] == ["1/3", "2/3", "3/3"]
