"""What a model has said of every row, as columns; of a classifier also the class and its probability."""

from collections.abc import Mapping
from typing import Any, BinaryIO

from torch import Tensor

from ..data.arrays import ArrayTable
from ..errors import ConfigError
from ..loss.objective import Objective
from ..loss.task import likeliest, yes_or_no
from .data import categories_of
from .recipe import Recipe

CLASS, PROBABILITY = "class", "probability"


def answers_of(recipe: Recipe, outputs: Any) -> ArrayTable:
    """The outputs of a recipe's model as columns, with a row for each row that was read."""
    objective = next(iter(recipe.trainer.eval_objectives.values()))
    judged = _judged(objective, outputs)
    names = categories_of(recipe, recipe.trainer.target)
    return ArrayTable({**_columns(outputs), **judged}, categories={CLASS: names} if judged and names else None)


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


def _columns(outputs: Any) -> dict[str, Any]:
    if isinstance(outputs, Mapping):
        return {str(name): column for name, column in outputs.items()}
    if isinstance(outputs, tuple):
        return {f"output_{k}": column for k, column in enumerate(outputs)}
    return {"output": outputs}


def _judged(objective: Objective, outputs: Any) -> dict[str, Tensor]:
    """The likeliest class of every row, and how likely it is; nothing where there is no one class for a row."""
    if objective.reads is None or not isinstance(scored := objective.scored(outputs), Tensor):
        return {}
    if objective.reads == "classes" and scored.dim() == 2:
        code, probability = likeliest(scored, objective.reads)
    elif objective.reads != "classes" and scored.numel() == len(scored):
        code, probability = yes_or_no(scored.reshape(-1), objective.reads)
    else:
        return {}
    return {CLASS: code, PROBABILITY: probability}
