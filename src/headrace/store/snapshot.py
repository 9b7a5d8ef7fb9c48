"""Saving beside a training: tensors copied to memory of their own, and a thread that writes them."""

import threading
import warnings
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from typing import TypeVar

import torch
from torch import Tensor, nn

from ..errors import CheckpointError

Name = TypeVar("Name", bound=Hashable)
Result = TypeVar("Result")
_PLAIN = (Tensor, nn.Parameter, nn.Buffer)
SLOW_S = 60.0  # that a write is waited for before whoever looks on is told what the training waits for
WHOLE_SHARE = 0.5  # of a storage that has to be wanted for it to be copied in one go


class Copier:
    """Copies tensors into memory that it keeps, so that the next copy costs no page faults.

    A copy is valid until the next one is made. Tensors that share memory, as those of an arena do, are copied
    together; which part of the copy is whose is found out when it is asked for.
    """

    def __init__(self) -> None:
        self._rooms: list[Tensor] = []

    def __call__(self, tensors: Mapping[Name, Tensor]) -> "Copies[Name]":
        """The same names, the same values."""
        self._rooms, rooms = [], _Rooms(self._rooms)
        found = Copies(tensors)
        for memory, names in _by_memory(tensors).items():
            first = max((tensors[name] for name in names), key=_end) if memory else tensors[names[0]]
            storage = first.untyped_storage()
            if memory and sum(tensors[name].nbytes for name in names) >= WHOLE_SHARE * storage.nbytes():
                room = rooms(storage.nbytes(), first)
                raw = torch.empty(0, dtype=torch.uint8, device=first.device).set_(storage)
                room.copy_(raw, non_blocking=True)
                found.whole |= dict.fromkeys(names, room)
                self._rooms.append(room)
                continue
            for name in names:
                room = rooms(tensors[name].nbytes, tensors[name])
                found.single[name] = room.view(tensors[name].dtype).view(tensors[name].shape)
                found.single[name].copy_(tensors[name].detach(), non_blocking=True)
                self._rooms.append(room)
        for device in {tensor.device for tensor in tensors.values()} - {torch.device("cpu")}:
            torch.cuda.current_stream(device).synchronize()
        return found


class Copies(Mapping[Name, Tensor]):
    """What tensors were when they were copied, by the names that they were given."""

    def __init__(self, tensors: Mapping[Name, Tensor]) -> None:
        self._places = {n: (t.dtype, t.shape, t.stride(), t.storage_offset()) for n, t in tensors.items()}
        self.whole: dict[Name, Tensor] = {}
        self.single: dict[Name, Tensor] = {}

    def __getitem__(self, name: Name) -> Tensor:
        if name in self.single:
            return self.single[name]
        room, (dtype, shape, stride, offset) = self.whole[name], self._places[name]
        numbers = room[: room.numel() // dtype.itemsize * dtype.itemsize].view(dtype)
        return numbers.as_strided(shape, stride, offset)

    def __iter__(self) -> Iterator[Name]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)


class Saver:
    """Writes one thing at a time in a thread; what failed there is raised where the next thing is asked for.

    The thread is no daemon: an interpreter that ends waits for it.
    """

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._failure: BaseException | None = None

    def start(self, write: Callable[[], None]) -> None:
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


class _Rooms:
    """Memory from the last time, where it fits; new memory where not."""

    def __init__(self, before: Iterable[Tensor]) -> None:
        self._before: dict[tuple[int, bool], list[Tensor]] = {}
        for room in before:
            self._before.setdefault((room.numel(), room.is_pinned()), []).append(room)

    def __call__(self, size: int, like: Tensor) -> Tensor:
        pinned = like.device.type == "cuda"
        known = self._before.get((size, pinned))
        return known.pop() if known else torch.empty(size, dtype=torch.uint8, pin_memory=pinned)


def _by_memory(tensors: Mapping[Name, Tensor]) -> dict[tuple[int, torch.device] | None, list[Name]]:
    """Names of tensors by the memory they share; `None`: those that are no plain view of any, as a conjugate.

    Where memory begins is computed: asking a tensor for its storage costs a hundred times as much.
    """
    groups: dict[tuple[int, torch.device] | None, list[Name]] = {}
    for name, tensor in tensors.items():
        if tensor.layout != torch.strided or tensor.is_quantized or tensor.is_meta or type(tensor) not in _PLAIN:
            path = "/".join(map(str, name)) if isinstance(name, tuple) else name
            raise CheckpointError(
                f"{path!r} is a {type(tensor).__name__} ({tensor.layout}), which cannot be saved; dense ones can."
            )
        alone = not tensor.numel() or tensor.is_conj() or tensor.is_neg()
        start = int(tensor.data_ptr() - tensor.storage_offset() * tensor.element_size())
        groups.setdefault(None if alone else (start, tensor.device), []).append(name)
    return groups


def _end(tensor: Tensor) -> int:
    """How far into its memory a tensor reaches, in elements of its own and then in bytes.

    Memory that came from elsewhere may have several storages that begin alike; the longest holds them all.
    """
    steps = zip(tensor.shape, tensor.stride(), strict=True)
    reach = tensor.numel() if tensor.is_contiguous() else 1 + sum((size - 1) * stride for size, stride in steps)
    return int((tensor.storage_offset() + reach) * tensor.element_size())
