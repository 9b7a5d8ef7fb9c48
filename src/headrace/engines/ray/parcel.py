"""How a function and its arguments reach a worker, and how its result or its error comes back.

What belongs to the user crosses as Ray's own serialisation has it; weights cross as safetensors.
"""

import os
import re
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from ...errors import ConfigError, HeadraceError, WorkerError
from ...store.codec import parse_tensors, tensor_pieces
from ...workers.comm import Comm
from ...workers.generators import seed
from ...workers.here import speaking_as
from ..job import Job, Result, work
from .hall import Heart


@dataclass(frozen=True, slots=True)
class Place:
    """Where a program runs, and finds its modules."""

    directory: str
    path: tuple[str, ...]

    @classmethod
    def here(cls) -> "Place":
        return cls(os.getcwd(), tuple(os.path.abspath(entry) for entry in sys.path))

    def enter(self) -> None:
        """This process goes there, as far as this machine has it."""
        if os.path.isdir(self.directory):
            os.chdir(self.directory)
        sys.path.extend(entry for entry in self.path if entry not in sys.path)


Parcel = tuple[bytes, Place]
"""A function with its arguments, and where it is called."""
Outcome = tuple[bytes, list[bytes]]
"""The value of a function, and the weights of each model."""


class NeedsCenter(BaseException):
    """A worker that goes in step has been asked for a center: all of them are to be started in the other way."""


class Failure(Exception):  # noqa: N818
    """What a worker ended by, in a form that always crosses. Without a trace, it only tells of another worker."""

    def __init__(self, worker: int, workers: int, when: float, sentence: str, trace: str, pickled: bytes) -> None:
        super().__init__(worker, workers, when, sentence, trace, pickled)
        self.worker, self.workers, self.when, self.sentence, self.trace = worker, workers, when, sentence, trace
        self._pickled = pickled

    def __str__(self) -> str:
        return f"worker {self.worker} of {self.workers} failed: {self.sentence}"

    @property
    def error(self) -> Exception:
        """What the caller is to get: an error of our own as it was, anything else as a `WorkerError`."""
        error: Exception = _loads(self._pickled) if self._pickled else WorkerError(f"{self}.")
        if self.trace:
            error.add_note(f"worker {self.worker} of {self.workers} says:\n{self.trace}")
        return error


def pack(job: Job) -> Parcel:
    from ray import cloudpickle

    try:
        return cloudpickle.dumps((job.main, tuple(job.arguments))), Place.here()
    except Exception as error:
        raise ConfigError(
            f"main and its arguments have to be sent to the workers, and cannot be: {type(error).__name__}: {error}. "
            "Make within main what cannot be sent: open files, connections, threads, locks."
        ) from error


def carry_out(parcel: Parcel, worker: int, workers: int, join: Callable[[], Comm]) -> Outcome:
    """In a worker: joins the others and calls the function; its outcome. Whatever it raises is a `Failure` here."""
    try:
        function, place = parcel
        place.enter()
        main, arguments = _loads(function)
        comm = join()
        try:
            seed(worker)
            with speaking_as(comm):
                result = work(main, arguments)
            return (_dumps(result.value), [_weights(state) for state in result.weights]) if comm.leader else (b"", [])
        except NeedsCenter:  # nothing has failed: the others find out by themselves
            raise
        except BaseException as error:
            comm.tell(error)
            raise
        finally:
            comm.close()
    except NeedsCenter:
        raise
    except BaseException as error:  # an exit is one too, and a worker that has failed says nothing else any more
        raise _failure(error, worker, workers) from None


def unpack(outcome: Outcome) -> Result:
    value, weights = outcome
    return Result(_loads(value), [parse_tensors(data, "weights", len(data)) for data in weights])


def first(failures: Sequence[Failure]) -> Failure | None:
    """Of what several workers ended by, the cause: those that only tell of others come last."""
    return min(failures, key=lambda failure: (not failure.trace, failure.when), default=None)


def ending(failure: Exception, heart: Heart | None) -> str:
    """How a worker ended that could not tell, from what Ray says of it, and what was heard of it last."""
    where = "" if heart is None else f" at step {heart[2]} ({heart[3]})"
    if "Timeout" in type(failure).__name__:
        return f"has stopped{where}: nothing has been heard of it for too long"
    found = dict(re.findall(r"^\s*(pid|ip): (\S+)", str(failure), re.MULTILINE))
    which = f" {found['pid']} on {found['ip']}" if {"pid", "ip"} <= found.keys() else ""
    return f"was lost{where}: its process{which} has ended, or its machine is gone"


def _weights(state: dict[str, Tensor]) -> bytes:
    return b"".join(tensor_pieces("weights", state))


def _failure(error: BaseException, worker: int, workers: int) -> Failure:
    trace = "" if isinstance(error, WorkerError) else "".join(traceback.format_exception(error)).rstrip()
    sentence = f"{type(error).__name__}: {error}".rstrip(": .")
    return Failure(worker, workers, time.time(), sentence, trace, _pickled(error))


def _pickled(error: BaseException) -> bytes:
    """An error of our own, if it crosses; one that holds something else may not."""
    if isinstance(error, HeadraceError):
        with suppress(Exception):
            data = _dumps(error)
            _loads(data)
            return data
    return b""


def _dumps(value: Any) -> bytes:
    from ray import cloudpickle

    data: bytes = cloudpickle.dumps(value)
    return data


def _loads(data: bytes) -> Any:
    from ray import cloudpickle

    return cloudpickle.loads(data)
