"""A process that parses pieces of a file: it is told of one in a line of JSON, and answers with another."""

import json
import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from .block import parse_block
from .keep import write_part
from .layout import Layout
from .pieces import read_at


def main() -> None:
    """Ends when nobody asks any more."""
    torch.set_num_threads(1)
    task = json.loads(sys.stdin.readline())
    layout = Layout.from_described(task["layout"])
    descriptor = os.open(task["path"], os.O_RDONLY | os.O_CLOEXEC)
    for line in sys.stdin:
        start, stop = json.loads(line)
        block = read_at(descriptor, start, stop - start)
        print(json.dumps(_answer(block, start, task, layout)), flush=True)


def _answer(block: bytes, start: int, task: dict[str, Any], layout: Layout) -> dict[str, Any]:
    parsed = parse_block(block, layout, task["ids"], skip=task["skip"])
    part = ""
    if parsed.fields and parsed.rows:
        part = str(Path(task["parts"]) / f"{start}.arrow")
        write_part(Path(part), [column.stream for column in layout.columns], parsed.fields)
    said = {name: getattr(parsed, name) for name in ("lines", "sequences", "dropped", "ids", "keeps_first", "seen")}
    problem = asdict(parsed.problem) if parsed.problem else None
    return {**said, "id_at": parsed.id_at, "problem": problem, "part": part}


if __name__ == "__main__":
    main()
