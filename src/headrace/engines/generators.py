"""Gives every virtual worker what a process has only once: random states, and a few settings."""

import ctypes
import random
import warnings
from _random import Random
from typing import Any

import numpy as np
import torch

_python: Any = random._inst  # what `random` draws from: its base class reads and writes all words at once
_numpy: Any = np.random  # all of it, whatever its type hints leave out
_warnings: Any = warnings
_TWISTER = 4 * (624 + 1)  # bytes: the words of a Mersenne Twister, and its position
_END = 4 * (4 + 1)  # of which the last few words are looked at


def seed(worker: int) -> None:
    """The generators of a worker at its start: those of its number, on every engine."""
    torch.manual_seed(worker)
    np.random.seed(worker)
    random.seed(worker)


class Generators:
    """The random states and settings of virtual workers; those of one at a time are the process's.

    Torch's (on all devices), NumPy's and Python's global generators; torch's default type and its deterministic mode;
    the filters of warnings. What torch has for each thread (gradients on or off, autocast) needs no keeping.
    """

    def __init__(self, count: int) -> None:
        if torch.cuda.is_available():
            torch.cuda.init()  # what has no generators yet could not give each worker its own
        cuda = torch.cuda.default_generators if torch.cuda.is_initialized() else ()
        self._torch = [torch.default_generator, *cuda]
        probe: Any = np.random.MT19937(0)
        state = probe.state["state"]
        expected = np.array([*state["key"], state["pos"]], dtype=np.uint32).tobytes()
        self._known = ctypes.string_at(probe.ctypes.state_address, _TWISTER) == expected
        self._callers, self._snapshots = self._read(None), list[Any]()
        for worker in range(count):
            _numpy.set_bit_generator(np.random.MT19937())
            seed(worker)
            self._snapshots.append(self._read(None))
        self._write(self._callers)

    def enter(self, worker: int) -> None:
        """The process's become this worker's."""
        self._write(self._snapshots[worker])

    def swap(self, worker: int, other: int) -> None:
        """Those of one worker are kept, and the process's become the other's."""
        self._snapshots[worker] = self._read(self._snapshots[worker])
        self._write(self._snapshots[other])

    def give_back(self) -> None:
        """The process's are what they were before."""
        self._write(self._callers)

    def _read(self, before: Any) -> Any:
        python = Random.getstate(_python), _python.gauss_next
        numpy = self._read_numpy(before and before[1])
        return [generator.get_state() for generator in self._torch], numpy, python, _settings()

    def _read_numpy(self, before: Any) -> Any:
        """The generator as an object, and its state if that has a normal number left over, which the object lacks.

        To ask for the state takes as long as a small update: it is done only if the memory of the generator has
        changed, of which the end is looked at: whatever is drawn or set changes that.
        """
        generator, end = _numpy.get_bit_generator(), b""
        if self._known and type(generator) is np.random.MT19937:
            end = ctypes.string_at(generator.ctypes.state_address + _TWISTER - _END, _END)
        if before is not None and before[0] is generator and before[1] is None and end and before[2] == end:
            return before
        state: Any = np.random.get_state(legacy=False)
        return generator, state if state["has_gauss"] else None, end

    def _write(self, snapshot: Any) -> None:
        of_torch, (generator, gauss, _), (words, _python.gauss_next), wanted = snapshot
        for each, state in zip(self._torch, of_torch, strict=True):
            each.set_state(state)
        _numpy.set_bit_generator(generator)
        if gauss is not None:
            np.random.set_state(gauss)
        Random.setstate(_python, words)
        if wanted != _settings():
            _set(*wanted)


def _settings() -> tuple[Any, ...]:
    """Settings that a process has only once."""
    return (
        torch.get_default_dtype(),
        torch.get_deterministic_debug_mode(),
        torch._C._get_cudnn_benchmark(),
        _warnings.filters,
        _warnings.showwarning,
        _warnings._showwarnmsg_impl,
    )


def _set(dtype: torch.dtype, mode: int, benchmark: bool, filters: Any, show: Any, show_all: Any) -> None:
    torch.set_default_dtype(dtype)
    torch.set_deterministic_debug_mode(mode)
    torch.backends.cudnn.benchmark = benchmark
    _warnings.filters, _warnings.showwarning, _warnings._showwarnmsg_impl = filters, show, show_all
    if hasattr(_warnings, "_filters_mutated"):
        _warnings._filters_mutated()
