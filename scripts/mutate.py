#!/usr/bin/env python
"""Puts faults into a copy of the library, one by one, and says which of them the tests find.

Every fault is a text that stands in the library once, what stands there instead, and the tests that have to fail. They
are listed in `tests/faults.py`; `tests/GUARANTEES.md` says what they belong to.

    scripts/mutate.py                 # all faults: half an hour on two cores
    scripts/mutate.py sync hash       # those with one of these words in their description
    scripts/mutate.py --result FILE   # writes the table into a file, too
"""

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from faults import FAULTS, Fault, applied  # noqa: E402

LIMIT_S = 240.0  # of the tests of one fault: those that hang have found it
TESTS_FAILED = 1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("words", nargs="*", help="only faults with one of these words in their description")
    parser.add_argument("--result", type=Path, help="a file that gets the table")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # so that what was started ends
    chosen = [fault for fault in FAULTS if not given.words or any(word in fault.what for word in given.words)]
    with tempfile.TemporaryDirectory(prefix="headrace-mutate-") as directory:
        copy = copied(Path(directory) / "tree")
        tests = sorted({test for fault in chosen for test in fault.tests})
        if not given.words and (status := run(copy, tests, 10 * LIMIT_S)) != 0:
            print(f"the tests fail without any fault (exit {status}): nothing can be said", file=sys.stderr)
            return 2
        lines, missed = [], 0
        for number, fault in enumerate(chosen, 1):
            start = time.monotonic()
            answer = answer_to(fault, copy)
            missed += answer != "found"
            lines.append(f"{number:3}  {answer:9}  {time.monotonic() - start:5.0f} s  {fault.what}")
            print(lines[-1], flush=True)
    lines.append(f"{len(chosen) - missed} of {len(chosen)} faults found")
    print(lines[-1])
    if given.result is not None:
        given.result.write_text("\n".join(lines) + "\n")
    return 1 if missed else 0


def copied(where: Path) -> Path:
    """A copy of the files that git knows."""
    names = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    for name in filter(None, names.split("\0")):
        if (ROOT / name).is_file():
            (where / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, where / name)
    return where


def answer_to(fault: Fault, copy: Path) -> str:
    """Whether the tests of a fault find it: "found", "NOT FOUND", or why that is not known."""
    path, text = applied(fault, copy / "src")
    before = path.read_text()
    path.write_text(text)
    try:
        status = run(copy, fault.tests, LIMIT_S)
    finally:
        path.write_text(before)
    return {0: "NOT FOUND", TESTS_FAILED: "found", None: "found"}.get(status, f"exit {status}")


def run(copy: Path, tests: Sequence[str], limit_s: float) -> int | None:
    """The exit status of these tests; nothing if they had to be ended."""
    environment = os.environ | {"PYTHONPATH": str(copy / "src"), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "pytest", "-q", "-x", "--durations=0", *tests]
    with subprocess.Popen(
        command, cwd=copy, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    ) as process:
        try:
            return process.wait(limit_s)
        except subprocess.TimeoutExpired:
            return None
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main())
