"""Predictions on files: a file read as the training data were, and what the model answers, as columns."""

from collections.abc import Mapping, Sequence
from typing import Any, BinaryIO

from torch import Tensor

from ..adapters.adapt import as_data
from ..adapters.compose import map as map_rows
from ..data.arrays import ArrayTable
from ..data.batch import Stream
from ..data.maps import Changed
from ..data.read_by import ReadBy
from ..data.reader import Reader
from ..data.source import Table
from ..errors import ConfigError, DataError, SourceError
from ..formats.described import Described, unwrapped
from ..formats.files import FileTable
from ..formats.nulls import indicated
from ..formats.select import are_numbers, begins_with_numbers, no_names
from ..formats.table import column_names, open_table
from ..loss.base import OF_CLASSES
from ..loss.objective import Objective
from ..loss.task import likeliest, yes_or_no
from ..step.check import same_streams
from ..train.trainer import Trainer

CLASS, PROBABILITY = "class", "probability"
Columns = Mapping[str, Sequence[str]]
"""The columns of a file that each stream is made of."""


def like_training(trainer: Trainer, train: Any, path: str, name: str, *, targets: bool = True) -> Table:
    """The rows of a file as the training data are; without `targets`, only what the model is given.

    A file whose columns have other names is read as the only stream of the model, all its columns side by side, if
    there are as many as that stream has numbers.
    """
    table = _table(train)
    if table is None:
        return open_table(path)
    base, changes = unwrapped(table)
    if isinstance(base, Described) and base.maps:
        raise DataError(
            f"the training data were changed by map({', '.join(base.maps)}), of which the run has kept the name alone. "
            f"Open {path} and map it: predict(hr.map(hr.open_table({path!r}, ...), ...))."
        )
    inputs = _inputs(trainer, base, mapped=bool(changes))
    others = {stream.name for stream in base.streams} - inputs
    nulls = {**base.nulls, **trainer.nulls}
    categories = ReadBy({**base.categories, **trainer.categories}, nulls)  # those of the run, if it has kept any
    try:
        opened = _opened(path, base, categories, name, inputs, others if targets else set())
        if targets:
            same_streams(base.streams, opened.streams, name)
        return _mapped(opened, changes)
    except SourceError:
        if targets or not changes:
            raise
        with_targets = _opened(path, base, categories, name, inputs, others)  # a map may read them, too
        return _mapped(with_targets, changes)


def _table(train: Any) -> Table | None:
    """The table that training data are read from, if there is one."""
    data = as_data(train)
    table = data.table if isinstance(data, Reader) else data
    return table if isinstance(table, Table) else None


def _inputs(trainer: Trainer, base: Table, mapped: bool) -> set[str]:
    """The streams that the model is given: all but the targets, or what `inputs=` says unless maps stand between."""
    call = next(iter(trainer.eval_objectives.values())).call
    names = {stream.name for stream in base.streams}
    if mapped or call.inputs is None or call.inputs == "batch":
        return names - call.targets
    paths = [call.inputs] if isinstance(call.inputs, str) else call.inputs
    return names & {path.partition(".")[0] for path in (paths.values() if isinstance(paths, Mapping) else paths)}


def _mapped(table: Table, changes: Sequence[Changed]) -> Table:
    for changed in changes:
        table = map_rows(table, changed.change, where=changed.augments or "host")
    return table


def _opened(path: str, base: Table, categories: ReadBy, name: str, inputs: set[str], others: set[str]) -> Table:
    """The file with these streams of the training data; the `others` only if they are there."""
    if path.lower().endswith((".ctf", ".ctf.gz")):
        return open_table(path, streams=[stream for stream in base.streams if stream.name in inputs | others])
    there = column_names(path)
    made = indicated(categories.nulls)  # streams that no column is, but another one's nulls
    inputs = {made.get(name, name) for name in inputs}
    columns = {name: of for name, of in _columns(base, path, there, inputs).items() if name not in made}
    for stream in columns.keys() & inputs:
        if lost := [column for column in columns[stream] if column not in there]:
            if are_numbers(there):
                raise DataError(no_names(path))
            raise DataError(
                f"{path} has no column {lost[0]!r} for the stream {stream!r}, as the training data have. "
                f"It has: {', '.join(sorted(there))}."
            )
    kept = {key: list(named) for key, named in columns.items() if key in inputs | others and set(named) <= set(there)}
    alone = {key for key, named in kept.items() if len(named) == 1} - _of_one_column(base, path)
    nulls = {key: said for key, said in categories.nulls.items() if key in kept}
    streams = [stream for stream in base.streams if made.get(stream.name, stream.name) in kept]
    texts = _texts(path, {key: named[0] for key, named in kept.items() if key in categories}, nulls)
    found = open_table(
        path,
        columns={key: named[0] if key in alone else named for key, named in kept.items()},
        dtypes={stream.name: stream.dtype for stream in streams if stream.name not in texts},
        categories={key: categories[key] for key in texts},
        nulls=nulls or None,
        streams=[stream for stream in streams if stream.layout == "sparse"] or None,
    )
    same_streams(streams, found.streams, name)
    return found


def _texts(path: str, columns: Mapping[str, str], nulls: Mapping[str, Any]) -> list[str]:
    """The streams whose columns hold strings in this file: they may hold the numbers of the categories as well."""
    filled = {key: said for key, said in nulls.items() if key in columns}
    held = open_table(path, columns=columns, nulls=filled or None).categories if columns else {}
    return [key for key in columns if key in held]


def _columns(base: Table, path: str, there: Sequence[str], inputs: set[str]) -> Columns:
    """Which columns are to become which streams."""
    names = [stream.name for stream in base.streams]
    if isinstance(chosen := _chosen(base), Mapping):
        return {name: [named] if isinstance(named, str) else list(named) for name, named in chosen.items()}
    columns = {name: [name] for name in names}
    given = [stream for stream in base.streams if stream.name in inputs]
    others = [name for name in there if name not in names]
    if len(given) == 1 and given[0].name not in there and _fits(given[0], others):
        if begins_with_numbers(there):
            raise DataError(no_names(path))
        columns[given[0].name] = others
    return columns


def _of_one_column(base: Table, path: str) -> set[str]:
    """The streams whose rows are vectors of one number, which is a column of the file."""
    if isinstance(chosen := _chosen(base), Mapping):
        return {name for name, named in chosen.items() if not isinstance(named, str)}
    text = ".csv" in path.lower() or ".tsv" in path.lower()
    return {stream.name for stream in base.streams if text and stream.shape == (1,)}


def _chosen(base: Table) -> Mapping[str, Any] | None:
    """Which columns of their file the training data are, where that was said."""
    return base.columns if isinstance(base, FileTable | Described) else None


def _fits(stream: Stream, columns: Sequence[str]) -> bool:
    """Whether columns may be this stream: one is, whatever its name; several are as many as its rows have numbers."""
    return len(columns) == 1 or stream.shape == (len(columns),)


# --- what the model answers --------------------------------------------------------------------------------


def answers_of(trainer: Trainer, train: Any, outputs: Any) -> ArrayTable:
    """The outputs of a model as columns, with a row for each row that was read."""
    judged = _judged(next(iter(trainer.eval_objectives.values())), outputs)
    table = _table(train)
    known = {**({} if table is None else table.categories), **trainer.categories}  # those of the run come first
    names = known.get(trainer.target) if judged else None
    return ArrayTable({**_of_outputs(outputs), **judged}, categories={CLASS: names} if names else None)


def write_csv(table: ArrayTable, file: BinaryIO) -> None:
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
    csv.write_csv(pa.table(flat), file)


def write_npy(table: ArrayTable, file: BinaryIO) -> None:
    """The outputs alone, which have to be one array."""
    import numpy as np

    names = outputs_in(table)
    columns = [column for name, column in table.rows(0, len(table)).fields.items() if name in names]
    if len(columns) != 1 or not isinstance(columns[0], Tensor):
        raise ConfigError(f".npy holds one array, and the model returns {', '.join(names)}. Use .arrow.")
    np.save(file, columns[0].numpy())


def outputs_in(table: ArrayTable) -> list[str]:
    """What the model returned, by name, without what was made of it."""
    return [stream.name for stream in table.streams if stream.name not in (CLASS, PROBABILITY)]


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
