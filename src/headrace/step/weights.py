"""A model's weights, from a run and into a model like the one that was trained; and the hash of a frozen base."""

import hashlib
import json
import warnings
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..arena.sharding import fitted, is_sharded, local
from ..arena.vectors import plain_name
from ..data.encoding import Encoding
from ..errors import CheckpointError, RunError
from ..formats.documents import encoding_in
from ..store import codec
from ..store.checkpoints import Store
from ..store.contents import MODEL, TRAINER, TRAINER_TENSORS, Contents
from ..store.named import run_path
from ..store.run import CHECKPOINTS, run_id
from ..store.shape import COUNT, DICT, TEXT, check, maybe
from ..workers.strategy import Strategy

_ENCODING = "_headrace_encoding"  # an attribute of the model: copies of it, and other trainers, know them too


def load_weights(model: nn.Module, run: str | Path, *, which: str | int | None = None, strict: bool = True) -> int:
    """Loads the weights of a run into a model, and returns their step.

    Afterwards the model remembers the categories of the run, and its trainer reads strings by them: see
    `Trainer.categories`.

    Args:
        model: a model like the one that was trained.
        run: the directory of the run.
        which: "best", "last" or a step. By default the best, if a callback marked one, else the last.
        strict: `False` loads only the tensors whose names and shapes fit, and warns about the others.
    """
    contents = saved_weights(run_path(run), which)
    give_weights(model, contents, run, strict)
    return contents.step


def give_weights(model: nn.Module, contents: Contents, run: str | Path, strict: bool = True) -> None:
    """Gives a model the weights of a checkpoint that has been read from a run: see `load_weights`."""
    saved: Mapping[str, Any] = contents.tensors_of(MODEL)
    base = check(contents.document(TRAINER).get("base"), maybe({"names": [TEXT], "hash": TEXT}), "base")
    if strict or base is not None:
        saved = completed(saved, base, model, Strategy())
    if strict:
        check_model(saved, model.state_dict())
    else:
        own = {plain_name(name): value for name, value in model.state_dict().items() if isinstance(value, Tensor)}
        fits = {name: value for name, value in saved.items() if name in own and own[name].shape == value.shape}
        if not fits:
            raise CheckpointError(f"{run} and the model have no weight in common: names or shapes all differ.")
        there, here = ({name: held[name] for name in held if name not in fits} for held in (saved, own))
        if there or here:
            warnings.warn(
                f"{len(fits)} of {len(own)} tensors of the model were loaded from {run}: {_some([*fits])}. "
                f"Not loaded:\n  {_listed(_differences(there, here))}",
                stacklevel=3,
            )
        saved = fits
    document = contents.document(TRAINER)
    known = as_encoding(document.get("encoding"))
    load_model(model, {**saved, **extra_of(contents)} if strict else saved, strict=False)
    remember_encoding(model, known if len(saved) >= len(contents.tensors[MODEL]) else None)


def remember_encoding(model: nn.Module, encoding: Encoding | None) -> None:
    """A model has been trained on data that were read so, or nobody knows how."""
    model.__dict__[_ENCODING] = encoding


def encoding_of(model: nn.Module) -> Encoding | None:
    """How the data were read that a model was trained on; `None` if it is not known.

    That of a part of it counts, where the model itself has not been trained.
    """
    return next((m.__dict__[_ENCODING] for m in model.modules() if _ENCODING in m.__dict__), None)


def as_encoding(saved: Any) -> Encoding | None:
    """An encoding as a checkpoint holds it."""
    return None if saved is None else encoding_in(codec.decode(saved, {}))


def saved_weights(run: Path, which: str | int | None) -> Contents:
    """The weights of a run's best or last checkpoint, or of that of a step, once they are verified.

    `None`: the best, if a callback marked one, else the last.
    """
    store = Store(run / CHECKPOINTS, run_id(run))
    if isinstance(which, int) and not isinstance(which, bool):
        if which not in store.steps():
            raise RunError(f"{run} has no checkpoint of step {which}. It has those of steps {store.steps()}.")
        return weights_of(store, which)
    if which not in ("best", "last", None):
        raise CheckpointError(f"which= is 'best', 'last' or a step, got {which!r}.")
    last = store.newest(_weights_only)
    if last is None:
        raise RunError(f"{run} has no checkpoint.")
    if which == "last":
        return weights_of(store, last.step)
    best = check(last.document(TRAINER).get("best"), maybe({"step": COUNT}), last.where(TRAINER, "best"))
    if best is not None:
        return weights_of(store, best["step"])
    if which is None:
        return weights_of(store, last.step)
    raise CheckpointError(
        f"{run} has no best checkpoint: nothing told good from bad. Train with EarlyStopping or BestModel, or load the "
        "last."
    )


def weights_of(store: Store, step: int) -> Contents:
    """The weights of a checkpoint, with what `extra_of` takes out of it."""
    contents = store.load(step, _weights_only)
    if "$tensor" not in json.dumps(contents.document(TRAINER).get("extra")):
        return contents
    return store.load(step, lambda name: name in (MODEL, TRAINER, TRAINER_TENSORS))


def extra_of(contents: Contents) -> dict[str, Any]:
    """What modules have saved by `get_extra_state`."""
    extra = check(contents.document(TRAINER).get("extra"), maybe(DICT), contents.where(TRAINER, "extra"))
    return dict(codec.decode(extra or {}, contents.tensors.get(TRAINER_TENSORS, {})))


def check_model(saved: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Raises unless a saved state is that of a model whose state is this now."""
    problems = _differences(saved, now)
    if any(problems.values()):
        raise CheckpointError(f"the checkpoint is of another model:\n  {_listed(problems)}")


def _differences(saved: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, list[str]]:
    """The names of tensors that only one of two states has, or that have other shapes."""
    had = {plain_name(name): _shape(value) for name, value in saved.items() if isinstance(value, Tensor)}
    own = {plain_name(name): _shape(value) for name, value in now.items() if isinstance(value, Tensor)}
    return {
        "missing in the checkpoint": [name for name in own if name not in had],
        "not in this model": [name for name in had if name not in own],
        "of another shape": [f"{n} ({had[n]} there, {own[n]} here)" for n in own if n in had and had[n] != own[n]],
    }


def _listed(problems: Mapping[str, Sequence[str]]) -> str:
    return "\n  ".join(f"{what}: {_some(names)}" for what, names in problems.items() if names)


def load_model(model: nn.Module, saved: Mapping[str, Any], strict: bool = True) -> None:
    """Gives a model the state of one like it."""
    own = model.state_dict()
    names = {plain_name(name): name for name in own}
    values = {names.get(name, name): value for name, value in saved.items()}
    fit = {
        name: fitted(value, own[name]) if isinstance(own.get(name), Tensor) else value for name, value in values.items()
    }
    model.load_state_dict(fit, strict=strict)


def _weights_only(name: str) -> bool:
    return name in (MODEL, TRAINER)


def _shape(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")


def tensors_of(model: nn.Module) -> dict[str, Tensor]:
    """Everything that a model's state is made of, by name."""
    saved = {name: value for name, value in model.state_dict().items() if isinstance(value, Tensor)}
    return {**saved, **dict(model.named_buffers())}


MODULUS = 1 << 128
Base = Mapping[str, Any]
"""The names of the tensors of a base, and their hash."""


def base_of(model: nn.Module, names: Collection[str], strategy: Strategy) -> Base:
    """The base that consists of these tensors.

    Its hash is the sum of the hashes of all rows, so that workers with shards add up theirs. They call this together.
    """
    sharded = common = 0
    tensors = {plain_name(name): value for name, value in model.state_dict().items() if plain_name(name) in names}
    for name, value in tensors.items():
        if is_sharded(value):
            sharded += _hash(name, local(value), strategy.part.of(value.shape[0])[0])
        else:
            common += _hash(name, value, 0)
    return {"names": sorted(tensors), "hash": f"{strategy.add_up(sharded, common) % MODULUS:032x}"}


def completed(
    saved: Mapping[str, Any], base: Base | None, model: nn.Module, strategy: Strategy | None
) -> Mapping[str, Any]:
    """Saved weights with those of the base, which the model has; raises if it has another one.

    Without a strategy only names are compared.
    """
    if base is None:
        return saved
    state = {plain_name(name): value for name, value in model.state_dict().items()}
    missing = sorted(set(base["names"]) - set(state))
    if missing or (strategy is not None and base_of(model, base["names"], strategy) != base):
        why = f"it has no {', '.join(missing[:3])}" if missing else "its values differ"
        raise CheckpointError(
            "the checkpoint has what was trained, without the frozen base, and this model has another base than the "
            f"one that was trained on: {why}. Load that base into the model first."
        )
    return {**{name: state[name] for name in base["names"]}, **saved}


def _hash(name: str, value: torch.Tensor, first: int) -> int:
    """The sum of the hashes of rows, of which the first has this number."""
    rows, total = value.detach().cpu().contiguous(), 0
    if not rows.numel():  # as a worker has it of a sharded tensor with few rows
        return 0
    rows = rows.reshape(len(rows) if rows.ndim else 1, -1)
    for number, row in enumerate(rows.view(torch.uint8).numpy()):
        digest = hashlib.blake2b(f"{name}/{first + number}/".encode(), digest_size=16)
        digest.update(row.data)
        total += int.from_bytes(digest.digest(), "little")
    return total
