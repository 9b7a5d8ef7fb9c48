"""Where and with what a benchmark ran: recorded with its figures, and printed as the first line of its tables."""

from __future__ import annotations

import datetime
import importlib.metadata
import os
import platform
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

LIBRARIES = (
    "torch",
    "numpy",
    "headrace",
    "lightning",
    "torchmetrics",
    "accelerate",
    "pytorch-ignite",
    "skorch",
    "keras",
    "jax",
)


def machine(more: Sequence[str] = ()) -> dict[str, Any]:
    """The processor, the threads and the builds of this process; `more` names further libraries."""
    import torch

    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "cpu": cpu_model(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "system": platform.system(),
        "python": platform.python_version(),
        "threads": torch.get_num_threads(),
        "libraries": {name: version for name in (*LIBRARIES, *more) if (version := installed(name))},
    }


def in_words(record: Mapping[str, Any]) -> str:
    """The processor, the threads and the builds in one line."""
    threads, instructions = record["threads"], record.get("instructions")
    cores = f"{record['cores']} cores, " if "cores" in record else ""
    torch = f"torch {record['libraries']['torch']}" + (f" ({instructions})" if instructions else "")
    words = (
        f"{record['cpu']}, {cores}{threads} {'thread' if threads == 1 else 'threads'}",
        f"{torch}, Python {record['python']}, {record['system']}",
        record["date"][:10],
    )
    return "; ".join(words)


def installed(library: str) -> str | None:
    """The installed version of a library."""
    try:
        return importlib.metadata.version(library)
    except importlib.metadata.PackageNotFoundError:
        return None


def cpu_model() -> str:
    """The processor's name, as far as the system tells it."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()
