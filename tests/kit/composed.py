"""Tables whose rows follow from their ids, with a stream of every kind, for tests of what tables are made of."""

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

import headrace as hr
from headrace.data.ragged import Ragged
from headrace.data.sparse import Sparse

Fields = dict[str, Any]


def table(ids: Sequence[int] | range) -> hr.ArrayTable:
    """A stream of every kind; all that there is to a row follows from its id."""
    rows = [row(k) for k in ids]
    words, steps = (ends([each[place] for each in rows]) for place in (2, 4))
    return hr.ArrayTable(
        {
            "id": torch.tensor(list(ids), dtype=torch.int64),
            "x": torch.tensor([x for _, x, *_ in rows]).view(-1, 2),
            "words": Ragged(*words),
            "bag": sparse([bag for *_, bag, _ in rows]),
            "steps": Ragged(Sparse.one_hot(steps[0], 7), steps[1]),
        }
    )


def row(k: int, sign: int = 1) -> tuple[Any, ...]:
    """What there is to the row with this id: `id`, `x`, `words`, `bag` as (index, value), `steps`."""
    bag = [((k + j) % 12, k + j / 4) for j in range(k % 3)]
    return k, (sign * 1.0 * k, 0.5 * k), [10 * k + j for j in range(k % 4)], bag, [(k + j) % 7 for j in range(-k % 3)]


def ends(lists: Sequence[Sequence[Any]]) -> tuple[Tensor, Tensor]:
    flat = torch.tensor([item for items in lists for item in items], dtype=torch.int64)
    return flat, torch.tensor([0, *accumulate(map(len, lists))])


def sparse(bags: Sequence[Sequence[tuple[int, float]]]) -> Sparse:
    indices, offsets = ends([[index for index, _ in bag] for bag in bags])
    return Sparse(indices, torch.tensor([value for bag in bags for _, value in bag]), offsets, 12)


def plain(batch: hr.Batch) -> list[tuple[Any, ...]]:
    """The rows of a batch of such a table, as `row` gives them."""
    bag = batch["bag"]
    pairs = [list(zip(b.indices.tolist(), b.values.tolist(), strict=True)) for b in bag.split([1] * len(bag))]
    words, steps = (map(Tensor.tolist, field) for field in (batch["words"], batch["steps"].ids))
    return list(zip(batch["id"].tolist(), map(tuple, batch["x"].tolist()), words, pairs, steps, strict=True))


def ids(view: hr.Table) -> list[int]:
    """The ids of all rows."""
    found: list[int] = view.rows(0, len(view))["id"].tolist()
    return found


def named(**columns: Any) -> hr.ArrayTable:
    return hr.ArrayTable({name: torch.as_tensor(column) for name, column in columns.items()})


def odd(fields: Fields) -> Any:
    return fields["id"] % 2 == 1


def negated(fields: Fields) -> Fields:
    """Another sign for the first number of `x`."""
    return {**fields, "x": fields["x"] * torch.tensor([-1.0, 1.0])}


def same(fields: Fields) -> Fields:
    return fields


def renamed(fields: Fields) -> Fields:
    return {"other": fields["id"]}
