"""A file as data of the kind that a recipe is trained on: the same streams, dtypes, categories and maps."""

from collections.abc import Mapping, Sequence

from ..adapters.adapt import as_data
from ..adapters.compose import map as map_rows
from ..data.batch import Stream
from ..data.categories import Categories
from ..data.maps import Changed
from ..data.reader import Reader
from ..data.source import Table
from ..data.views import Wrapper
from ..errors import DataError, SourceError
from ..formats.select import are_numbers, begins_with_numbers, no_names
from ..formats.table import FileTable, column_names, open_table
from ..step.check import same_streams
from .recipe import Recipe

Columns = Mapping[str, Sequence[str]]
"""The columns of a file that each stream is made of."""


def like_training(recipe: Recipe, path: str, name: str, *, targets: bool = True) -> Table:
    """The rows of a file as the recipe's training data are; without `targets`, only what the model is given.

    A file whose columns have other names is read as the only stream of the model, all its columns side by side, if
    there are as many as that stream has numbers.
    """
    data = as_data(recipe.train)
    table = data.table if isinstance(data, Reader) else data
    if not isinstance(table, Table):
        return open_table(path)
    base, changes = _unwrapped(table)
    inputs = _inputs(recipe, base, mapped=bool(changes))
    others = {stream.name for stream in base.streams} - inputs
    categories = {**base.categories, **recipe.trainer.categories}  # those of the run, if it has kept any
    try:
        opened = _opened(path, base, categories, name, inputs, others if targets else set())
        if targets:
            same_streams(base.streams, opened.streams, name)
        return _mapped(opened, changes)
    except SourceError:
        if targets or not changes:
            raise
        return _mapped(
            _opened(path, base, categories, name, inputs, others), changes
        )  # a map may read the targets, too


def categories_of(recipe: Recipe, stream: str) -> Sequence[str] | None:
    """What the numbers of a stream of the training data stand for, if it is known."""
    if stream in recipe.trainer.categories:
        return recipe.trainer.categories[stream]
    data = as_data(recipe.train)
    table = data.table if isinstance(data, Reader) else data
    return table.categories.get(stream) if isinstance(table, Table) else None


def _inputs(recipe: Recipe, base: Table, mapped: bool) -> set[str]:
    """The streams that the model is given: all but the targets, or what `inputs=` says unless maps stand between."""
    call = next(iter(recipe.trainer.eval_objectives.values())).call
    names = {stream.name for stream in base.streams}
    if mapped or call.inputs is None or call.inputs == "batch":
        return names - call.targets
    paths = [call.inputs] if isinstance(call.inputs, str) else call.inputs
    return names & {path.partition(".")[0] for path in (paths.values() if isinstance(paths, Mapping) else paths)}


def _unwrapped(table: Table) -> tuple[Table, list[Changed]]:
    """What views and maps are of, and the maps from the inside out; those that draw are for training alone."""
    changes: list[Changed] = []
    while isinstance(table, Wrapper) and not isinstance(table, FileTable):
        if isinstance(table, Changed) and table.augments != "host":
            changes.insert(0, table)
        table = table.table
    return table, changes


def _mapped(table: Table, changes: Sequence[Changed]) -> Table:
    for changed in changes:
        table = map_rows(table, changed.change, where=changed.augments or "host")
    return table


def _opened(path: str, base: Table, categories: Categories, name: str, inputs: set[str], others: set[str]) -> Table:
    """The file with these streams of the training data; the `others` only if they are there."""
    if path.lower().endswith((".ctf", ".ctf.gz")):
        return open_table(path, streams=[stream for stream in base.streams if stream.name in inputs | others])
    there = column_names(path)
    columns = _columns(base, path, there, inputs)
    for stream in columns.keys() & inputs:
        if lost := [column for column in columns[stream] if column not in there]:
            if are_numbers(there):
                raise DataError(no_names(path))
            raise DataError(
                f"{path} has no column {lost[0]!r} for the stream {stream!r}, as the training data have. "
                f"It has: {', '.join(sorted(there))}."
            )
    kept = {key: list(named) for key, named in columns.items() if key in inputs | others and set(named) <= set(there)}
    streams = [stream for stream in base.streams if stream.name in kept]
    texts = _texts(path, {key: named[0] for key, named in kept.items() if key in categories})
    found = open_table(
        path,
        columns={key: named[0] if len(named) == 1 else named for key, named in kept.items()},
        dtypes={stream.name: stream.dtype for stream in streams if stream.name not in texts},
        categories={key: categories[key] for key in texts},
        streams=[stream for stream in streams if stream.layout == "sparse"] or None,
    )
    same_streams(streams, found.streams, name)
    return found


def _texts(path: str, columns: Mapping[str, str]) -> list[str]:
    """The streams whose columns hold strings in this file: they may hold the numbers of the categories as well."""
    held = open_table(path, columns=columns).categories if columns else {}
    return [key for key in columns if key in held]


def _columns(base: Table, path: str, there: Sequence[str], inputs: set[str]) -> Columns:
    """Which columns are to become which streams."""
    names = [stream.name for stream in base.streams]
    chosen = base.columns if isinstance(base, FileTable) else None
    if isinstance(chosen, Mapping):
        return {name: [named] if isinstance(named, str) else list(named) for name, named in chosen.items()}
    columns = {name: [name] for name in names}
    given = [stream for stream in base.streams if stream.name in inputs]
    others = [name for name in there if name not in names]
    if len(given) == 1 and given[0].name not in there and _fits(given[0], others):
        if begins_with_numbers(there):
            raise DataError(no_names(path))
        columns[given[0].name] = others
    return columns


def _fits(stream: Stream, columns: Sequence[str]) -> bool:
    """Whether columns may be this stream: one is, whatever its name; several are as many as its rows have numbers."""
    return len(columns) == 1 or stream.shape == (len(columns),)
