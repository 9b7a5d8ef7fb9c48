"""Sharded training against a hand-written loop of `fully_shard`, and the memory of a worker.

python benchmarks/sharded.py [--save]: a model of 192 MB with AdamW on 2 and on 4 processes of one machine. Both loops
are in the same processes, and take turns; a ratio above 1 means that headrace is faster. A worker's memory is the bytes
of its parameters, gradients and moments times the number of workers, against those of the complete model. What its
process grows by is beyond one copy of its shards; it is negative where memory that was freed before is used again.
"""

from __future__ import annotations

import json
import platform
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard

import headrace as hr
from headrace.store.checkpoints import Store

WIDTH, DEPTH, ROWS = 1024, 6, 32
STEPS, REPEATS = 2, 6
PAGE = 4096
RESULTS = Path(__file__).parent / "results" / "sharded.json"


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(torch.relu(self.up(x)))  # type: ignore[no-any-return]


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks, self.last = nn.ModuleList(Block() for _ in range(DEPTH)), nn.Linear(WIDTH, 10)

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return self.last(x)  # type: ignore[no-any-return]


def made(optimizer: Any) -> hr.Trainer:
    return hr.Trainer(Network(), hr.CrossEntropy(), optimizer, batch_size=ROWS, strategy=hr.Sharded("blocks.*"))


def adam(params: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(params, lr=1e-4)


def by_hand(x: Tensor, y: Tensor) -> Callable[[], None]:
    """Makes updates as the documentation of `fully_shard` does."""
    model, worker, count = Network(), hr.here().shard.index, hr.here().count
    for block in model.blocks:
        fully_shard(block)
    fully_shard(model)
    optimizer, share = adam(model.parameters()), slice(ROWS * worker // count, ROWS * (worker + 1) // count)
    batches = iter(range(0, len(x), ROWS))

    def step() -> None:
        start = next(batches)
        rows, targets = x[start : start + ROWS][share], y[start : start + ROWS][share]
        loss = nn.functional.cross_entropy(model(rows), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        loss.item()

    return step


def timed(step: Callable[[], Any]) -> float:
    start = time.perf_counter()
    for _ in range(STEPS):
        step()
    return time.perf_counter() - start


def bytes_of(trainer: hr.Trainer) -> int:
    """What this worker has of parameters, gradients and moments."""
    found = 0
    for param in trainer.model.parameters():
        kept = [param, param.grad, *trainer.optimizer.state[param].values()]
        found += sum(part.to_local().nbytes for part in kept if hasattr(part, "to_local"))
    return found


def main() -> dict[str, float] | None:
    torch.manual_seed(0)
    count = 1 + STEPS * (REPEATS + 1)
    x, y = torch.randn(ROWS * count, WIDTH), torch.randint(0, 10, (ROWS * count,))
    trainer, hand = made(adam), by_hand(x, y)
    loop: Iterator[Any] = iter(trainer.steps((x, y), epochs=1))
    rivals = {"headrace": lambda: next(loop), "by hand": hand}
    seconds: dict[str, list[float]] = {name: [] for name in rivals}
    next(loop)
    hand()
    complete = 4 * sum(param.numel() * param.element_size() for param in trainer.model.parameters())
    share = bytes_of(trainer) / complete * hr.here().count
    for repeat in range(REPEATS + 1):
        for name in list(rivals)[:: 1 if repeat % 2 else -1]:
            hr.here().all_gather(None)
            seconds[name].append(timed(rivals[name]))
    pairs = list(zip(seconds["by hand"], seconds["headrace"], strict=True))[1:]
    loop.close()  # type: ignore[attr-defined]
    found = {
        "model_mb": complete / 4 / 2**20,
        "share_of_1_over_w": share,
        "throughput_ratio": statistics.median(hand / own for hand, own in pairs),
        "by_hand_s": statistics.median(hand for hand, _ in pairs) / STEPS,
        **growth(trainer, x, y),
    }
    every = hr.here().all_gather(found)
    return {name: max(each[name] for each in every) for name in found} if hr.here().leader else None


def growth(trainer: hr.Trainer, x: Tensor, y: Tensor) -> dict[str, float]:
    """By how many bytes more than its shards the process grows while it saves, and while it reads."""
    folder = hr.here().all_gather(tempfile.mkdtemp() if hr.here().leader else "")[0]
    few = x[: 2 * ROWS], y[: 2 * ROWS]
    shards = bytes_of(trainer) * 3 / 4 / 2**20  # gradients are not saved
    with peak() as training:
        trainer.fit(few, epochs=1, progress=False)
    with peak() as saving:
        trainer.fit(few, epochs=1, progress=False, run=folder)
    store = Store(Path(folder) / "checkpoints", None)
    with peak() as reading:
        read = store.load(store.steps()[-1], part=trainer.strategy.part)
    del read
    return {
        "saving_beyond_shards_mb": saving[0] - training[0] - shards,
        "reading_beyond_shards_mb": reading[0] - shards,
    }


@contextmanager
def peak() -> Iterator[list[float]]:
    """By how many MB the memory of this process grows meanwhile, at most."""
    found, stop = [0.0], threading.Event()
    before = resident()

    def look() -> None:
        while not stop.wait(0.002):
            found[0] = max(found[0], resident() - before)

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    try:
        yield found
    finally:
        stop.set()
        thread.join()


def resident() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE / 2**20


if __name__ == "__main__":
    results: dict[str, Any] = {"machine": platform.processor() or platform.machine(), "torch": torch.__version__}
    for workers in (2, 4):
        found = results[str(workers)] = hr.launch(main, workers=workers, engine="processes", timeout_s=300)
        print(workers, "workers  ", "  ".join(f"{name} {value:.3f}" for name, value in found.items()), flush=True)
    if "--save" in sys.argv:
        RESULTS.write_text(json.dumps(results, indent=1) + "\n")
