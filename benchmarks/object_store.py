"""What a run in an object store costs: requests of a save and of a resume, and a training that saves every second.

    python benchmarks/object_store.py

A real S3 server (moto) answers over HTTP on this machine: in this process where requests are counted, and on a core of
its own where time is. A second is one of the processor's time: a save comes after as many updates as it makes in one.
Two trainings, one with a local run, go on by turns, so that other programs on this machine slow both alike; the ten
seconds between reports, and between renewals of the claim, are also those of the processor.
"""

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import nn

import headrace as hr
from headrace.store import claim, mirror
from headrace.store.cache import folder_of

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
from kit.s3_server import Server, s3

SAVES, PARTS, REPEATS = 2, 2, 7  # saves in a part
WIDTH = 256


def train(run: str, every: int) -> None:
    """In a process of its own: trains for `SAVES` saves at each line that is read, and prints seconds and busy ones."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 10))
    trainer = hr.Trainer(model, hr.CrossEntropy(), torch.optim.Adam(model.parameters()), batch_size=64)
    data = (torch.randn(4096, WIDTH), torch.randint(0, 10, (4096,)))
    steps = trainer.steps(data, steps=10**9, run=hr.Run(run, every=f"{every} steps"), progress=False)
    for info in steps:
        if info.step == every // 2:
            break
    ended, busy, main_busy = time.perf_counter(), time.process_time(), time.thread_time()
    for _ in sys.stdin:
        began = time.perf_counter()
        for _ in range(SAVES * every):
            next(steps)
        ended_before, ended, busy_before, busy = ended, time.perf_counter(), busy, time.process_time()
        main_before, main_busy = main_busy, time.thread_time()
        print(ended - began, busy - busy_before, busy - busy_before - (main_busy - main_before), flush=True)
        slower = (ended - ended_before) / (busy - busy_before)
        mirror.REPORT_S = mirror.RENEW_S = 10.0 * slower
        claim.EXPIRY_S = 60.0 * slower
    os._exit(0)


class Training:
    """A training in a process of its own that waits between the parts that are timed."""

    def __init__(self, run: str, every: int) -> None:
        command = [sys.executable, __file__, run, str(every)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def part(self) -> list[float]:
        """Seconds of a part, and those of the processor since the part before: all, and without the main thread."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        return [float(each) for each in self._process.stdout.readline().split()]

    def end(self) -> None:
        self._process.kill()
        self._process.wait()


def requests(server: Server, folder: Path) -> dict[str, dict[str, int]]:
    """Requests of a run's first start, of a save, and of a start on another machine."""
    found = {}
    run = "s3://bucket/counted"

    def fit(epochs: int) -> None:
        torch.manual_seed(0)
        model = nn.Linear(8, 2)
        data = (torch.randn(64, 8), torch.randint(0, 2, (64,)))
        trainer = hr.Trainer(model, hr.CrossEntropy(), torch.optim.Adam(model.parameters()))
        trainer.fit(data, epochs=epochs, run=run, progress=False)

    fit(3)
    server.log.clear()
    fit(4)
    saved = [line for line in server.log if "/checkpoints/" in line or line.startswith("DELETES") or "metrics" in line]
    found["a save"] = _kinds(saved)
    shutil.rmtree(folder_of(run))
    server.log.clear()
    hr.Record(run)
    found["reading it on another machine"] = _kinds(server.log)
    server.log.clear()
    hr.Record(run)
    found["reading it again"] = _kinds(server.log)
    shutil.rmtree(folder_of(run))
    server.log.clear()
    fit(4)
    found["a resume on another machine that has nothing to train"] = _kinds(server.log)
    return found


def _kinds(log: list[str]) -> dict[str, int]:
    kinds = [line.partition(" ")[0] for line in log]
    return {kind: kinds.count(kind) for kind in sorted(set(kinds))} | {"all": len(kinds)}


@contextmanager
def apart() -> Iterator[str]:
    """A server in a process of its own: its URL."""
    code = "import time; from kit.s3_server import Server; print(Server().url, flush=True); time.sleep(3000)"
    process = subprocess.Popen([sys.executable, "-c", code], cwd=sys.path[0], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield process.stdout.readline().strip()
    finally:
        process.kill()
        process.wait()


def cores() -> list[set[int]]:
    """The cores of the trainer, and those of the server."""
    found = sorted(os.sched_getaffinity(0))
    return [{found[0]}, {found[-1]}]


def main() -> None:
    torch.set_num_threads(1)
    trainers, servers = cores()
    os.sched_setaffinity(0, servers)  # a process that is started has those of its parent
    with tempfile.TemporaryDirectory() as folder, s3() as server, apart() as url:
        os.sched_setaffinity(0, trainers)
        os.environ["HEADRACE_CACHE"] = f"{folder}/cache"
        counted = requests(server, Path(folder))
        for what, kinds in counted.items():
            print(f"{what}: {kinds}")
        os.environ["AWS_ENDPOINT_URL"] = url
        once = Training(f"{folder}/once", 500)
        every = int(500 * SAVES / statistics.median(once.part()[1] for _ in range(5)))
        once.end()
        print(f"a save every {every} updates", flush=True)
        ratios, busy, threads = [], [], []
        for repeat in range(REPEATS):
            both = [Training(f"{folder}/local-{repeat}", every), Training(f"s3://bucket/timed-{repeat}", every)]
            [training.part() for training in both]
            parts = [
                [training.part() for training in both[:: 1 if k % 2 else -1]][:: 1 if k % 2 else -1]
                for k in range(PARTS)
            ]
            [training.end() for training in both]
            for found, kind in ((ratios, 0), (busy, 1)):
                found.append(sum(store[kind] for _, store in parts) / sum(local[kind] for local, _ in parts))
            uploading = sum(store[2] - local[2] for local, store in parts)  # which other programs hardly change
            threads.append(uploading / sum(local[1] for local, _ in parts))
            print(
                f"the store takes {ratios[-1]:.3f} of the time, {busy[-1]:.3f} of the processor's; "
                f"its threads {threads[-1]:.4f}",
                flush=True,
            )
        middle = [statistics.median(each) for each in (ratios, busy, threads)]
        print(f"medians of {REPEATS}: {middle[0]:.3f}, {middle[1]:.3f}, {middle[2]:.4f}")
        results = Path(__file__).parent / "results" / "object_store.json"
        results.parent.mkdir(exist_ok=True)
        found = {"requests": counted, "time": ratios, "processor": busy, "processor, threads of the store": threads}
        results.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    train(sys.argv[1], int(sys.argv[2])) if len(sys.argv) > 1 else main()
