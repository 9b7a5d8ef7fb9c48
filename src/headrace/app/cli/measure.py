"""Short measurements of a machine: its processors, its accelerators, and the disk that runs are written to."""

import os
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from ...store import disk

WRITE_BYTES = 16 << 20
SLOW_WRITE = 50e6  # bytes a second, safely on the disk
SLOW_SYNC_S = 0.05
SLOW_GFLOPS = 10.0  # of one core; those of the last ten years make 30 and more
DENORMAL_TIMES = 5.0


class Finding(NamedTuple):
    """Something that is slow or missing, and what to do about it; `stops` if nothing can be trained as it is."""

    what: str
    do: str
    stops: bool = False


class Part(NamedTuple):
    """What was found out about one part of the machine."""

    facts: Mapping[str, Any]
    findings: list[Finding]


def devices() -> Part:
    """The processor, and every CUDA device with its memory."""
    import torch

    from ...store.run import processor

    facts: dict[str, Any] = {"processor": processor(), "cores": _cores()}
    facts["instructions"] = torch.backends.cpu.get_cpu_capability()
    if torch.cuda.is_available():
        for k in range(torch.cuda.device_count()):
            properties = torch.cuda.get_device_properties(k)
            free, total = torch.cuda.mem_get_info(k)
            facts[f"cuda:{k}"] = f"{properties.name}, {disk.size(total)}, {disk.size(free)} free"
        return Part(facts, _of_cuda(torch))
    facts["cuda"] = "none"
    if not Path("/dev/nvidiactl").exists():
        return Part(facts, [])
    if torch.version.cuda is None:
        what = f"there is an NVIDIA device, and torch {torch.__version__} is built without CUDA"
        return Part(facts, [Finding(what, "Install the build for your driver: https://pytorch.org/get-started")])
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1")
    why = "CUDA_VISIBLE_DEVICES hides it" if hidden else f"torch cannot use it (built for CUDA {torch.version.cuda})"
    do = "unset CUDA_VISIBLE_DEVICES" if hidden else "Update the driver, or install a torch built for an older CUDA"
    return Part(facts, [Finding(f"there is an NVIDIA device, and {why}", do)])


def _of_cuda(torch: Any) -> list[Finding]:
    modern = torch.cuda.get_device_capability(0) >= (8, 0)
    if not modern or torch.get_float32_matmul_precision() != "highest":
        return []
    what = "products of fp32 matrices do not use the tensor cores"
    return [Finding(what, 'precision="bf16", or torch.set_float32_matmul_precision("high")')]


def _cores() -> int:
    """Cores that this process may use: not those of others, nor more than its container is given time of."""
    cores = len(os.sched_getaffinity(0))
    with suppress(OSError, ValueError):
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        cores = min(cores, max(1, round(int(quota) / int(period))))
    return cores


def threads() -> Part:
    """What several threads are good for: for large products, and for the step of a small model."""
    import torch

    used, cores = torch.get_num_threads(), _cores()
    facts: dict[str, Any] = {"threads of torch": used}
    findings = []
    if used > cores:
        findings.append(
            Finding(f"torch uses {used} threads on {cores} cores: they wait for each other", f"OMP_NUM_THREADS={cores}")
        )
    busy = os.getloadavg()[0]
    try:
        one, several = (_with_threads(torch, count) for count in (1, used))
        denormals = _denormals(torch)
    finally:
        torch.set_num_threads(used)
    facts["matrix products"] = f"{several.gflops:.0f} GFLOP/s with {used} threads, {one.gflops:.0f} with one"
    facts["a small step"] = f"{several.step_s * 1e6:.0f} us with {used} threads, {one.step_s * 1e6:.0f} us with one"
    facts["denormal numbers"] = f"take {denormals:.1f} times as long"
    if busy > 0.7 * cores:
        what = f"other programs keep {busy:.1f} of {cores} cores busy, so that these figures say little"
        return Part(facts, [*findings, Finding(what, "End them, or wait for them, and look again")])
    return Part(facts, findings + _of_speed(one, several, used, denormals))


class _Speed(NamedTuple):
    gflops: float
    step_s: float


def _of_speed(one: _Speed, several: _Speed, used: int, denormals: float) -> list[Finding]:
    """What the figures of one thread and of several say."""
    found = []
    if one.gflops < SLOW_GFLOPS:
        what = f"matrix products reach {one.gflops:.0f} GFLOP/s on a core"
        found.append(Finding(what, "Look for a torch built for this processor, with MKL or OpenBLAS"))
    if used > 1 and several.gflops < 1.2 * one.gflops:
        what = f"{used} threads multiply matrices {several.gflops / one.gflops:.1f} times as fast as one"
        found.append(Finding(what, "The cores may be shared with others, or be halves of one: try OMP_NUM_THREADS=1"))
    if used > 1 and one.step_s < 0.9 * several.step_s:
        what = f"a small model takes {several.step_s / one.step_s:.1f} times as long with {used} threads as with one"
        found.append(Finding(what, "OMP_NUM_THREADS=1 for models of some thousand weights"))
    if denormals > DENORMAL_TIMES:
        what = f"numbers below 1e-38 take {denormals:.0f} times as long as others"
        found.append(Finding(what, "torch.set_flush_denormal(True), if a training gets slower as it goes on"))
    return found


def _with_threads(torch: Any, count: int) -> _Speed:
    """Speed of products of 768 x 768 matrices, and the time of an update of a small perceptron."""
    torch.set_num_threads(count)
    generator = torch.Generator().manual_seed(0)
    a = torch.randn(768, 768, generator=generator)
    x, y = torch.randn(32, 32, generator=generator), torch.randn(32, 1, generator=generator)
    model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def step() -> None:
        optimizer.zero_grad()
        (model(x) - y).square().mean().backward()
        optimizer.step()

    return _Speed(2 * 768**3 / _time(lambda: a @ a, 0.15) / 1e9, _time(step, 0.15))


def _denormals(torch: Any) -> float:
    """How many times as long numbers take that are too small to be stored as others are."""
    torch.set_num_threads(1)
    normal, denormal = torch.full((1 << 14,), 1e-30), torch.full((1 << 14,), 1e-40)
    return _time(lambda: denormal * 0.5, 0.03) / _time(lambda: normal * 0.5, 0.03)


def _time(call: Callable[[], Any], budget_s: float) -> float:
    """Seconds that a call takes: the median of as many as there is time for."""
    call()
    took: list[float] = []
    end = time.perf_counter() + budget_s
    while len(took) < 3 or time.perf_counter() < end:
        start = time.perf_counter()
        call()
        took.append(time.perf_counter() - start)
    return statistics.median(took)


def disk_at(where: Path) -> Part:
    """Room, and how fast bytes are safe, in the directory where runs go or the one in which it would be made."""
    where = where.absolute()
    while not where.exists():
        where = where.parent
    free = disk.free(where)
    facts: dict[str, Any] = {"directory": str(where), "free": disk.size(free)}
    findings = []
    if free < 1 << 30:
        findings.append(Finding(f"{where} has only {disk.size(free)} free", "Free some space, or put runs elsewhere"))
    try:
        rate, sync_s = _written(where, min(WRITE_BYTES, free // 4))
    except OSError as error:
        findings.append(Finding(f"{where} cannot be written: {error.strerror}", "Name another directory with --run"))
        return Part(facts, findings)
    facts |= {"write": f"{disk.size(rate)}/s, on the disk", "fsync": f"{sync_s * 1e3:.1f} ms"}
    if rate < SLOW_WRITE or sync_s > SLOW_SYNC_S:
        what = f"{where} takes {disk.size(rate)}/s and {sync_s * 1e3:.0f} ms for each file, until they are safe"
        findings.append(Finding(what, 'checkpoint_every="10 min", or runs on another disk'))
    return Part(facts, findings)


def _written(where: Path, count: int) -> tuple[float, float]:
    """Bytes a second, and seconds that a small file takes, until they are on the disk."""
    with tempfile.TemporaryFile(dir=where, buffering=0) as file:
        start = time.perf_counter()
        file.write(os.urandom(1 << 20) * (count >> 20))
        os.fsync(file)
        rate = count / (time.perf_counter() - start)
        took = []
        for _ in range(5):
            file.write(b"x" * 4096)
            start = time.perf_counter()
            os.fsync(file)
            took.append(time.perf_counter() - start)
    return rate, statistics.median(took)
