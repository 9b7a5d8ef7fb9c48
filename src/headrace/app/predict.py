"""Predictions on files: a file read as the training data were, and what the model answers, as columns."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor

from ..adapters.adapt import as_data
from ..adapters.compose import map as map_rows
from ..data.arrays import ArrayTable
from ..data.encoding import Encoding
from ..data.maps import Mapped, unwrapped
from ..data.reader import Reader
from ..data.source import Table
from ..errors import ConfigError, RunError, SourceError
from ..formats.table import open_like, open_table
from ..formats.write import replacing
from ..loss.base import OF_CLASSES
from ..loss.objective import Objective
from ..loss.task import likeliest, yes_or_no
from ..step.check import same_streams
from ..train.trainer import Trainer

CLASS, PROBABILITY = "class", "probability"


def like_training(trainer: Trainer, train: Any, path: str, name: str, *, targets: bool = True) -> Table:
    """The rows of a file as the training data are; without `targets`, only what the model is given.

    The model knows how the data of its run were read. The maps of `train` are applied to these rows too.
    """
    table = _table(train)
    encoding = trainer.encoding or (None if table is None else table.encoding)
    if encoding is None:
        if train is None:
            raise RunError(
                f"the run does not know how to read {path}: its training data were batches. Open the file, "
                "hr.open_table(path, ...), and predict on the table."
            )
        return open_table(path)
    changes = [] if table is None else unwrapped(table)[1]
    if len(changes) == len(encoding.maps):  # they are at hand
        encoding = replace(encoding, maps=())
    inputs = _inputs(trainer, encoding, mapped=bool(changes))
    others = {stream.name for stream in encoding.streams} - inputs
    try:
        opened = open_like(path, encoding, inputs, () if targets else others)
        there = {stream.name for stream in opened.streams}
        same_streams([each for each in encoding.streams if targets or each.name in there], opened.streams, name)
        return _mapped(opened, changes)
    except SourceError:
        if targets or not changes:
            raise
        return _mapped(open_like(path, encoding, inputs), changes)  # a map may read targets, too


def _table(train: Any) -> Table | None:
    """The table that training data are read from, if there is one."""
    data = None if train is None else as_data(train)
    table = data.table if isinstance(data, Reader) else data
    return table if isinstance(table, Table) else None


def _inputs(trainer: Trainer, encoding: Encoding, mapped: bool) -> set[str]:
    """The streams that the model is given: all but the targets, or what `inputs=` says unless maps stand between."""
    call = next(iter(trainer.eval_objectives.values())).call
    names = {stream.name for stream in encoding.streams}
    if mapped or call.inputs is None or call.inputs == "batch":
        return names - call.targets
    paths = [call.inputs] if isinstance(call.inputs, str) else call.inputs
    return names & {path.partition(".")[0] for path in (paths.values() if isinstance(paths, Mapping) else paths)}


def _mapped(table: Table, changes: Sequence[Mapped]) -> Table:
    for changed in changes:
        table = map_rows(table, changed.change)
    return table


# --- what the model answers --------------------------------------------------------------------------------


def answers_of(trainer: Trainer, train: Any, outputs: Any) -> ArrayTable:
    """The outputs of a model as columns, with a row for each row that was read."""
    judged = _judged(next(iter(trainer.eval_objectives.values())), outputs)
    table = _table(train)
    known = {**({} if table is None else table.categories), **trainer.categories}  # those of the run come first
    names = known.get(trainer.target) if judged else None
    return ArrayTable({**_of_outputs(outputs), **judged}, categories={CLASS: names} if names else None)


def write_csv(table: ArrayTable, path: Path) -> None:
    """A column for each number of a row: output_0, output_1 and so on."""
    import pyarrow as pa
    from pyarrow import csv

    flat: dict[str, Any] = {}
    for name, column in table.rows(0, len(table)).fields.items():
        if not isinstance(column, Tensor):
            raise ConfigError(
                f".csv has one number in each place, and {name} is a {type(column).__name__}. Use .arrow."
            )
        numbers = column.reshape(len(column), -1)
        of = [f"{name}_{k}" for k in range(numbers.shape[1])] if column.dim() > 1 else [name]
        flat |= {each: pa.array(numbers[:, k].numpy()) for k, each in enumerate(of)}
    for name, words in table.categories.items():
        flat[name] = pa.array([words[code] for code in flat[name].to_pylist()])
    with replacing(path) as beside, open(beside, "wb") as file:
        csv.write_csv(pa.table(flat), file)


def _of_outputs(outputs: Any) -> dict[str, Any]:
    if isinstance(outputs, Mapping):
        return {str(name): column for name, column in outputs.items()}
    if isinstance(outputs, tuple):
        return {f"output_{k}": column for k, column in enumerate(outputs)}
    return {"output": outputs}


def _judged(objective: Objective, outputs: Any) -> dict[str, Tensor]:
    """The likeliest class of every row, and how likely it is; nothing where there is no one class for a row."""
    if objective.reads in (None, "numbers") or not isinstance(scored := objective.scored(outputs), Tensor):
        return {}
    if objective.reads in OF_CLASSES and scored.dim() == 2:
        code, probability = likeliest(scored, objective.reads)
    elif objective.reads not in OF_CLASSES and scored.numel() == len(scored):
        code, probability = yes_or_no(scored.reshape(-1), objective.reads)
    else:
        return {}
    return {CLASS: code, PROBABILITY: probability}
