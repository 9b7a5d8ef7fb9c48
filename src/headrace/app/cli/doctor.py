"""`headrace doctor`: versions, devices and space, and what keeps a training from using them."""

import importlib.metadata
import os
import platform
import re
from pathlib import Path
from typing import Any, NamedTuple

from ... import __version__
from ...store import disk, system
from .output import print_result

NEEDED = ("torch", "numpy", "safetensors", "pyarrow")
"""Packages without which nothing can be trained."""
LEAST_FREE = 1 << 30  # bytes


class Finding(NamedTuple):
    """Something that is missing, and what to do about it; `stops` if nothing can be trained as it is."""

    what: str
    do: str
    stops: bool = False


Part = tuple[dict[str, Any], list[Finding]]
"""The facts about one part of the machine, and what is missing there."""


def doctor(*, run: Path = Path("runs"), json: bool = False) -> int:
    """Shows versions, devices and disk space, what is missing, and what to do about it.

    Args:
        run: the directory of the runs, whose disk is checked
        json: print JSON, for a program to read
    """
    parts = {"versions": versions(), "devices": devices(), "space": space(run)}
    findings = [finding for _, found in parts.values() for finding in found]
    width = max(len(name) for facts, _ in parts.values() for name in facts)
    lines = []
    for name, (facts, _) in parts.items():
        lines += [name, *(f"  {fact:<{width}}  {value}" for fact, value in facts.items()), ""]
    lines += ["what to do"] if findings else ["Nothing is missing."]
    for finding in findings:
        lines += [f"  {'!' if finding.stops else '-'} {finding.what}.", f"    {finding.do}."]
    document = {name: facts for name, (facts, _) in parts.items()}
    print_result(json, document | {"findings": [each._asdict() for each in findings]}, "\n".join(lines))
    return int(any(finding.stops for finding in findings))


def versions() -> Part:
    """Python, headrace, the packages that it needs, and its extras."""
    facts = {"python": platform.python_version(), "headrace": __version__, "system": platform.platform()}
    findings = []
    for text in importlib.metadata.requires("headrace") or ():
        name, extra = re.match(r"[\w.-]+", text), re.search(r"extra == ['\"](\w+)", text)
        assert name is not None
        installed = _version(name[0])
        if extra is None:
            facts[name[0]] = installed or "not installed"
            if installed is None:
                findings.append(Finding(f"{name[0]} is not installed", f"pip install {name[0]}", name[0] in NEEDED))
        elif extra[1] not in ("bench", "dev") and (extra[1] not in facts or installed is None):
            facts[extra[1]] = installed or f'not installed: pip install "headrace[{extra[1]}]"'
    return facts, findings


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def devices() -> Part:
    """The processor with the threads that torch uses, and other devices, those of CUDA with their memory."""
    try:
        import torch
    except ImportError as error:  # torch is missing, or a library that it needs
        message = " ".join(str(error).split())
        return {}, [Finding(f"torch cannot be imported: {message.rstrip('.')}", "Install torch again", stops=True)]
    from ...store.run import processor

    used, cores = torch.get_num_threads(), system.cores()
    facts: dict[str, Any] = {
        "processor": processor(),
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "cores": cores,
        "threads of torch": used,
        "torch": torch.__version__,  # with its build, as +cpu
        "cuda": torch.version.cuda or "not in this build",
    }
    findings = []
    if used > cores:
        what = f"torch uses {used} threads on {cores} cores: they wait for each other"
        findings.append(Finding(what, f"OMP_NUM_THREADS={cores}"))
    if torch.backends.mps.is_available():
        facts["mps"] = "available"
    if torch.cuda.is_available():
        for k in range(torch.cuda.device_count()):
            free, total = torch.cuda.mem_get_info(k)
            name = torch.cuda.get_device_properties(k).name
            facts[f"cuda:{k}"] = f"{name}, {disk.size(total)}, {disk.size(free)} free"
    elif Path("/dev/nvidiactl").exists():
        do = "Install the build of torch for your driver, https://pytorch.org/get-started, or update the driver"
        if os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1"):
            do = "unset CUDA_VISIBLE_DEVICES, which hides it"
        findings.append(Finding("there is an NVIDIA device, which torch cannot use", do))
    return facts, findings


def space(where: Path) -> Part:
    """Free space in the directory of the runs, or in the one in which it would be made."""
    where = where.absolute()
    while not where.exists():
        where = where.parent
    free, findings = disk.free(where), []
    if free < LEAST_FREE:
        findings.append(Finding(f"{where} has only {disk.size(free)} free", "Free some space, or put runs elsewhere"))
    if not where.is_dir() or not os.access(where, os.W_OK | os.X_OK):
        findings.append(Finding(f"{where} cannot be written", "Name another directory with --run"))
    return {"directory": str(where), "free": disk.size(free)}, findings
