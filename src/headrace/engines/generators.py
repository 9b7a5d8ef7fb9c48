"""Gives every virtual worker what a process has only once: random states, and a few settings.

They change hands with the baton, thousands of times a second. So NumPy's generator is exchanged as an object, whose
state is asked for only if its memory has changed.
"""

import ctypes
import random
import warnings
from _random import Random
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

_python: Any = random._inst  # what `random` draws from: its base class reads and writes all words at once
_numpy: Any = np.random  # all of it, whatever its type hints leave out
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
        self._numpy, self._torch = _NumPy(), _Torch()
        self._callers = self._read(None)
        self._snapshots = []
        for worker in range(count):
            self._begin(worker)
            self._snapshots.append(self._read(None))
        self._write(self._callers, None)

    def enter(self, worker: int) -> None:
        """The process's become this worker's."""
        self._write(self._snapshots[worker], None)

    def swap(self, worker: int, other: int) -> None:
        """Those of one worker are kept, and the process's become the other's."""
        snapshot = self._snapshots[worker] = self._read(self._snapshots[worker])
        self._write(self._snapshots[other], snapshot)

    def give_back(self) -> None:
        """The process's are what they were before."""
        self._write(self._callers, None)

    def _begin(self, worker: int) -> None:
        _numpy.set_bit_generator(np.random.MT19937())
        self._torch.seed(worker)
        np.random.seed(worker)
        random.seed(worker)

    def _read(self, before: "_Snapshot | None") -> "_Snapshot":
        return _Snapshot(
            self._torch.read(),
            self._numpy.read(before and before.numpy),
            (Random.getstate(_python), _python.gauss_next),
            _settings(),
        )

    def _write(self, snapshot: "_Snapshot", now: "_Snapshot | None") -> None:
        self._torch.write(snapshot.torch)
        self._numpy.write(snapshot.numpy)
        words, _python.gauss_next = snapshot.python
        Random.setstate(_python, words)
        self._write_settings(snapshot.settings, now and now.settings)

    def _write_settings(self, wanted: tuple[Any, ...], now: tuple[Any, ...] | None) -> None:
        if wanted == now:
            return
        dtype, mode, benchmark, filters, show, show_all = wanted
        torch.set_default_dtype(dtype)
        torch.set_deterministic_debug_mode(mode)
        torch.backends.cudnn.benchmark = benchmark
        module: Any = warnings
        module.filters, module.showwarning, module._showwarnmsg_impl = filters, show, show_all
        if hasattr(module, "_filters_mutated"):
            module._filters_mutated()


class _Snapshot(NamedTuple):
    torch: list[Tensor]
    numpy: "_OfNumPy"
    python: tuple[Any, ...]
    settings: tuple[Any, ...]


def _settings() -> tuple[Any, ...]:
    """Settings that a process has only once."""
    module: Any = warnings
    return (
        torch.get_default_dtype(),
        torch.get_deterministic_debug_mode(),
        torch._C._get_cudnn_benchmark(),
        module.filters,
        module.showwarning,
        module._showwarnmsg_impl,
    )


class _Torch:
    """Of the host, and of every accelerator."""

    def __init__(self) -> None:
        cuda = torch.cuda.default_generators if torch.cuda.is_initialized() else ()
        self._generators: list[torch.Generator] = [torch.default_generator, *cuda]

    def seed(self, worker: int) -> None:
        for generator in self._generators:
            generator.manual_seed(worker)

    def read(self) -> list[Tensor]:
        return [generator.get_state() for generator in self._generators]

    def write(self, states: list[Tensor]) -> None:
        for generator, state in zip(self._generators, states, strict=True):
            generator.set_state(state)


class _OfNumPy(NamedTuple):
    generator: Any
    address: int
    """Where its memory is."""
    end: bytes
    """The last words, and the position: whatever is drawn or set changes them."""
    gauss: Any
    """The whole state where a normal number is left over: the generator object does not hold that one."""


class _NumPy:
    """Each worker has a generator object of its own, which `numpy.random` draws from."""

    def __init__(self) -> None:
        probe: Any = np.random.MT19937(0)
        state = probe.state["state"]
        expected = np.array([*state["key"], state["pos"]], dtype=np.uint32).tobytes()
        self._known = ctypes.string_at(probe.ctypes.state_address, _TWISTER) == expected

    def read(self, before: _OfNumPy | None) -> _OfNumPy:
        generator = _numpy.get_bit_generator()
        if before is not None and before.generator is generator and before.gauss is None and before.address:
            end = ctypes.string_at(before.address + _TWISTER - _END, _END)
            if end == before.end:
                return before
        known = self._known and type(generator) is np.random.MT19937
        address: int = generator.ctypes.state_address if known else 0
        end = ctypes.string_at(address + _TWISTER - _END, _END) if known else b""
        state: Any = np.random.get_state(legacy=False)
        return _OfNumPy(generator, address, end, state if state["has_gauss"] else None)

    def write(self, snapshot: _OfNumPy) -> None:
        _numpy.set_bit_generator(snapshot.generator)
        if snapshot.gauss is not None:
            np.random.set_state(snapshot.gauss)
