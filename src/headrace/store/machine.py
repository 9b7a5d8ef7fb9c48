"""What the bits of a training depend on beside its state: processor, threads, torch."""

import platform
import warnings
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import torch


def facts(device: torch.device) -> dict[str, Any]:
    """The kind of machine that a training computes on, as plain values."""
    found = {
        "processor": processor(),
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "threads": torch.get_num_threads(),
        "torch": str(torch.__version__),
    }
    return found | ({"device": torch.cuda.get_device_name(device)} if device.type == "cuda" else {})


def differences(before: Any, now: Mapping[str, Any]) -> list[str]:
    """In which facts a machine differs from an earlier one, as far as those are known."""
    known = before if isinstance(before, Mapping) else {}
    names = [name for name in {**known, **now} if known and known.get(name) != now.get(name)]
    return [f"{name} {known.get(name, 'none')} (now {now.get(name, 'none')})" for name in names]


@cache
def processor() -> str:
    """The processor's name."""
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def compare(before: Any, device: torch.device) -> None:
    """Warns of what may make bits differ after a resume."""
    if found := differences(before, facts(device)):
        warnings.warn(
            f"the run was saved with {', '.join(found)}: it goes on, but perhaps not bit for bit. Exact resume needs "
            "the same kind of processor, number of threads and version of torch.",
            stacklevel=3,
        )
