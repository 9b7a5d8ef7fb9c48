"""`headrace doctor`: versions, devices, threads, disk, and what of it makes a training slow."""

import importlib.metadata
import importlib.util
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from ... import __version__
from ...store import disk, system
from .output import print_result

NEEDED = (
    "torch",
    "numpy",
    "safetensors",
    "pyarrow",
    "docstring_parser",
    "pyyaml",
    "rich",
    "tensorboard",
    "matplotlib",
    "jinja2",
)
WITHOUT = NEEDED[:4]  # no training without these
EXTRAS = {
    "ray": ("ray",),
    "mlflow": ("mlflow",),
    "wandb": ("wandb",),
    "sklearn": ("scikit-learn",),
    "optuna": ("optuna",),
    "pandas": ("pandas",),
    "vision": ("pillow",),
    "onnx": ("onnx", "onnxscript"),
}
"""What each extra of headrace installs."""
LEAST_TORCH = (2, 10)
WRITE_BYTES = 16 << 20
SLOW_WRITE = 50e6  # bytes a second, safely on the disk
SLOW_SYNC_S = 0.05
SLOW_GFLOPS = 10.0  # of one core; those of the last ten years make 30 and more


class Finding(NamedTuple):
    """Something that is slow or missing, and what to do about it; `stops` if nothing can be trained as it is."""

    what: str
    do: str
    stops: bool = False


class Part(NamedTuple):
    """What was found out about one part of the machine."""

    facts: Mapping[str, Any]
    findings: list[Finding]


def doctor(*, run: Path = Path("runs"), json: bool = False) -> int:
    """Prints what there is, what is slow, and what to do about it.

    Args:
        run: where runs go, to be tried
    """
    start = time.perf_counter()
    parts = {name: _tried(check) for name, check in checks(run).items()}
    took_s = round(time.perf_counter() - start, 1)
    findings = [(name, finding) for name, part in parts.items() for finding in part.findings]
    document = {name: dict(part.facts) for name, part in parts.items()} | {
        "findings": [{"part": name, **finding._asdict()} for name, finding in findings],
        "seconds": took_s,
    }
    print_result(json, document, "\n".join([*_lines(parts), *_advice(findings, took_s)]))
    return int(any(finding.stops for _, finding in findings))


def checks(where: Path) -> dict[str, Callable[[], Part]]:
    """What is looked at, in this order; `where` runs would go."""
    return {
        "versions": versions,
        "devices": devices,
        "threads": threads,
        "disk": lambda: disk_at(where),
    }


def _tried(check: Callable[[], Part]) -> Part:
    """Runs a check; one that fails is reported as such."""
    try:
        return check()
    except Exception as error:
        return Part({"could not be told": _named(error)}, [])


def _named(error: Exception) -> str:
    """An error in one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split()[:40])}"


def _lines(parts: Mapping[str, Part]) -> list[str]:
    width = max(len(name) for part in parts.values() for name in part.facts)
    lines = []
    for name, part in parts.items():
        lines += [name, *(f"  {fact:<{width}}  {value}" for fact, value in part.facts.items()), ""]
    return lines


def _advice(findings: list[tuple[str, Finding]], took_s: float) -> list[str]:
    if not findings:
        return [f"Nothing is slow, of what was looked at in {took_s} s."]
    lines = [f"what to do ({took_s} s)"]
    for _, finding in findings:
        lines += [f"  {'!' if finding.stops else '-'} {finding.what}.", f"    {finding.do}."]
    return lines


# --- what there is -----------------------------------------------------------------------------------------


def versions() -> Part:
    """Python, headrace, what it needs, and its extras."""
    facts = {"python": platform.python_version(), "headrace": __version__, "system": platform.platform()}
    findings = []
    for name in NEEDED:
        facts[name] = found = _version(name) or "not installed"
        if found == "not installed":
            findings.append(Finding(f"{name} is not installed", f"pip install {name}", stops=name in WITHOUT))
    if facts["torch"] != "not installed":
        start = time.perf_counter()
        was_there = "torch" in sys.modules
        findings += _importing("torch")
        took_s = time.perf_counter() - start
        facts["torch"] = str(
            getattr(sys.modules.get("torch"), "__version__", facts["torch"])
        )  # with its build, as +cpu
        if not was_there:
            facts["import torch"] = f"{took_s:.1f} s"
        if took_s > 8:
            findings.append(
                Finding(f"import torch takes {took_s:.0f} s", "Move the Python environment to a local disk")
            )
        if tuple(int(part) for part in facts["torch"].split(".")[:2]) < LEAST_TORCH:
            findings.append(Finding(f"torch {facts['torch']} is older than 2.10", "pip install -U torch"))
    for extra, needed in EXTRAS.items():
        there = [_version(name) for name in needed]
        facts[extra] = str(there[0]) if all(there) else f'not installed: pip install "headrace[{extra}]"'
    return Part(facts, findings)


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _importing(name: str) -> list[Finding]:
    try:
        importlib.import_module(name)
    except Exception as error:  # a library that it needs is missing, or of another version
        what = f"{name} cannot be imported: {_named(error).rstrip('.')}"
        return [
            Finding(what, f"Mend that; if it is the installation, pip install --force-reinstall {name}", stops=True)
        ]
    return []


# --- measurements ------------------------------------------------------------------------------------------


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
    cores = system.cores()
    with suppress(OSError, ValueError):
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text(encoding="utf-8").split()
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
    busy = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    try:
        one, several = (_with_threads(torch, count) for count in (1, used))
    finally:
        torch.set_num_threads(used)
    facts["matrix products"] = f"{several.gflops:.0f} GFLOP/s with {used} threads, {one.gflops:.0f} with one"
    facts["a small step"] = f"{several.step_s * 1e6:.0f} us with {used} threads, {one.step_s * 1e6:.0f} us with one"
    if busy > 0.7 * cores:
        what = f"other programs keep {busy:.1f} of {cores} cores busy, so that these figures say little"
        return Part(facts, [*findings, Finding(what, "End them, or wait for them, and look again")])
    return Part(facts, findings + _of_speed(one, several, used))


class _Speed(NamedTuple):
    gflops: float
    step_s: float


def _of_speed(one: _Speed, several: _Speed, used: int) -> list[Finding]:
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
        findings.append(Finding(what, 'hr.Run(path, every="10 min"), or runs on another disk'))
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
