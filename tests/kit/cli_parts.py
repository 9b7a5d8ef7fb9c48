"""A recipe for tests of the command line, and the command line in this process and in one of its own."""

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from headrace.app.cli import main
from kit import forked

LIMIT_S = 60.0
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
    metrics = [] if "GATE" in os.environ else ["accuracy"]  # torchmetrics takes a process of its own a second to import
    trainer = hr.Trainer(model, hr.CrossEntropy(), optimizer, batch_size=8, metrics=metrics)
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


def headrace(*words: object) -> int:
    """Runs a command here; its exit status."""
    try:
        return main([str(word) for word in words])
    except SystemExit as error:
        return int(error.code or 0)


@contextmanager
def process(at: Path, *words: object, **variables: str) -> Iterator[forked.Child]:
    """A command in a process of its own, in the directory where the test is; `at` is a directory for what it prints.

    What it prints is what it tells, and what is said to it is its input. Of errors it speaks in its output.
    """
    with forked.start(_command, at, os.getcwd(), [str(word) for word in words], variables, limit_s=LIMIT_S) as child:
        yield child


def _command(place: str, words: Sequence[str], variables: dict[str, str]) -> None:
    os.chdir(place)
    os.environ |= variables
    forked.take_over()
    raise SystemExit(main(words))


def environment(**variables: str) -> dict[str, str]:
    """For a process that imports what this one does."""
    source = str(Path(__file__).parents[2] / "src")
    return os.environ | {"PYTHONPATH": os.pathsep.join([source, *sys.path]), "OMP_NUM_THREADS": "1"} | variables
