"""Lists the modules that some code imports, in a process of its own."""

import json
import sys
from pathlib import Path

from kit.forked import start, tell


def imported_after(code: str, at: Path) -> set[str]:
    """The top-level modules of a process that has trained with headrace and then run this code."""
    with start(_after, at, code) as child:
        assert child.ending() == 0, child.output
    return set(json.loads(child.told[-1]))


def _after(code: str) -> None:
    exec(code, {})
    tell(json.dumps(sorted({name.partition(".")[0] for name in sys.modules})))
