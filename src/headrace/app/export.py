"""A trained model for other programs: plain weights, ONNX, or torch's own exchange format."""

import importlib.util
import os
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..data.batch import Batch
from ..data.feed import Feed
from ..data.reader import rewound
from ..errors import ConfigError, ModelError, RunError
from ..loss.objective import Objective
from ..step.arguments import source_on
from ..step.weights import saved_weights
from ..store import disk
from ..store.codec import tensor_pieces
from ..store.contents import MODEL, TRAINER
from .recipe import Recipe, load

SUFFIXES = {"safetensors": ".safetensors", "onnx": ".onnx", "torch": ".pt2"}


def export(
    run: Path,
    out: Path,
    *,
    to: str,
    which: str | int | None,
    recipe: str | None,
    trust: bool,
) -> int:
    """Writes the weights of a run, or the whole model that its recipe makes, with these weights; the step they are of.

    `to` is a key of `SUFFIXES`. Formats that hold the model need the model: for `recipe` and `trust` see `load`.
    """
    if out.exists():
        raise RunError(f"{out} is there already. Name another file, or remove it first.")
    folder = next(each for each in out.absolute().parents if each.exists())
    if not folder.is_dir() or not os.access(folder, os.W_OK):
        raise RunError(f"{out} cannot be written: {folder} takes no files. Name another.")
    if to == "onnx":
        _check_onnx()
    if to == "safetensors":
        contents = saved_weights(run, which)
        if contents.document(TRAINER).get("base") is not None:
            raise RunError(
                f"{run} has what was trained, without the frozen base. Load it into a model with that base by "
                "hr.load_weights, and save that model."
            )
        step, write = contents.step, partial(_write_weights, contents.tensors_of(MODEL))
    else:
        made = load(run, recipe=recipe, which=which, trust=trust)
        assert made.step is not None
        step = made.step
        write = partial(_write_onnx if to == "onnx" else _write_torch, *_example(made))
    beside = out.with_name(f".{out.stem}.new{out.suffix}")
    try:
        disk.make_dirs(out.absolute().parent)
        beside.unlink(missing_ok=True)  # it may be a link to somewhere else
        write(beside)
        disk.replace(beside, out)
    except OSError as error:
        raise disk.failure(error, f"writing {out}", out.absolute().parent, 0) from error
    finally:
        with suppress(OSError):
            beside.unlink()
    return step


def _check_onnx() -> None:
    """Raises unless what torch needs to write ONNX is installed."""
    missing = [name for name in ("onnx", "onnxscript") if importlib.util.find_spec(name) is None]
    if missing:
        needed = " and ".join(missing)
        raise ConfigError(f'ONNX needs {needed}, which is not installed: pip install "headrace[onnx]".')


def _example(recipe: Recipe) -> tuple[nn.Module, tuple[Tensor, ...]]:
    """The model as a module of plain tensors, and tensors to call it with: two rows of the training data."""
    trainer = recipe.trainer
    source = source_on(recipe.train, trainer.device, "train")
    objective = next(iter(trainer.eval_objectives.values()))
    with rewound(source), Feed(source, trainer.device, batch_size=2) as feed:
        batch = next(iter(feed))
    names = [name for name in batch.fields if name not in objective.call.targets]
    rows = [field for name in names if isinstance(field := batch.fields[name], Tensor)]
    if len(rows) != len(names):
        raise ModelError("only models of plain tensors can be exported with the model itself.")
    return _Called(trainer.model, objective, names), tuple(rows)


class _Called(nn.Module):
    """A model, called with the input streams in order as the objective calls it."""

    def __init__(self, model: nn.Module, objective: Objective, names: list[str]) -> None:
        super().__init__()
        self.model, self._objective, self._names = model, objective, names

    def forward(self, *inputs: Tensor) -> Any:
        fields = dict(zip(self._names, inputs, strict=True))
        return self._objective.outputs(self.model, Batch(fields, inputs[0].shape[0]))


def _write_weights(tensors: Mapping[str, Tensor], out: Path) -> None:
    disk.write_file(out, b"".join(tensor_pieces(out.name, tensors)))


def _write_onnx(call: nn.Module, arguments: tuple[Tensor, ...], out: Path) -> None:
    with _exporting(call, "ONNX"):
        options: dict[str, Any] = {"dynamo": True, "dynamic_shapes": _any_rows(arguments), "verbose": False}
        program = torch.onnx.export(call.eval(), arguments, **options)
    assert program is not None
    program.save(out)


def _write_torch(call: nn.Module, arguments: tuple[Tensor, ...], out: Path) -> None:
    with _exporting(call, "torch's format"):
        program = torch.export.export(call.eval(), arguments, dynamic_shapes=_any_rows(arguments))
    torch.export.save(program, out)


@contextmanager
def _exporting(call: nn.Module, to: str) -> Iterator[None]:
    """Without gradients, and without the exporters' warnings of their own workings; what fails is the model's."""
    try:
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    except Exception as error:
        kind = type(call.model).__name__
        raise ModelError(f"{kind} cannot be written as {to}: {type(error).__name__}: {error}") from error


def _any_rows(arguments: tuple[Tensor, ...]) -> Any:
    """Any number of rows will do, the same for all."""
    rows = torch.export.Dim("rows")
    return (tuple({0: rows} for _ in arguments),)
