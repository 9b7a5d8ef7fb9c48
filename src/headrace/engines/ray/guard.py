"""Ends the processes of a private cluster and removes its files, even if the program that started it was killed."""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

PATIENCE_S = 5.0  # within which the processes of a cluster end by themselves


@contextmanager
def guarding(mark: str, directory: Path) -> Iterator[None]:
    """Nothing is left afterwards, however this program ends.

    `mark`: what all processes of the cluster have in their environment; `directory`: where they keep their files.
    """
    command = [sys.executable, "-I", "-S", __file__, mark, str(directory)]
    guard = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)  # Ctrl-C is not for it
    try:
        yield
    finally:
        end_those_left(mark)
        shutil.rmtree(directory, ignore_errors=True)
        assert guard.stdin is not None
        guard.stdin.close()
        guard.wait()


def end_those_left(mark: str, patience_s: float = PATIENCE_S) -> None:
    """Waits until no process has a text in its environment, and ends who stays."""
    end = time.monotonic() + patience_s
    while (left := _marked(mark)) and time.monotonic() < end:
        time.sleep(0.02)
    for process in left:
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)


def _marked(mark: str) -> list[int]:
    """Processes other than this one; none where the system does not tell."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):
            if int(entry.parent.name) != os.getpid() and mark.encode() in entry.read_bytes():
                found.append(int(entry.parent.name))
    return found


if __name__ == "__main__":
    sys.stdin.read()  # it ends when the program does
    end_those_left(sys.argv[1], 1.0)
    shutil.rmtree(sys.argv[2], ignore_errors=True)
