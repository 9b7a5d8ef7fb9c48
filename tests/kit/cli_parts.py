"""A recipe for tests of the command line, and the command line in this process and in one of its own."""

import json
import os
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from headrace.app.cli import main
from headrace.engines import processes
from kit import forked

LIMIT_S = 200.0
RECIPE = '''
import os
from typing import Literal
import torch
from torch import nn
import headrace as hr

class Gate(hr.Callback):
    """Says that it is there, and waits for a word, if somebody wants it to."""

    def on_step_end(self, info):
        if info.step == int(os.environ.get("GATE", 0)):
            print("there", flush=True)
            os.read(0, 1)

def rows(count):
    x = torch.sin(torch.arange(count * 5.0)).reshape(count, 5)
    return x, (x[:, 0] > x[:, 1]).long()

def small(lr: float = 0.1, width: int = 8, kind: Literal["sgd", "adam"] = "adam", tested: bool = True) -> hr.Recipe:
    """Trains a classifier of sines.

    Args:
        lr: learning rate.
        width: hidden units.
        kind: of the optimizer.
        tested: whether there are test data.
    """
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, width), nn.ReLU(), nn.Dropout(0.5), nn.Linear(width, 2))
    optimizer = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam}[kind](model.parameters(), lr=lr)
    trainer = hr.Trainer(model, hr.CrossEntropy(), optimizer, batch_size=8, metrics=["accuracy"])
    fit = {"epochs": 2, "callbacks": [Gate()]}
    return hr.Recipe(trainer, rows(40), rows(20), rows(30) if tested else None, fit=fit)

def passes(epochs: int = 3) -> hr.Recipe:
    """Trains for so many passes.

    Args:
        epochs: of the recipe's own.
    """
    made = small()
    made.fit = {"epochs": epochs}
    return made
'''

FILED = """
import headrace as hr

def filed(file: str = "none.py", tested: bool = True) -> hr.Recipe:
    \"\"\"Trains on what a script makes.

    Args:
        file: the script.
        tested: a switch.
    \"\"\"
    from sines import small
    made = small()
    made.fit["run"] = "runs/own"
    return made
"""
"""A recipe with a parameter that takes a path, and with a run of its own."""


def headrace(*words: object) -> int:
    """Runs a command here; its exit status."""
    try:
        return main([str(word) for word in words])
    except SystemExit as error:
        return int(error.code or 0)


def printed(capsys: Any, *words: object) -> dict[str, Any]:
    """What `fit --print_config` shows of the recipe `small`."""
    assert headrace("fit", "sines.py:small", *words, "--print_config") == 0
    said = capsys.readouterr()
    assert said.err == ""
    found: dict[str, Any] = yaml.safe_load(said.out)
    return found


def answer(capsys: Any, *words: object, status: int = 0) -> Any:
    """What a command prints as JSON."""
    capsys.readouterr()
    found = headrace(*words, "--json")
    said = capsys.readouterr()
    assert (found, said.err) == (status, "")
    return json.loads(said.out)


def plain(page: str) -> str:
    """A page of help without its frames, with a space in place of each gap."""
    return " ".join(re.sub("[╭─╮│╰╯*]", " ", page).split())


def refused(capsys: Any, *words: object, status: int = 1) -> str:
    """What a command says that is refused: one line, and nothing on standard output."""
    assert headrace(*words) == status
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.count("\n") == 1, "one sentence"
    assert "Traceback" not in said.err
    return str(said.err)


@contextmanager
def process(at: Path, *words: object, **variables: str) -> Iterator[forked.Child]:
    """A command in a process of its own, in the directory where the test is, with forks for workers that are processes.

    Its standard output is read by `child.line`, `child.say` writes to its input, and `child.output` has its errors,
    which are written into the directory `at`.
    """
    with forked.start(_command, at, os.getcwd(), [str(word) for word in words], variables) as child:
        yield child


def _command(place: str, words: Sequence[str], variables: dict[str, str]) -> None:
    os.chdir(place)
    os.environ |= variables
    processes.START = "fork"
    forked.take_over()
    raise SystemExit(main(words))


def environment() -> dict[str, str]:
    """For a process that imports what this one does."""
    source = str(Path(__file__).parents[2] / "src")
    return os.environ | {"PYTHONPATH": os.pathsep.join([source, *sys.path]), "OMP_NUM_THREADS": "1"}
