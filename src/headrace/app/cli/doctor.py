"""`headrace doctor`: versions, devices, threads, memory, disk, and what of it makes a training slow."""

import importlib.metadata
import importlib.util
import os
import platform
import shutil
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from ... import __version__
from ...step.memory import groups
from ...store import disk
from . import measure
from .measure import Finding, Part
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
    "torchmetrics",
    "matplotlib",
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
DEBUGGING = {
    "CUDA_LAUNCH_BLOCKING": "every kernel is waited for",
    "TORCH_LOGS": "torch writes down what its compiler does",
    "TORCH_SHOW_CPP_STACKTRACES": "every error of torch collects a long trace",
    "TORCH_DISTRIBUTED_DEBUG": "workers compare every collective",
    "NCCL_DEBUG": "NCCL writes down what it does",
    "PYTORCH_NO_CUDA_MEMORY_CACHING": "device memory is asked for and given back for every tensor",
    "TORCHDYNAMO_DISABLE": "compile=True compiles nothing",
    "PYTHONDEVMODE": "Python checks every allocation",
    "PYTHONMALLOC": "Python does not use its own allocator",
    "PYTHONTRACEMALLOC": "Python remembers where every object was made",
    "MALLOC_PERTURB_": "the C library fills all memory that it gives out",
    "MALLOC_CHECK_": "the C library checks all memory that it gives out",
}
"""Variables for the search for an error, and what they cost."""
_OFF = {"TORCH_DISTRIBUTED_DEBUG": ("OFF",), "NCCL_DEBUG": ("WARN", "VERSION"), "PYTHONMALLOC": ("pymalloc", "default")}
_SET_BY_HAND = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "CUDA_VISIBLE_DEVICES", "CI", "LD_PRELOAD")


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
        "devices": measure.devices,
        "threads": measure.threads,
        "memory": memory,
        "disk": lambda: measure.disk_at(where),
        "environment": environment,
    }


def _tried(check: Callable[[], Part]) -> Part:
    """One that fails says so, and the others go on."""
    try:
        return check()
    except Exception as error:
        return Part({"could not be told": _named(error)}, [])


def _named(error: Exception) -> str:
    """What an error says, in a line."""
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


def memory() -> Part:
    """What the machine and this process's group may use, and how the C library gives memory out."""
    sizes = _meminfo()
    facts = {"memory": f"{disk.size(sizes['MemTotal'])}, {disk.size(sizes['MemAvailable'])} available"}
    findings = []
    available = sizes["MemAvailable"]
    limits = [group for group in groups() if group.limit < sizes["MemTotal"]]
    if limits:
        facts["limit of this container"] = disk.size(min(group.limit for group in limits))
        available = min([available, *(group.free for group in limits)])
    if available < 2 << 30:
        findings.append(Finding(f"only {disk.size(available)} of memory is available", "End what else is running"))
    facts |= _shared(findings)
    own = sorted(name for name in os.environ if name.startswith("MALLOC_") and name not in DEBUGGING)
    libc = " ".join(platform.libc_ver()) or "another C library"
    facts["malloc"] = f"{libc}, " + (f"as {', '.join(own)} say" if own else "freed memory is kept while training")
    if own:
        findings.append(
            Finding(
                f"{', '.join(own)} in the environment: headrace leaves malloc as it is, and freed memory is given back",
                f"unset {' '.join(own)}, for up to a tenth of the time of small convolutional networks",
            )
        )
    return Part(facts, findings)


def _meminfo() -> dict[str, int]:
    """Bytes by name."""
    lines = (line.split() for line in Path("/proc/meminfo").read_text().splitlines())
    return {words[0].rstrip(":"): int(words[1]) * 1024 for words in lines}


def _shared(findings: list[Finding]) -> dict[str, str]:
    """Room that processes share batches in."""
    total = shutil.disk_usage("/dev/shm").total if Path("/dev/shm").is_dir() else 0
    if total < 1 << 30:
        findings.append(
            Finding(
                f"/dev/shm has {disk.size(total)}: the workers of a DataLoader, and of headrace, share batches there",
                "Give a container more, as in docker run --shm-size=8g",
            )
        )
    return {"/dev/shm": disk.size(total)}


def environment() -> Part:
    """Variables that change how a training runs."""
    facts = {name: os.environ[name] for name in (*_SET_BY_HAND, *DEBUGGING) if name in os.environ}
    findings = [
        Finding(f"{name}={os.environ[name]} is set: {cost}", f"unset {name}")
        for name, cost in DEBUGGING.items()
        if os.environ.get(name, "0") not in ("", "0", *_OFF.get(name, ()))
    ]
    if sys.gettrace() is not None:
        findings.append(Finding("a debugger or a coverage tool follows every line", "Train without it"))
    return Part(facts or {"variables": "none that matter"}, findings)
