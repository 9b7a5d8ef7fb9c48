"""`headrace doctor`: versions, devices and space, and what keeps a training from using them."""

import importlib.metadata
import os
import platform
import re
from collections.abc import Iterator
from pathlib import Path

from ... import __version__
from ...store import disk, system
from .output import print_result

NEEDED = ("torch", "numpy", "safetensors", "pyarrow")
"""Packages without which nothing can be trained."""
LEAST_FREE = 1 << 30  # bytes
MISSING = "not installed"
Fact = tuple[str, object, str]
"""What a fact is about, the fact, and what to do about it, if anything."""


def doctor(*, run: Path = Path("runs"), json: bool = False) -> int:
    """Shows versions, devices and disk space, what is missing, and what to do about it.

    Args:
        run: the directory of the runs, whose disk is checked
        json: print JSON, for a program to read
    """
    parts = {"versions": [*versions()], "devices": [*devices()], "space": [*space(run)]}
    document: dict[str, object] = {part: {name: value for name, value, _ in facts} for part, facts in parts.items()}
    findings = [f"{name}: {value}. {do}." for facts in parts.values() for name, value, do in facts if do]
    width = max(len(name) for facts in parts.values() for name, _, _ in facts)
    lines = []
    for part, facts in parts.items():
        lines += [part, *(f"  {name:<{width}}  {value}" for name, value, _ in facts), ""]
    lines += ["what to do", *(f"  {each}" for each in findings)] if findings else ["Nothing is missing."]
    print_result(json, document | {"findings": findings}, "\n".join(lines))
    return int(any(name in NEEDED and do for facts in parts.values() for name, _, do in facts))


def versions() -> Iterator[Fact]:
    """Python, headrace, the packages that it needs, and its extras."""
    yield from (("python", platform.python_version(), ""), ("headrace", __version__, ""))
    yield "system", platform.platform(), ""
    extras = dict[str, str]()
    for text in importlib.metadata.requires("headrace") or ():
        name, extra = re.findall(r"[\w.-]+", text)[0], re.search(r"extra == ['\"](\w+)", text)
        try:
            installed = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            installed = MISSING
        if extra is None:
            yield name, installed, f"pip install {name}" if installed == MISSING else ""
        elif extra[1] not in ("bench", "dev") and extras.get(extra[1]) != MISSING:
            extras[extra[1]] = installed
    for name, installed in extras.items():
        yield name, f'{MISSING}: pip install "headrace[{name}]"' if installed == MISSING else installed, ""


def devices() -> Iterator[Fact]:
    """The processor with the threads that torch uses, and other devices, those of CUDA with their memory."""
    try:
        import torch
    except ImportError as error:  # torch is missing, or a library that it needs
        yield "torch", f"cannot be imported: {' '.join(str(error).split()).rstrip('.')}", "Install it again"
        return
    from ...store.run import processor

    used, cores = torch.get_num_threads(), system.cores()
    yield "processor", processor(), ""
    yield "instructions", torch.backends.cpu.get_cpu_capability(), ""
    yield "cores", cores, ""
    yield "threads of torch", used, f"They wait for each other: OMP_NUM_THREADS={cores}" if used > cores else ""
    yield "torch", torch.__version__, ""  # with its build, as +cpu
    yield "cuda", torch.version.cuda or "not in this build", ""
    if torch.backends.mps.is_available():
        yield "mps", "available", ""
    for k in range(torch.cuda.device_count() if torch.cuda.is_available() else 0):
        free, total = torch.cuda.mem_get_info(k)
        yield f"cuda:{k}", f"{torch.cuda.get_device_properties(k).name}, {disk.size(total)}, {disk.size(free)} free", ""
    if Path("/dev/nvidiactl").exists() and not torch.cuda.is_available():
        hidden = os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1")
        do = "Install the build of torch for your driver, https://pytorch.org/get-started, or update the driver"
        yield "NVIDIA", "torch cannot use the device", "unset CUDA_VISIBLE_DEVICES, which hides it" if hidden else do


def space(where: Path) -> Iterator[Fact]:
    """Free space in the directory of the runs, or in the one in which it would be made."""
    where = where.absolute()
    while not where.exists():
        where = where.parent
    can_write = where.is_dir() and os.access(where, os.W_OK | os.X_OK)
    yield "directory", str(where), "" if can_write else "It cannot be written: name another directory with --run"
    free = disk.free(where)
    yield "free", disk.size(free), "Free some space, or put runs elsewhere" if free < LEAST_FREE else ""
