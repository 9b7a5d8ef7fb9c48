"""What it costs to ask a run for the updates that used a row, and what a SpikeGuard costs an update.

    python benchmarks/record.py [--quick]

`when`: a short run is made for each kind of data; then the updates of 100 epochs are asked for, of 20 rows. The table
has milliseconds an epoch. `filter` and `split` have fewer rows, since they keep the
numbers of theirs in memory.
`guard`: trainings with and without a guard take turns; the difference of the quickest ones is its price. Both are
measured by the processor's time of this process, which has one thread: other programs do not count.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from machine import in_words, machine
from ordering import Far
from timing import table
from torch import Tensor, nn

import headrace as hr

RESULTS = Path(__file__).parent / "results" / "record"
ROWS, FEWER, EPOCHS, ASKED, LIMIT_MS = 10**9, 10**6, 100, 20, 1.0
GUARDED = {"width 32": (32, 0), "width 256, 2 layers": (256, 2)}
WINDOW, BATCH, STEPS = 64, 128, 400


def order(kind: str, **settings: Any) -> Callable[[], Any]:
    return lambda: hr.Reader(Far(ROWS), kind, **settings)


KINDS: dict[str, Callable[[], Any]] = {
    "full": order("full"),
    "blocks": order("blocks", block=65_536),
    "blocks, mix=8": order("blocks", block=65_536, mix=8),
    "blocks-only": order("blocks-only", block=65_536),
    "rows-only": order("rows-only", block=65_536),
    "none": order("none"),
    "filter": lambda: hr.filter(Far(FEWER), lambda batch: batch["y"] % 2 == 0),
    "split": lambda: hr.split(Far(FEWER), 0.9, 0.1)[0],
    "mix of two": lambda: hr.mix([Far(ROWS // 2), Far(ROWS // 2)], [3, 1]),
    "batches over ends of epochs": lambda: hr.Reader(Far(ROWS), cross_epochs=True),
}


def distance(outputs: Tensor, target: Tensor) -> Tensor:
    """A loss of numbers that may be as large as those of rows are."""
    return (outputs.squeeze(1) * 1e-9 - target * 1e-9).square().mean()


def trainer(width: int = 32, layers: int = 0, **settings: Any) -> hr.Trainer:
    torch.manual_seed(0)
    hidden = [each for _ in range(layers) for each in (nn.Linear(width, width), nn.ReLU())]
    model = nn.Sequential(nn.Linear(32, width), nn.ReLU(), *hidden, nn.Linear(width, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-12)
    return hr.Trainer(model, distance, optimizer, batch_size=BATCH, inputs="x", **settings)


def fit(run: str, data: Any, **settings: Any) -> None:
    trainer(**settings).fit(data, steps=2, progress=False, run=run)


def when(name: str, make: Callable[[], Any], workers: int, folder: str) -> dict[str, Any]:
    """Milliseconds an epoch, the median over the rows that are asked for."""
    data, run = make(), f"{folder}/{name}"
    settings = {"strategy": hr.Periodic(every="10 steps")} if workers > 1 else {}
    hr.launch(partial(fit, **settings), run, data, workers=workers)
    places = hr.Record(run).places(data)
    last = EPOCHS * places.rows // (BATCH * workers)
    seconds, found = [], 0
    for k in range(ASKED):
        row = places.rows * k // ASKED + k
        begun = time.process_time()
        steps = places.steps_of(row, last)
        seconds.append(time.process_time() - begun)
        found += len(steps)
        assert all(row in places.rows_of(step) for step in steps[:3])
    return {
        "data": name,
        "workers": workers,
        "rows": places.rows,
        "updates": found,
        "ms": 1e3 * statistics.median(seconds) / EPOCHS,
        "most_ms": 1e3 * max(seconds) / EPOCHS,
    }


def guarded(width: int, layers: int, action: str | None) -> Callable[[], float]:
    """A training that gives the processor's microseconds of an update each time that it is called."""
    data = {"x": torch.randn(BATCH * 50, 32), "y": torch.randn(BATCH * 50)}
    made = trainer(width, layers)
    made.fit(data, steps=20, progress=False)  # the tape is decided
    callbacks = [hr.SpikeGuard(100.0, WINDOW, action)] if action else []

    def fit() -> float:
        begun = time.process_time()
        made.fit(data, steps=STEPS, progress=False, callbacks=callbacks)
        return 1e6 * (time.process_time() - begun) / STEPS

    return fit


def price(name: str, width: int, layers: int, repeats: int) -> list[dict[str, Any]]:
    """What each kind of guard adds to an update."""
    rivals = {action: guarded(width, layers, action) for action in (None, "note", "skip")}
    found = [{action: fit() for action, fit in rivals.items()} for _ in range(repeats)][1:]
    least = {action: min(each[action] for each in found) for action in rivals}
    return [
        {"model": name, "action": action, "us": least[action] - least[None], "update_us": least[None]}
        for action in ("note", "skip")
    ]


def main() -> None:
    """Measures both; prints the tables, and writes them and a record."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true")
    quick = parser.parse_args().quick
    torch.set_num_threads(1)
    about = machine()
    with tempfile.TemporaryDirectory() as folder:
        asked = [when(name, make, 1, folder) for name, make in KINDS.items()]
        asked.append(when("full, 4 workers", KINDS["full"], 4, folder))
    rows = [[each["data"], f"{each['rows']:,}", f"{each['ms']:.4f}", f"{each['most_ms']:.4f}"] for each in asked]
    text = [
        in_words(about),
        f"\nwhen: milliseconds an epoch; target: at most {LIMIT_MS:g}, "
        f"{'reached' if max(each['most_ms'] for each in asked) <= LIMIT_MS else 'MISSED'}",
        table(["data", "rows", "median", "most"], rows),
    ]
    repeats = 4 if quick else 12
    prices = [each for name, shape in GUARDED.items() for each in price(name, *shape, repeats)]
    rows = [[each["model"], each["action"], f"{each['update_us']:.0f}", f"{each['us']:.1f}"] for each in prices]
    text += [
        f"\nguard: SpikeGuard(window={WINDOW}), batches of {BATCH}, beside the training without it; microseconds",
        table(["model", "action", "update", "more"], rows),
    ]
    print("\n".join(text))
    if not quick:
        RESULTS.with_suffix(".txt").write_text("\n".join(text) + "\n", encoding="utf-8")
        found = {"machine": about, "when": asked, "guard": prices}
        RESULTS.with_suffix(".json").write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
