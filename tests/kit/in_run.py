"""Options of a training, where a helper of tests passes on what its callers ask for."""

from dataclasses import replace
from typing import Any

import headrace as hr

OF_A_RUN = ("resume", "every", "keep", "override", "wait", "logs")


def in_run(run: Any = None, **options: Any) -> dict[str, Any]:
    """The options of a `fit`, with those that are about its run in one `hr.Run`."""
    about = {name: options.pop(name) for name in OF_A_RUN if name in options}
    return {"run": replace(hr.Run.of(run), **about), **options}
