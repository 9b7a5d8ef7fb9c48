"""Runs a page of the documentation as a reader would: its files are written, its commands run, its output compared.

Blocks are taken in their order. A block of Python with a title is a file of this name; one of bash without is run; one
with the title "Output" is what the last of these printed. Numbers may differ a little, as on another machine; speeds
and times may differ at all; a line of three dots stands for any lines.
"""

import os
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

from kit.commands import commands
from kit.sockets import free_port

BLOCK = re.compile(r'^```(\w+)(?: title="([^"]+)")?\n(.*?)^```$', flags=re.MULTILINE | re.DOTALL)
NUMBER = re.compile(r"(?<![\w.])-?\d[\d,]*(?:\.\d+)?(?:e-?\d+)?(?![\w])")
VARIES = re.compile(
    r"[\d,.]+ samples/s|[\d.]+ (?:s|min|ms)\b|\d{4}-\d\d-\d\d \d\d:\d\d|(?<=step )[\d,]+, epoch +\d+|[\d.]+ kB"
)
OUTPUT = "Output"


@dataclass(frozen=True)
class Block:
    language: str
    title: str
    text: str
    line: int


def blocks(page: str) -> list[Block]:
    """The blocks of a page, with the line that each begins at."""
    return [Block(each[1], each[2] or "", each[3], page[: each.start(3)].count("\n")) for each in BLOCK.finditer(page)]


def run_page(page: str, room: Path, limit_s: float = 400.0) -> int:
    """Writes the files of a page into a directory, runs its commands there, and compares what they print.

    The number of outputs that were compared.
    """
    port, printed, compared = str(free_port()), "", 0
    with commands() as place:
        for block in blocks(page):
            text = block.text.replace("8000", port)
            if block.language == "python" and block.title:
                (room / block.title).write_text(text)
            elif block.language == "bash" and not block.title:
                printed = _run(text, room, place, limit_s)
            elif block.title == OUTPUT:
                problem = difference(text, printed)
                assert not problem, f"line {block.line}: {problem}\n--- printed ---\n{printed}"
                compared += 1
    return compared


def _run(text: str, room: Path, place: Path, limit_s: float) -> str:
    environment = os.environ | {
        "PATH": f"{place}:{os.environ['PATH']}",
        "OMP_NUM_THREADS": "1",
        "COLUMNS": "160",
        "NO_COLOR": "1",
    }
    done = subprocess.run(
        ["timeout", "-k", "5", str(limit_s), "bash", "-eo", "pipefail", "-c", text],  # ends what they started too
        cwd=room,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=limit_s + 10,
    )
    assert done.returncode == 0, f"{text}\nended with {done.returncode}:\n{done.stdout}"
    return done.stdout


def difference(shown: str, printed: str) -> str:
    """Where what a page shows is not what was printed; empty if it is."""
    lines = [line.rstrip() for line in printed.strip().splitlines()]
    place, anything = 0, False
    for wanted in (line.rstrip() for line in shown.strip().splitlines()):
        if wanted.strip() == "...":
            anything = True
            continue
        found = next((k for k in range(place, len(lines)) if same_line(wanted, lines[k])), None)
        if found is None or (not anything and found != place):
            there = lines[place] if place < len(lines) else "nothing"
            return f"expected {wanted!r}, got {there!r}"
        place, anything = found + 1, False
    return "" if anything or place == len(lines) else f"expected no more lines, got {lines[place]!r}"


def same_line(shown: str, printed: str) -> bool:
    """Whether two lines have the same words, and nearly the same numbers."""
    shown, printed = (VARIES.sub("<varies>", line) for line in (shown, printed))
    if NUMBER.sub("#", shown).split() != NUMBER.sub("#", printed).split():
        return False
    pairs = zip(NUMBER.findall(shown), NUMBER.findall(printed), strict=True)
    return all(_near(float(a.replace(",", "")), float(b.replace(",", ""))) for a, b in pairs)


def _near(a: float, b: float) -> bool:
    return abs(a - b) <= 0.02 + 0.05 * max(abs(a), abs(b))
