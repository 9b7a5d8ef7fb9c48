"""`headrace doctor`: versions, devices and space, and what keeps a training from using them."""

import importlib.metadata
import os
import platform
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from ... import __version__
from ...store import disk, system
from .output import print_result

WITHOUT = ("torch", "numpy", "safetensors", "pyarrow")  # no training without these
NOT_FOR_USERS = ("bench", "dev")
LEAST_TORCH = (2, 10)
LEAST_FREE = 1 << 30  # bytes


class Finding(NamedTuple):
    """Something that is missing, and what to do about it; `stops` if nothing can be trained as it is."""

    what: str
    do: str
    stops: bool = False


class Part(NamedTuple):
    """What was found out about one part of the machine."""

    facts: Mapping[str, Any]
    findings: list[Finding]


def doctor(*, run: Path = Path("runs"), json: bool = False) -> int:
    """Prints what there is, what is missing, and what to do about it.

    Args:
        run: where runs go
        json: print JSON, for a program to read
    """
    parts = {name: _tried(check) for name, check in checks(run).items()}
    findings = [(name, finding) for name, part in parts.items() for finding in part.findings]
    document: dict[str, Any] = {name: dict(part.facts) for name, part in parts.items()}
    document["findings"] = [{"part": name, **finding._asdict()} for name, finding in findings]
    print_result(json, document, "\n".join([*_lines(parts), *_advice(findings)]))
    return int(any(finding.stops for _, finding in findings))


def checks(where: Path) -> dict[str, Callable[[], Part]]:
    """What is looked at, in this order; `where` runs would go."""
    return {"versions": versions, "devices": devices, "space": lambda: space(where)}


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


def _advice(findings: list[tuple[str, Finding]]) -> list[str]:
    if not findings:
        return ["Nothing is missing."]
    lines = ["what to do"]
    for _, finding in findings:
        lines += [f"  {'!' if finding.stops else '-'} {finding.what}.", f"    {finding.do}."]
    return lines


def versions() -> Part:
    """Python, headrace, what it needs, and its extras."""
    facts = {"python": platform.python_version(), "headrace": __version__, "system": platform.platform()}
    findings = []
    needs = requirements()
    for name in needs.pop(""):
        facts[name] = found = _version(name) or "not installed"
        if found == "not installed":
            findings.append(Finding(f"{name} is not installed", f"pip install {name}", stops=name in WITHOUT))
    if facts["torch"] != "not installed":
        try:
            facts["torch"] = importlib.import_module("torch").__version__  # with its build, as +cpu
        except Exception as error:  # a library that it needs is missing, or of another version
            what = f"torch cannot be imported: {_named(error).rstrip('.')}"
            do = "Mend that; if it is the installation, pip install --force-reinstall torch"
            findings.append(Finding(what, do, stops=True))
        if tuple(int(part) for part in facts["torch"].split(".")[:2]) < LEAST_TORCH:
            findings.append(Finding(f"torch {facts['torch']} is older than 2.10", "pip install -U torch"))
    for extra, needed in needs.items():
        there = [_version(name) for name in needed]
        facts[extra] = str(there[0]) if all(there) else f'not installed: pip install "headrace[{extra}]"'
    return Part(facts, findings)


def requirements() -> dict[str, list[str]]:
    """The packages that headrace needs, by the extra that needs them; "" always."""
    found: dict[str, list[str]] = {"": []}
    for text in importlib.metadata.requires("headrace") or ():
        name, extra = re.match(r"[\w.-]+", text), re.search(r"extra == ['\"](\w+)", text)
        assert name is not None
        found.setdefault(extra[1] if extra else "", []).append(name[0])
    return {extra: names for extra, names in found.items() if extra not in NOT_FOR_USERS}


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def devices() -> Part:
    """The processor with the threads that torch uses, and every CUDA device with its memory."""
    import torch

    from ...store.run import processor

    used, cores = torch.get_num_threads(), _cores()
    facts: dict[str, Any] = {"processor": processor(), "cores": cores, "threads of torch": used}
    facts["instructions"] = torch.backends.cpu.get_cpu_capability()
    findings = []
    if used > cores:
        what = f"torch uses {used} threads on {cores} cores: they wait for each other"
        findings.append(Finding(what, f"OMP_NUM_THREADS={cores}"))
    if not torch.cuda.is_available():
        return Part(facts | {"cuda": "none"}, [*findings, *_without_cuda(torch)])
    for k in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(k)
        free, total = torch.cuda.mem_get_info(k)
        facts[f"cuda:{k}"] = f"{properties.name}, {disk.size(total)}, {disk.size(free)} free"
    modern = torch.cuda.get_device_capability(0) >= (8, 0)
    if modern and torch.get_float32_matmul_precision() == "highest":
        what = "products of fp32 matrices do not use the tensor cores"
        findings.append(Finding(what, 'precision="bf16", or torch.set_float32_matmul_precision("high")'))
    return Part(facts, findings)


def _without_cuda(torch: Any) -> list[Finding]:
    """Why torch does not use a device of NVIDIA's, where there is one."""
    if not Path("/dev/nvidiactl").exists():
        return []
    if torch.version.cuda is None:
        what = f"there is an NVIDIA device, and torch {torch.__version__} is built without CUDA"
        return [Finding(what, "Install the build for your driver: https://pytorch.org/get-started")]
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1")
    why = "CUDA_VISIBLE_DEVICES hides it" if hidden else f"torch cannot use it (built for CUDA {torch.version.cuda})"
    do = "unset CUDA_VISIBLE_DEVICES" if hidden else "Update the driver, or install a torch built for an older CUDA"
    return [Finding(f"there is an NVIDIA device, and {why}", do)]


def _cores() -> int:
    """Cores that this process may use: not those of others, nor more than its container is given time of."""
    cores = system.cores()
    with suppress(OSError, ValueError):
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text(encoding="utf-8").split()
        cores = min(cores, max(1, round(int(quota) / int(period))))
    return cores


def space(where: Path) -> Part:
    """Room in the directory where runs go, or in the one in which it would be made."""
    where = where.absolute()
    while not where.exists():
        where = where.parent
    free = disk.free(where)
    findings = []
    if free < LEAST_FREE:
        findings.append(Finding(f"{where} has only {disk.size(free)} free", "Free some space, or put runs elsewhere"))
    if not where.is_dir() or not os.access(where, os.W_OK | os.X_OK):
        findings.append(Finding(f"{where} cannot be written", "Name another directory with --run"))
    return Part({"directory": str(where), "free": disk.size(free)}, findings)
