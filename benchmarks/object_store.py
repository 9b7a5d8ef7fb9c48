"""What a run in an object store costs: requests of a save and of a resume, and a training that saves every second.

A real S3 server (moto) answers over HTTP on this machine. A proxy counts requests; times are without it. The server
computes on the processors of the training, which a real store does not: so the time of the processor that the training
itself takes is compared, too.

    python benchmarks/object_store.py
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

SECONDS, REPEATS = 30.0, 5
WIDTH = 256


def train(run: str, seconds: float, every: str = "0.0166 minutes") -> tuple[float, float]:
    """Updates per second, and per second of this process's processor, of a training that saves once a second."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 10))
    trainer = hr.Trainer(model, hr.CrossEntropy(), torch.optim.Adam(model.parameters()), batch_size=64)
    data = (torch.randn(4096, WIDTH), torch.randint(0, 10, (4096,)))
    began, step, busy, times = 0.0, 0, 0.0, time.perf_counter
    for info in trainer.steps(data, epochs=10**6, run=hr.Run(run, every=every), progress=False):
        if not began:  # the first checkpoint is written meanwhile
            began, step, busy = times(), info.step, time.process_time()
        if times() - began > seconds:
            break
    return (info.step - step) / (times() - began), (info.step - step) / (time.process_time() - busy)


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


def main() -> None:
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder, s3(limit_s=1200) as proxy:
        os.environ["HEADRACE_CACHE"] = f"{folder}/cache"
        counted = requests(proxy, Path(folder))
        for what, kinds in counted.items():
            print(f"{what}: {kinds}")
        os.environ["AWS_ENDPOINT_URL"] = proxy.server_url
        ratios, busy = [], []
        for repeat in range(REPEATS):
            pair = {}
            for where in ("local", "store") if repeat % 2 else ("store", "local"):
                run = f"{folder}/local-{repeat}" if where == "local" else f"s3://bucket/timed-{repeat}"
                pair[where] = train(run, SECONDS / REPEATS)
            ratios.append(pair["local"][0] / pair["store"][0])
            busy.append(pair["local"][1] / pair["store"][1])
            print(f"a run in the store takes {ratios[-1]:.3f} of the time, {busy[-1]:.3f} of the processor's time")
        print(f"medians of {REPEATS}: {statistics.median(ratios):.3f}, {statistics.median(busy):.3f}")
        results = Path(__file__).parent / "results" / "object_store.json"
        results.parent.mkdir(exist_ok=True)
        results.write_text(json.dumps({"requests": counted, "time": ratios, "processor": busy}, indent=2) + "\n")


if __name__ == "__main__":
    main()
