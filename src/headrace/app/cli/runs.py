"""What looks at runs: `runs` and `report`."""

import json as as_json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

from ...errors import RunError
from ..parameters import flag_of
from .options import of_kind
from .output import iso_time, print_result, short_time, table

DEPTH = 3  # directories below the one that is named
WIDTH = 40  # characters of an argument
Page = Annotated[Path, of_kind(".html")]


def runs(dir: str = "runs", /, *, json: bool = False) -> int:
    """Lists the runs in a directory, with the arguments of their recipes that are not the same in all of them.

    Args:
        dir: where to look
        json: print JSON, for a program to read
    """
    from ...store.named import url_of

    if (url := url_of(dir)) is None and not Path(dir).is_dir():
        raise RunError(f"there is no directory {dir}. Name one that holds runs.")
    listed = _runs_in(Path(dir)) if url is None else _in_store(url)
    found = [each | {"changed": iso_time(each["changed"])} for each in listed]
    varied = _varied([each["arguments"] for each in found])
    forks = any(each["parents"] for each in found)
    lines = [
        [
            *(each["run"], each["state"], str(each["epoch"] or 0), _best(each), short_time(each["changed"])),
            *([", ".join(Path(name).name for name in each["parents"]) or "-"] if forks else []),
            *(_shown(each["arguments"][name])[:WIDTH] if name in each["arguments"] else "-" for name in varied),
        ]
        for each in found
    ]
    text = table(
        ["run", "state", "epochs", "best", "last change", *(["goes on from"] if forks else []), *map(flag_of, varied)],
        lines,
    )
    print_result(json, found, text if found else f"{dir} has no runs")
    return 0


def _runs_in(where: Path, depth: int = DEPTH) -> Iterator[dict[str, Any]]:
    """What a table shows of the runs in a directory and in those below it, by name."""
    from ...watch.report.read import overview_of

    if (where / "run.json").is_file():
        yield overview_of(where)
    elif depth and os.access(where, os.R_OK | os.X_OK):
        for entry in sorted(where.iterdir()):
            if entry.is_dir() and not entry.is_symlink() and not entry.name.startswith("."):
                yield from _runs_in(entry, depth - 1)


def _in_store(url: str) -> Iterator[dict[str, Any]]:
    """The runs below a URL. Of a training that is not known to have ended, nothing tells if it has been killed."""
    from ...store.mirror import overviews

    for name, facts in overviews(url).items():
        state = "running or killed" if facts["state"] == "running" else facts["state"]
        yield facts | {"run": f"{url.rstrip('/')}/{name}", "state": state}


def _varied(runs: Sequence[dict[str, Any]]) -> list[str]:
    """The arguments that have different values in some of the runs."""
    values: dict[str, set[str]] = {}
    for arguments in runs:
        for name, value in arguments.items():
            values.setdefault(name, set()).add(_shown(value))
    return [name for name in values if name.isidentifier() and len(values[name]) > 1]


def _shown(value: Any) -> str:
    return value if isinstance(value, str) and value.isprintable() else as_json.dumps(value)


def _best(facts: dict[str, Any]) -> str:
    """The best number, by its key."""
    best = facts["best"]
    return "-" if best["value"] is None else f"{best['key']} {best['value']:.4g}"


def report(run: str, /, *, out: Page | None = None, share: bool = False, json: bool = False) -> int:
    """Writes a run as one page that needs nothing but itself.

    Args:
        run: the directory of a run
        out: the page (RUN/report.html)
        share: leave out the host, the command, the environment and the directories
        json: print JSON, for a program to read
    """
    from ...watch.report import write

    page = write(run, out, share)
    print_result(json, {"report": str(page)}, f"{page}: open it in a browser")
    return 0
