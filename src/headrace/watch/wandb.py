"""The reports of a training as the history of a run of Weights & Biases."""

from __future__ import annotations

import struct
import uuid
from collections.abc import Iterable, Iterator
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import ConfigError
from ..store.rows import Row
from .tracker import Tracker, numbers, require, settings

if TYPE_CHECKING:
    from .info import Info

_OURS = ("id", "resume", "config")
_EXIT = {"finished": 0, "interrupted": 255, "failed": 1}
"""Exit codes as W&B gives them itself: 255 after Ctrl-C."""
_BLOCK, _HEAD = 1 << 15, 7  # bytes of a block, and of what a file or a piece of a record begins with
_WHOLE, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4


class WandB(Tracker):
    """Settings as the config, and every number at its step; a training that goes on, goes on in the same W&B run.

    `project`, `name` (else that of the run's directory) and what else `wandb.init` takes, as in `mode="offline"`.
    Test scores are in the summary. Offline, every start has a file of its own, which goes on after the last step
    of those before; what W&B had not written when a process was killed is passed on again.
    """

    def __init__(self, project: str | None = None, name: str | None = None, **options: Any) -> None:
        super().__init__()
        require("WandB", "wandb")
        if taken := sorted(set(_OURS) & options.keys()):
            raise ConfigError(
                f"WandB sets {' and '.join(taken)} by itself: a training goes on in the run that it began."
            )
        self._options = {"project": project, "name": name, **options}
        self._run: Any = None
        self._known = -1  # the last step that W&B has

    def begin(self, info: Info) -> None:
        import wandb

        self.id = self.id or uuid.uuid4().hex[:16]
        given: dict[str, Any] = {"config": settings(info), "allow_val_change": True}  # limits may have grown
        given["reinit"] = "create_new"  # a run of the user's own stays what it is
        given |= {name: value for name, value in self._options.items() if value is not None}
        if info.run is not None:
            given.setdefault("name", info.run.name)
        self._run = wandb.init(id=self.id, resume="allow", **given)
        self._known = self._run.step - 1
        if self._run.offline:
            found = Path(self._run.settings.wandb_dir).glob(f"offline-run-*-{self.id}/*.wandb")
            self._known = max((step for path in found for step in _steps(path)), default=-1)

    def send(self, rows: Iterable[Row]) -> None:
        for row in rows:
            found = numbers(row)
            if row["step"] > self._known:
                self._run.log({"epoch": row["epoch"], **found}, step=row["step"], commit=True)
                self._known = row["step"]
            if tested := {key: value for key, value in found.items() if key.startswith("test/")}:
                self._run.summary.update(tested)

    def end(self, state: str) -> None:
        self._run.finish(exit_code=_EXIT[state])


def _steps(path: Path) -> Iterator[int]:
    """The steps that a file of W&B's holds."""
    record_of = import_module("wandb.proto.wandb_internal_pb2").Record.FromString
    for data in _records(path.read_bytes()):
        record = record_of(data)
        if record.HasField("history"):
            yield record.history.step.num


def _records(data: bytes) -> Iterator[bytes]:
    """The records of a file as LevelDB writes its log, in pieces that no block divides, up to one that is cut short."""
    record, at = b"", _HEAD
    while at + _HEAD <= len(data):
        if _BLOCK - at % _BLOCK < _HEAD:
            at += _BLOCK - at % _BLOCK
            continue
        _, length, kind = struct.unpack("<IHB", data[at : at + _HEAD])
        piece = data[at + _HEAD : at + _HEAD + length]
        if len(piece) < length or kind not in (_WHOLE, _FIRST, _MIDDLE, _LAST):
            return
        record = piece if kind in (_WHOLE, _FIRST) else record + piece
        if kind in (_WHOLE, _LAST):
            yield record
        at += _HEAD + length
