"""What a dialect costs, as a ratio to the same training in headrace's own words: an MLP 64-128-10, SGD with momentum.

    python benchmarks/compat.py [--quick] [--repeats N] [--rows N]

One epoch in batches of 128, one thread. CNTK's labels are one-hot, and so are those of the training that both are
compared with; PuzzleLib's are numbers of classes. `raw` is the hand-written loop. headrace replays this network from a
tape, as PuzzleLib's dialect does; a graph of CNTK's is computed anew in each update, which is compared with headrace
without a tape.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from machine import in_words, machine
from timing import Job, interleave, ratio, table
from torch import nn

import headrace as hr
import headrace.compat.cntk as C
from headrace.compat import puzzlelib

RESULTS = Path(__file__).parent / "results" / "compat.json"
BATCH, LIMIT = 128, 1.35
UNTAPED = "headrace, tape=False"


def main() -> None:
    """Time every training once per repeat, print the table, and write it as JSON."""
    options = arguments()
    torch.set_num_threads(1)
    where = machine()
    print(in_words(where))
    draw = np.random.default_rng(0)
    x = draw.random((options.rows, 64), np.float32)
    y = np.eye(10, dtype=np.float32)[draw.integers(0, 10, options.rows)]
    trainings = {
        "headrace": native,
        UNTAPED: partial(native, tape=False),
        "cntk": cntk,
        "puzzlelib": puzzle,
        "raw": raw,
    }
    prepare = {name: (lambda make=make: make(x, y)) for name, make in trainings.items()}
    samples = interleave(prepare, options.repeats, often=(), passes=1)
    found, untaped = ({name: ratio(samples[name], samples[to]) for name in trainings} for to in ("headrace", UNTAPED))
    updates = -(-options.rows // BATCH)
    rows = [
        [n, f"{min(samples[n].seconds) / updates * 1e6:.0f}", f"{found[n].median:.3f}", f"{untaped[n].median:.3f}"]
        for n in trainings
    ]
    print(table(["training", "µs an update", "to headrace", "to it without a tape"], rows))
    dearest = max(found["cntk"].median, found["puzzlelib"].median)
    print(f"a dialect takes at most {LIMIT} of the time: {'reached' if dearest <= LIMIT else 'missed'}")
    options.out.parent.mkdir(parents=True, exist_ok=True)
    ratios = {"to headrace": found, "to headrace without a tape": untaped}
    record = {to: {name: asdict(r) for name, r in each.items()} for to, each in ratios.items()}
    options.out.write_text(json.dumps({"machine": where, "rows": options.rows, **record}, indent=2) + "\n")


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="3 repeats: a glance")
    parser.add_argument("--repeats", type=int, help="interleaved repeats (default 9)")
    parser.add_argument("--rows", type=int, default=200_000, help="rows of the epoch")
    parser.add_argument("--out", type=Path, default=RESULTS, help="where the JSON goes")
    options = parser.parse_args()
    options.repeats = options.repeats or (3 if options.quick else 9)
    return options


def model() -> nn.Sequential:
    """The model that all train."""
    return nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))


def native(x: np.ndarray, y: np.ndarray, tape: Literal["auto", False] = "auto") -> Job:
    """In headrace's own words."""
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), 0.05, momentum=0.9)
    trainer = hr.Trainer(net, hr.CrossEntropy(), optimizer, batch_size=BATCH, order="none", tape=tape)
    data = torch.from_numpy(x), torch.from_numpy(y)
    return Job(lambda: trainer.fit(data, epochs=1, progress=False), lambda: trainer.history.last["train/loss"])


def cntk(x: np.ndarray, y: np.ndarray) -> Job:
    """By CNTK's names."""
    rows, label = C.input_variable(64), C.input_variable(10)
    z = C.layers.Sequential([C.layers.Dense(128, activation=C.relu), C.layers.Dense(10)])(rows)
    learner = C.momentum_sgd(z.parameters, 0.05, 0.9, unit_gain=False)
    trainer = C.Trainer(z, (C.cross_entropy_with_softmax(z, label), None), [learner])
    source = C.io.MinibatchSourceFromData({"x": x, "y": y}, len(x))
    streams = {rows: source.streams["x"], label: source.streams["y"]}
    session = C.training_session(trainer, source, BATCH, streams)
    return Job(session.train, lambda: trainer.previous_minibatch_loss_average)


def puzzle(x: np.ndarray, y: np.ndarray) -> Job:
    """By PuzzleLib's names."""
    optimizer = puzzlelib.MomentumSGD(learnRate=0.05, momRate=0.9)
    trainer = puzzlelib.Trainer(model(), puzzlelib.CrossEntropy(), optimizer, batchsize=BATCH)
    labels = y.argmax(1)
    return Job(lambda: trainer.trainFromHost(x, labels, random=False), trainer.cost.getMeanError)


def raw(x: np.ndarray, y: np.ndarray) -> Job:
    """The loop by hand."""
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), 0.05, momentum=0.9)
    loss: Callable[..., torch.Tensor] = nn.functional.cross_entropy
    last = [0.0]

    def run() -> None:
        data = torch.from_numpy(x).split(BATCH), torch.from_numpy(y).split(BATCH)
        for rows, labels in zip(*data, strict=True):
            optimizer.zero_grad()
            found = loss(net(rows), labels)
            found.backward()
            optimizer.step()
        last[0] = float(found.detach())

    return Job(run, lambda: last[0])


if __name__ == "__main__":
    main()
