"""Has a worker of a script killed on Ray, in a module that imports nothing: each process of a cluster imports it."""

import os
import signal
import sys
import time
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path
from typing import Any

LOSE = "HEADRACE_TESTS_LOSE"
"""The variable that names a directory: there worker 1 notes that it was killed, once, when there is a checkpoint."""
_TRAINER = "headrace.train.trainer"


def lose_once() -> None:
    """In each process of a Ray cluster, before its work: changes trainers, if it imports them."""
    sys.meta_path.insert(0, _Finder())


class _Finder:
    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if name != _TRAINER:
            return None
        sys.meta_path.remove(self)
        spec = find_spec(name)
        assert spec is not None
        assert spec.loader is not None
        load = spec.loader.exec_module

        def exec_module(module: Any) -> None:
            load(module)
            module.Trainer.fit = _watched(module.Trainer.fit)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def _watched(fit: Any) -> Any:
    def watched(self: Any, *data: Any, **options: Any) -> Any:
        import headrace as hr
        from headrace.workers.here import here

        def on_step_end(info: hr.Info) -> None:
            mark = Path(os.environ[LOSE], f"lost-{here().count}")
            if info.epoch == 2 and here().shard.index == 1 and not mark.exists():
                while not [*mark.parent.glob("*/checkpoints/*/COMMIT")]:
                    time.sleep(0.01)
                mark.touch()
                os.kill(os.getpid(), signal.SIGKILL)

        return fit(self, *data, callbacks=[hr.Lambda(on_step_end=on_step_end)], **options)

    return watched
