"""What a run in an object store costs: requests of a save and of a resume, and a training that saves every second.

    python benchmarks/object_store.py

A real S3 server (moto) answers over HTTP on this machine, on a core of its own. A proxy counts requests; times are
without it. A second is one of the processor's time: a save comes after as many updates as it makes in one. So other
programs on this machine do not count.
"""

import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path

import torch
from torch import nn

import headrace as hr
from headrace.store.cache import folder_of

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
from kit.s3_server import Proxy, s3

SAVES, REPEATS = 6, 7
WIDTH = 256


def train(run: str | None, updates: int, every: int) -> tuple[float, float]:
    """Seconds, and those of this process's processor, of so many updates, once the first checkpoint is written."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 10))
    trainer = hr.Trainer(model, hr.CrossEntropy(), torch.optim.Adam(model.parameters()), batch_size=64)
    data = (torch.randn(4096, WIDTH), torch.randint(0, 10, (4096,)))
    where = None if run is None else hr.Run(run, every=f"{every} steps")
    began, busy = 0.0, 0.0
    for info in trainer.steps(data, steps=updates + 200, run=where, progress=False):
        if info.step == 100:
            began, busy = time.perf_counter(), time.process_time()
        if info.step == updates + 100:
            return time.perf_counter() - began, time.process_time() - busy
    raise AssertionError("it has ended before")


def requests(proxy: Proxy, folder: Path) -> dict[str, dict[str, int]]:
    """Requests of a run's first start, of a save, and of a start on another machine."""
    found = {}
    run = "s3://bucket/counted"

    def fit(epochs: int) -> None:
        torch.manual_seed(0)
        model = nn.Linear(8, 2)
        data = (torch.randn(64, 8), torch.randint(0, 2, (64,)))
        trainer = hr.Trainer(model, hr.CrossEntropy(), torch.optim.Adam(model.parameters()))
        trainer.fit(data, epochs=epochs, run=run, progress=False)

    fit(1)
    proxy.log.clear()
    fit(2)
    saved = [line for line in proxy.log if "/checkpoints/" in line or line.startswith("DELETES") or "metrics" in line]
    found["a save"] = _kinds(saved)
    shutil.rmtree(folder_of(run))
    proxy.log.clear()
    hr.Record(run)
    found["reading it on another machine"] = _kinds(proxy.log)
    proxy.log.clear()
    hr.Record(run)
    found["reading it again"] = _kinds(proxy.log)
    shutil.rmtree(folder_of(run))
    proxy.log.clear()
    fit(2)
    found["a resume on another machine that has nothing to train"] = _kinds(proxy.log)
    return found


def _kinds(log: list[str]) -> dict[str, int]:
    kinds = [line.partition(" ")[0] for line in log]
    return {kind: kinds.count(kind) for kind in sorted(set(kinds))} | {"all": len(kinds)}


def cores() -> list[set[int]]:
    """The cores of the trainer, and those of the server."""
    found = sorted(os.sched_getaffinity(0))
    return [{found[0]}, {found[-1]}]


def main() -> None:
    torch.set_num_threads(1)
    trainers, servers = cores()
    os.sched_setaffinity(0, servers)  # a process that is started has those of its parent
    with tempfile.TemporaryDirectory() as folder, s3(limit_s=3000) as proxy:
        os.sched_setaffinity(0, trainers)
        os.environ["HEADRACE_CACHE"] = f"{folder}/cache"
        counted = requests(proxy, Path(folder))
        for what, kinds in counted.items():
            print(f"{what}: {kinds}")
        os.environ["AWS_ENDPOINT_URL"] = proxy.server_url
        every = int(1000 / statistics.median(train(None, 1000, 1)[1] for _ in range(3)))
        print(f"a save every {every} updates, {SAVES} of them", flush=True)
        ratios, busy = [], []
        for repeat in range(REPEATS + 1):
            pair = {}
            for where in ("local", "store") if repeat % 2 else ("store", "local"):
                run = f"{folder}/local-{repeat}" if where == "local" else f"s3://bucket/timed-{repeat}"
                pair[where] = train(run, SAVES * every, every)
            if repeat:  # in the first, modules are imported
                ratios.append(pair["store"][0] / pair["local"][0])
                busy.append(pair["store"][1] / pair["local"][1])
                print(f"the store takes {ratios[-1]:.3f} of the time, {busy[-1]:.3f} of the processor's", flush=True)
        print(f"medians of {REPEATS}: {statistics.median(ratios):.3f}, {statistics.median(busy):.3f}")
        results = Path(__file__).parent / "results" / "object_store.json"
        results.parent.mkdir(exist_ok=True)
        results.write_text(json.dumps({"requests": counted, "time": ratios, "processor": busy}, indent=2) + "\n")


if __name__ == "__main__":
    main()
