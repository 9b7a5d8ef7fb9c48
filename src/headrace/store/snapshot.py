"""Saving beside a training: tensors copied to memory of their own, and a thread that writes them."""

import threading
import warnings
from collections.abc import Callable, Hashable, Mapping, Sequence
from concurrent.futures import Future
from itertools import accumulate
from typing import TypeVar

import torch
from torch import Tensor, nn

from ..errors import CheckpointError

Name = TypeVar("Name", bound=Hashable)
Result = TypeVar("Result")
_PLAIN = (Tensor, nn.Parameter, nn.Buffer)
SLOW_S = 60.0  # that a write is waited for before whoever looks on is told what the training waits for
EVEN = 64  # bytes: where torch begins what it allocates


class Copier:
    """Copies tensors into memory on the host that it keeps, so that the next copy costs no page faults.

    A copy is valid until the next one is made. Tensors that are the same view of the same memory are copied once.
    """

    def __init__(self) -> None:
        self._copies: list[Tensor] = []

    def __call__(self, tensors: Mapping[Name, Tensor]) -> dict[Name, Tensor]:
        """The same names, the same values."""
        views = {name: _view(name, tensor) for name, tensor in tensors.items()}
        sources = dict(zip(views.values(), tensors.values(), strict=True))
        devices = {tensor.device for tensor in sources.values()} - {torch.device("cpu")}
        if [(c.dtype, c.shape) for c in self._copies] != [(t.dtype, t.shape) for t in sources.values()]:
            self._copies = []  # before more is asked for
            self._copies = _empty_like([*sources.values()], pinned=bool(devices))
        with torch.no_grad():
            if sources:
                torch._foreach_copy_(self._copies, [*sources.values()], non_blocking=True)
        for device in devices:
            torch.cuda.current_stream(device).synchronize()
        copies = dict(zip(sources, self._copies, strict=True))
        return {name: copies[view] for name, view in views.items()}


def _empty_like(tensors: Sequence[Tensor], pinned: bool) -> list[Tensor]:
    """Tensors of these shapes and types in one piece of memory."""
    bounds = [0, *accumulate(-(-tensor.nbytes // EVEN) * EVEN for tensor in tensors)]
    memory = torch.empty(bounds[-1], dtype=torch.uint8, pin_memory=pinned)
    parts = zip(tensors, bounds, strict=False)
    return [memory[start : start + t.nbytes].view(t.dtype).view(t.shape) for t, start in parts]


def _view(name: Hashable, tensor: Tensor) -> Hashable:
    """What tells whether two tensors are the same; raises on what is no dense tensor."""
    if tensor.layout != torch.strided or tensor.is_quantized or tensor.is_meta or type(tensor) not in _PLAIN:
        path = "/".join(map(str, name)) if isinstance(name, tuple) else name
        raise CheckpointError(
            f"{path!r} is a {type(tensor).__name__} ({tensor.layout}), which cannot be saved; dense ones can."
        )
    where = tensor.device, tensor.data_ptr(), tensor.dtype, tensor.is_conj(), tensor.is_neg()
    return *where, tensor.shape, tensor.stride()


class Saver:
    """Writes one thing at a time in a thread; what failed there is raised where the next thing is asked for.

    The thread is no daemon: an interpreter that ends waits for it.
    """

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._failure: BaseException | None = None

    def start(self, write: Callable[[], object]) -> None:
        """Begins a write; the one before it has to be waited for."""
        self.wait()
        thread = threading.Thread(target=self._run, args=(write,), name="headrace-save")
        try:
            thread.start()
        except RuntimeError:  # an interpreter that is shutting down starts none
            write()
            return
        self._thread = thread

    def wait(self) -> None:
        """Returns once the write is done; raises if it failed. A disk may be slow: it is waited for, and said so."""
        if self._thread is not None:
            self._thread.join(SLOW_S)
            if self._thread.is_alive():
                warnings.warn(
                    f"the training has waited for its last checkpoint for {SLOW_S:g} s: the disk is slow, or does not "
                    "answer. It goes on once that is written.",
                    stacklevel=2,
                )
            self._thread.join()
            self._thread = None
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def _run(self, write: Callable[[], None]) -> None:
        try:
            write()
        except BaseException as error:
            self._failure = error


def beside(call: Callable[[], Result]) -> Callable[[], Result]:
    """Makes a call in a thread; what is returned waits for its result. An interpreter that ends makes it at once."""
    done: Future[Result] = Future()

    def run() -> None:
        try:
            done.set_result(call())
        except BaseException as error:
            done.set_exception(error)

    try:
        threading.Thread(target=run, name="headrace-hash", daemon=True).start()
    except RuntimeError:  # it starts no threads any more
        run()
    return done.result
