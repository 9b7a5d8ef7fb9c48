"""A new user at a real terminal: a training, Ctrl-C, and Ctrl-C twice."""

import json
import re
import shlex
import shutil
import sys
import termios
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pexpect
import pytest
from kit.screens import environment, screen

ROOT = Path(__file__).parents[2]
COLUMNS = 100
HIDE, SHOW = "\x1b[?25l", "\x1b[?25h"
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


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    """Bash as a user has it, beside a recipe; its commands are new interpreters in the foreground."""
    home = tmp_path_factory.mktemp("home")
    shutil.copy(ROOT / "recipes" / "digits.py", home)
    (home / "waits.py").write_text(WAITS)
    where = {"cwd": str(home), "env": environment() | {"PS1": "$ ", "PROMPT_COMMAND": 'echo "[$?]"'}}
    arguments = ["--norc", "--noediting", "-i"]
    child = pexpect.spawn("bash", arguments, **where, encoding="utf-8", timeout=400, dimensions=(24, COLUMNS))
    try:
        made = Shell(home, child)
        made.run(f'headrace() {{ {shlex.quote(sys.executable)} -m headrace "$@"; }}')
        yield made
    finally:
        child.close(force=True)


def test_a_training_shows_a_bar_and_leaves_a_line_for_each_epoch(shell: Shell) -> None:
    said = shell.run(f"{FIT} --run runs/straight")
    assert said.status == 0
    assert "━" in said.text
    assert "\r" in said.text.replace("\r\n", "")
    assert not any("━" in line or "batch " in line for line in said.lines), "of the bar nothing is left"
    told = [line.split()[1] for line in said.lines if re.match(r"epoch \d+/5  train/loss", line)]
    assert told == [f"{epoch}/5" for epoch in range(1, 6)]
    (ended,) = (line for line in said.lines if line.startswith("ended after"))
    assert "5 epochs reached" in ended
    accuracy = json.loads((shell.home / "runs/straight/metrics.jsonl").read_text().splitlines()[-1])["test/accuracy"]
    assert any(re.fullmatch(rf"test/accuracy +{accuracy:.4g}", line) for line in said.lines)
    assert accuracy > 0.7


def test_ctrl_c_leaves_a_run_to_resume_and_the_terminal_sane(shell: Shell) -> None:
    said = shell.run("headrace fit waits.py --run runs/first", "waiting")
    assert said.status == 130
    assert "Traceback" not in said.text
    assert said.text.rfind(SHOW) >= said.text.rfind(HIDE), "the cursor is there"
    assert "━" in said.text
    assert not any("━" in line for line in said.lines), "and nothing of the bar"
    (ended,) = (line for line in said.lines if line.startswith("ended after"))
    assert "SIGINT received" in ended
    assert any(re.search(r"saved at step 3 in runs/first; run again to go on", line) for line in said.lines)


def test_a_second_ctrl_c_ends_at_once_and_leaves_the_last_checkpoint(shell: Shell) -> None:
    said = shell.run("headrace fit waits.py --twice --run runs/waits", "waiting", "heard")
    assert said.status == 130
    assert said.text.rfind(SHOW) >= said.text.rfind(HIDE), "the cursor is there"
    names = ["step-000000000000-000001", "step-000000000002-000002"]
    kept = sorted(path.name for path in (shell.home / "runs/waits/checkpoints").iterdir())
    assert kept == names, "it ended at once, with the last checkpoint"
