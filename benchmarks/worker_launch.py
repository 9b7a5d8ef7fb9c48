"""A script as a user writes it: seconds from the call of `launch` until its function runs in both of two processes."""

from __future__ import annotations

import time

import headrace as hr


def begin() -> list[float]:
    """In each worker: when the function began in each of them, by the clock of this machine."""
    began = time.monotonic()
    return list(hr.here().all_gather(began))


if __name__ == "__main__":
    start = time.monotonic()
    print(max(hr.launch(begin, workers=2, engine="processes", timeout_s=60)) - start)
