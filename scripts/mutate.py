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
import re
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

LIMIT_S = 600.0  # of the tests of one fault: some wait 400 s for a process that never ends
FAILED = re.compile(r"^(?:FAILED|ERROR) (tests/.*?)(?: - .*)?$", re.MULTILINE)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("words", nargs="*", help="only faults with one of these words in their description")
    parser.add_argument("--result", type=Path, help="a file that gets the table")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # so that what was started ends
    chosen = [fault for fault in FAULTS if not given.words or any(word in fault.what for word in given.words)]
    with tempfile.TemporaryDirectory(prefix="headrace-mutate-") as directory:
        copy = copied(Path(directory) / "tree")
        answers = []
        for fault in chosen:
            start = time.monotonic()
            answers.append(answer_to(fault, copy))
            print(f"{time.monotonic() - start:5.0f} s  {fault.what}: {answers[-1]}", flush=True)
        found_by = sorted({answer for answer in answers if "::" in answer})
        unsound = set(run(copy, found_by, len(found_by) * LIMIT_S, "--maxfail=1000")[1]) if found_by else set()
    answers = [f"{answer} FAILS WITHOUT IT, TOO" if answer in unsound else answer for answer in answers]
    missed = sum(answer.isupper() or answer.endswith("TOO") for answer in answers)
    lines = [f"{fault.what}\n    {answer}" for fault, answer in zip(chosen, answers, strict=True)]
    lines.append(f"{len(chosen) - missed} of {len(chosen)} faults found")
    print("\n".join(lines))
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
    """The test that finds a fault, or "NOT FOUND"."""
    path, text = applied(fault, copy / "src")
    before = path.read_text()
    path.write_text(text)
    try:
        status, failed = run(copy, fault.tests, LIMIT_S, "-x")
    finally:
        path.write_text(before)
    if status is None:
        return "THE TESTS TAKE TOO LONG"
    return "NOT FOUND" if status == 0 else failed[0] if failed else f"PYTEST ENDED WITH {status}"


def run(copy: Path, tests: Sequence[str], limit_s: float, *options: str) -> tuple[int | None, list[str]]:
    """The exit status of these tests, or nothing if they had to be ended; and those that failed."""
    environment = os.environ | {"PYTHONPATH": str(copy / "src"), "OMP_NUM_THREADS": "1", "COLUMNS": "1000"}
    command = [sys.executable, "-m", "pytest", "-q", "-rfE", "--tb=no", "--hypothesis-profile=mutate", *options, *tests]
    with (
        tempfile.TemporaryFile("w+") as output,
        subprocess.Popen(
            command, cwd=copy, env=environment, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        ) as process,
    ):
        try:
            status = process.wait(limit_s)
        except subprocess.TimeoutExpired:
            status = None
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
        output.seek(0)
        return status, FAILED.findall(output.read())


if __name__ == "__main__":
    sys.exit(main())
