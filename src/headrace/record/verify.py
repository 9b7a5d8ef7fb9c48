"""Checks a run: the hashes of all its checkpoints, and stretches of the training, which are made again."""

from __future__ import annotations

import hashlib
import json
import random
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from ..errors import CheckpointError, ConfigError
from ..store import codec, disk
from ..store.checkpoints import Store
from ..store.contents import MANIFEST, MODEL, OPTIMIZER
from ..store.document import LARGE_BYTES, read_document
from ..store.run import CHECKPOINTS, METRICS, RUN, begins_with, machine, run_id
from ..train.checkpoint import Checkpoint, decode
from ..train.trainer import Trainer
from ..workers.here import here
from .replay import advance, in_workers, replaying

if TYPE_CHECKING:
    from .record import Record

COMPARED = ("rates", "counters", "source", "frozen", "modules")
OF_STEP = ("updates", "skipped", "scaler")


@dataclass(slots=True)
class Stretch:
    """The updates between two checkpoints, made again: whether they gave the second one, or what differs."""

    start: int
    stop: int
    differs: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Certificate:
    """What was found: `ok`, the checkpoints with their chained hashes, and the stretches that were made again.

    Each link of the chain is the SHA-256 of the link before it and of the manifest, which has the hashes of all files.
    """

    run: str
    id: str
    checkpoints: dict[int, str]
    corrupt: dict[int, str]
    stretches: list[Stretch]
    machine: dict[str, Any]
    versions: dict[str, Any]
    signature: str = ""

    @property
    def ok(self) -> bool:
        """Whether there is a checkpoint, nothing is damaged, and every stretch gave what the run has."""
        return bool(self.checkpoints) and not self.corrupt and not any(stretch.differs for stretch in self.stretches)

    def __str__(self) -> str:
        lines = [f"{self.run}: {len(self.checkpoints)} checkpoints are as they were written"]
        lines += [f"step {step}: {why}" for step, why in self.corrupt.items()]
        for each in self.stretches:
            found = f"differs in {', '.join(each.differs[:5])}" if each.differs else "the same bits"
            lines.append(f"steps {each.start} to {each.stop}, made again: {found}")
        return "\n".join(lines)

    def write(self, path: str | Path) -> None:
        """Writes it as JSON."""
        Path(path).write_text(json.dumps({"ok": self.ok, **asdict(self)}, indent=2) + "\n", encoding="utf-8")


def certify(
    record: Record,
    trainer: Trainer | None,
    train: Any,
    segments: int,
    seed: int,
    key: str | Path | None,
    fit: Mapping[str, Any],
) -> Certificate:
    """See `Record.verify`."""
    store = Store(record.path / CHECKPOINTS, record.id)
    chain, corrupt, link = {}, {}, b""
    for place, why in store.problems().items():
        if why:
            corrupt[place.step] = why
            continue
        with suppress(FileNotFoundError):  # its trainer is at work, and has removed it since
            link = hashlib.sha256(link + (store.path / place.name / MANIFEST).read_bytes()).digest()
            chain[place.step] = link.hex()
    if chain and (changed := _changed_reports(record, max(chain))):
        corrupt[max(chain)] = changed
    pairs = list(pairwise(chain))
    chosen = sorted(random.Random(seed).sample(pairs, min(segments, len(pairs)))) if trainer is not None else []
    stretches = [
        in_workers(record, start, trainer, _again, record, start, stop, trainer, train, fit)
        for start, stop in chosen
        if trainer is not None
    ]
    versions = read_document(record.path / RUN).get("versions", {})
    about = machine(trainer.device) if trainer is not None else {}
    found = Certificate(str(record.path), record.id, chain, corrupt, stretches, about, versions)
    found.signature = _signed(found, Path(key)) if key is not None else ""
    return found


def _changed_reports(record: Record, step: int) -> str:
    """What is wrong with the reports of a run, whose hash a checkpoint has; nothing if they are the same."""
    try:
        saved = record.checkpoint(step).common["history"]
    except (CheckpointError, OSError):  # its trainer is at work, and has removed it since
        return ""
    with suppress(OSError):  # it is not there, or no file
        if begins_with(disk.read_file(record.path / METRICS, LARGE_BYTES), saved):
            return ""
    return f"{METRICS} is not as it was when this checkpoint was saved"


def _again(record: Record, start: int, stop: int, trainer: Trainer, train: Any, fit: Mapping[str, Any]) -> Stretch:
    """Trains from one checkpoint to the next, and compares the state with that of the run."""
    with replaying(record, start, trainer, train, fit) as (loop, place):
        advance(loop, stop)
        loop.close()
        return Stretch(start, stop, differences(record.path, place, stop) if here().leader else [])


def differences(one: Path, other: Path, step: int) -> list[str]:
    """What differs between the checkpoints of a step in two runs, by names of tensors and of parts."""
    loaded = [Store(run / CHECKPOINTS, run_id(run)).load(step) for run in (one, other)]
    found = []
    for file in (MODEL, OPTIMIZER):
        a, b = (contents.tensors.get(file, {}) for contents in loaded)
        found += [f"{file}: {name}" for name in sorted(a | b) if digest_of(a.get(name)) != digest_of(b.get(name))]
    one_state, other_state = map(_parts, map(decode, loaded))
    common = [name for name in one_state if name in other_state]  # fewer workers may make it again
    return found + [name for name in common if digest_of(one_state[name]) != digest_of(other_state[name])]


def _parts(state: Checkpoint) -> dict[str, Any]:
    """What a replay has to give again beside weights and optimizers, by name."""
    parts = {part: _comparable(state.common[part]) for part in COMPARED}
    parts |= {name: state.common["step"][name] for name in OF_STEP}
    return parts | {f"random state of worker {n}": own["rng"] for n, own in enumerate(state.workers)}


def _comparable(value: Any) -> Any:
    """A part without what belongs to the clock or to the data, which are compared by themselves."""
    if not isinstance(value, Mapping):
        return value
    return {name: _comparable(each) for name, each in value.items() if name not in ("minutes", "fingerprint")}


def digest_of(value: Any) -> str:
    """A value as text, tensors by their bytes."""
    tensors: codec.Tensors = {}
    text = json.dumps(codec.encode(value, tensors, "value"), sort_keys=True, default=str)
    digest = hashlib.sha256(text.encode())
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def _signed(certificate: Certificate, key: Path) -> str:
    """The signature of the certificate by a key of ssh."""
    text = json.dumps({"ok": certificate.ok, **asdict(certificate)}, sort_keys=True).encode()
    command = ["ssh-keygen", "-Y", "sign", "-f", str(key), "-n", "headrace"]
    try:
        done = subprocess.run(command, input=text, capture_output=True, timeout=60, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        why = getattr(error, "stderr", b"") or str(error).encode()
        raise ConfigError(
            f"the certificate cannot be signed with {key}: {why.decode(errors='replace').strip()}"
        ) from None
    return done.stdout.decode()
