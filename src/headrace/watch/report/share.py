"""Takes out of a run's contents what says where it was trained, for a report that is given to others."""

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from .read import RunContents

_PATH = re.compile(r"(?<![\w./:])(?:~|[A-Za-z]:)?(?:[/\\][^\s/\\'\",:;()\[\]]+)+[/\\]?")
_PRIVATE = ("host", "directory", "variables", "command", "git")


def without_places(run: RunContents) -> RunContents:
    """The same contents without host, working directory, command and environment; of paths the last name stays."""
    host = str(run.facts.get("environment", {}).get("host", "")) if isinstance(run.facts, Mapping) else ""

    def clean(value: Any) -> Any:
        if isinstance(value, str):
            text = _PATH.sub(lambda match: re.split(r"[/\\]", match[0].rstrip("/\\"))[-1], value)
            return text.replace(host, "(host)") if host else text
        if isinstance(value, Mapping):
            return {key: clean(item) for key, item in value.items() if key not in _PRIVATE}
        if isinstance(value, list | tuple):
            return type(value)(clean(item) for item in value)
        return value

    parts = ("facts", "config", "recipe", "log", "missing", "parents")
    return replace(run, path=Path(run.path.name), **{part: clean(getattr(run, part)) for part in parts})
