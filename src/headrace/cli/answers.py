"""What a model has said of every row, as columns; of a classifier also the class and its probability."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO

from torch import Tensor

from ..data.arrays import ArrayTable
from ..errors import ConfigError
from ..metric.likely import likeliest, yes_or_no
from ..objective import Objective
from ..recipe import Recipe
from .data import categories_of

CLASS, PROBABILITY = "class", "probability"


@dataclass(frozen=True, slots=True)
class Answers:
    """Columns with a row for each row that was read."""

    outputs: Mapping[str, Any]
    """What the model returned, by name."""
    judged: Mapping[str, Tensor]
    """The class and its probability, of a classifier."""
    names: Sequence[str] | None
    """What the classes are called, if it is known."""

    @property
    def columns(self) -> dict[str, Any]:
        return {**self.outputs, **self.judged}

    def table(self) -> ArrayTable:
        return ArrayTable(self.columns, categories={CLASS: self.names} if self.judged and self.names else None)

    def write_csv(self, file: BinaryIO) -> None:
        """A column for each number of a row: output_0, output_1 and so on."""
        import pyarrow as pa
        from pyarrow import csv

        flat: dict[str, Any] = {}
        for name, column in self.columns.items():
            if not isinstance(column, Tensor):
                raise ConfigError(
                    f".csv has one number in each place, and {name} is a {type(column).__name__}. Use .arrow."
                )
            numbers = column.reshape(len(column), -1)
            of = [f"{name}_{k}" for k in range(numbers.shape[1])] if column.dim() > 1 else [name]
            flat |= {each: pa.array(numbers[:, k].numpy()) for k, each in enumerate(of)}
        if self.judged and self.names:
            flat[CLASS] = pa.array([self.names[code] for code in self.judged[CLASS].tolist()])
        csv.write_csv(pa.table(flat), file)

    def write_npy(self, file: BinaryIO) -> None:
        """The outputs alone, which have to be one array."""
        import numpy as np

        if len(self.outputs) != 1 or not all(isinstance(each, Tensor) for each in self.outputs.values()):
            raise ConfigError(f".npy holds one array, and the model returns {', '.join(self.outputs)}. Use .arrow.")
        np.save(file, next(iter(self.outputs.values())).numpy())


def answers_of(recipe: Recipe, outputs: Any) -> Answers:
    """The outputs of a recipe's model as columns."""
    objective = next(iter(recipe.trainer.eval_objectives.values()))
    return Answers(_columns(outputs), _judged(objective, outputs), categories_of(recipe, recipe.trainer.target))


def _columns(outputs: Any) -> dict[str, Any]:
    if isinstance(outputs, Mapping):
        return {str(name): column for name, column in outputs.items()}
    if isinstance(outputs, tuple):
        return {f"output_{k}": column for k, column in enumerate(outputs)}
    return {"output": outputs}


def _judged(objective: Objective, outputs: Any) -> dict[str, Tensor]:
    """The likeliest class of every row, and how likely it is; nothing where there is no one class for a row."""
    scored = objective.scored(outputs)
    if objective.reads is None or not isinstance(scored, Tensor):
        return {}
    if objective.reads == "classes" and scored.dim() == 2:
        code, probability = likeliest(scored, objective.reads)
    elif objective.reads != "classes" and scored.numel() == len(scored):
        code, probability = yes_or_no(scored.reshape(-1), objective.reads)
    else:
        return {}
    return {CLASS: code, PROBABILITY: probability}
