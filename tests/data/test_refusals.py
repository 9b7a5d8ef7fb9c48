"""What the room `data` refuses: the call, the class of the error, and words of its sentence."""

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from kit.composed import table as composed
from kit.late import pandas as pd
from kit.own_data import Elsewhere, counted
from kit.sums import X, Y, make
from torch import Tensor

import headrace as hr
from headrace import ConfigError, DataError, Ragged, SourceError, Sparse
from headrace.adapters.adapt import as_data, as_table
from headrace.data.order import Permutation
from headrace.length import interval, limits
from headrace.testing.makers import ragged_table

Refusal = tuple[Callable[[], Any], type[hr.HeadraceError], str]


class Graph:
    """A field that is not a tensor."""

    def to(self, device: Any, *, non_blocking: bool = False) -> "Graph":
        return self


class Short(hr.ArrayTable):
    """Its lengths are those of fewer rows."""

    def lengths(self, stream: str) -> Tensor:
        return super().lengths(stream)[1:]


class Twins(Elsewhere):
    streams = (hr.Stream("x"), hr.Stream("x"))


class One(Elsewhere):
    streams = hr.Stream("x")  # type: ignore[assignment]


def column(values: Any) -> hr.ArrayTable:
    return hr.ArrayTable({"x": values})


def reader(order: str = "full", **options: Any) -> hr.Reader:
    return hr.Reader(column(torch.arange(23)), order, **{"block": 5, **options})


def words(**options: Any) -> hr.Reader:
    return hr.Reader(ragged_table("words", [2, 1]), **options)


def mixed(*sizes: int, weights: Any, **options: Any) -> hr.Reader:
    return hr.mix([column(torch.arange(n)) for n in sizes], weights, **options)


def pairs(*rows: int) -> Sparse:
    """Rows of so many ones."""
    offsets = torch.tensor([0, *rows]).cumsum(0)
    return Sparse(torch.arange(sum(rows)) % 7, None, offsets, 7)


def quantized() -> Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's, at the making of one
        return torch.quantize_per_tensor(X, 0.1, 0, torch.qint8)


def offsets(*numbers: int) -> Tensor:
    return torch.tensor(numbers)


def ragged() -> Ragged:
    return Ragged(torch.zeros(3), offsets(0, 2, 3))


def fed(batch_size: Any = 4, macrobatch: Any = "auto") -> hr.Feed:
    return hr.Feed(counted(9), batch_size=batch_size, macrobatch=macrobatch)


def mapped(change: Any) -> Any:
    """Rows of a map that does well with the first one."""
    first = lambda f: {"other": f["id"]} if len(f["id"]) == 1 else change(f)  # noqa: E731
    return hr.map(composed(range(6)), first).rows(0, 6)


SIX = (torch.arange(3.0),) * 3
NUMBERS = torch.zeros(3)
REFUSED: dict[str, list[Refusal]] = {
    "streams": [
        (lambda: hr.Stream("words.mask"), ConfigError, "name without dots"),
        (lambda: hr.Stream("x", dtype="nn"), ConfigError, "'nn' is not a torch dtype"),
        (lambda: hr.Stream("x", layout="spars"), ConfigError, "'spars'"),  # type: ignore[arg-type]
        (lambda: hr.Stream("x", 3), ConfigError, r"stream 'x': shape= is the sizes of a row, as in \(3,\); got 3"),  # type: ignore[arg-type]
        (lambda: hr.Stream("x", (3, -2)), ConfigError, r"got \(3, -2\)"),
        (lambda: hr.Reader(Twins({"x": X})), SourceError, "unique, got 'x' more than once"),
        (lambda: hr.Reader(One({"x": X})), SourceError, "streams is a list of Stream"),
    ],
    "batches": [
        (lambda: hr.Batch({"x": torch.zeros(4, 2), "y": NUMBERS}), DataError, "'x' has 4, 'y' has 3 rows"),
        (lambda: hr.Batch({"x": X, "y": Y})["z"], DataError, r"no stream 'z' in this batch\. It has: x, y\."),
        (lambda: hr.Batch({}), DataError, r"Pass Batch\(fields, rows=n\)"),
        (lambda: hr.Batch({"x": torch.tensor(1.0)}), DataError, r"Pass Batch\(fields, rows=n\)"),
        (lambda: hr.Batch({"y": Y, "g": Graph()}).split(2), DataError, "'g' holds a Graph, which cannot be cut"),
        (lambda: hr.Shard(1, 1), ConfigError, "index 1 of 1"),
        (lambda: hr.samples([]), DataError, "at least one sample, got none"),
        (lambda: hr.samples([{"file": "a.png"}]), DataError, "stream 'file': sample 0 holds text, .* or leave it out"),
        (lambda: hr.samples([{"x": X[0]}, {"x": None}]), DataError, "stream 'x': sample 1 holds a NoneType"),
        (lambda: hr.samples([{"x": [[1.0], [2.0, 3.0]]}]), DataError, "stream 'x': sample 0 holds a list"),
        (lambda: hr.samples([{"x": X[0]}, {"x": Y[0]}]), DataError, r"sample 1 has the shape \[\], sample 0 has \[3\]"),
        (lambda: make().fit([]), DataError, "the list is empty: there is nothing to read"),
    ],
    "arrays": [
        (lambda: hr.ArrayTable({}), DataError, "at least one stream"),
        (lambda: hr.ArrayTable({"x": torch.zeros(5), "y": torch.zeros(4)}), DataError, "'x' has 5, 'y' has 4 rows"),
        (lambda: column(np.array(["a", "b"])), DataError, "'x' has dtype <U1"),
        (lambda: column(np.zeros(3, "longdouble")), DataError, "'x'.*(longdouble|float128)"),
        (lambda: column(torch.tensor(1.0)), DataError, "'x' is a single number"),
        (lambda: make().predict(quantized()), DataError, r"stream 'x' is quantized .*dequantize\(\)"),
        (lambda: make(batch_size=None).fit([(quantized(), Y)]), DataError, "stream 'x' is quantized"),
        (lambda: column([1, 2]), DataError, "'x': expected a tensor or a NumPy array, got a list"),
        (lambda: hr.ArrayTable({"a.b": NUMBERS}), ConfigError, "without dots, got 'a.b'"),
        (lambda: hr.ArrayTable({0: NUMBERS}), ConfigError, "a name .* got 0"),  # type: ignore[dict-item]
        (lambda: hr.ArrayTable({"x": NUMBERS, "y": NUMBERS.to("meta")}), DataError, "different devices: .*meta"),
        (lambda: as_table(SIX), DataError, r"expected \(x, y\), got 3 arrays"),
        (lambda: as_table([X] * 2), DataError, r"expected rows by number, got a list, .*\(x, y\), and samples as"),
        (lambda: as_data([X, NUMBERS]), DataError, r"item 1 of this one is not like item 0\. Give x and y as"),
        (lambda: as_data((NUMBERS, None)), DataError, "cannot read data from a tuple of Tensor, NoneType"),
        (lambda: as_data(("x.npy", "y.npy")), DataError, "cannot read data from a tuple of str, str"),
        (lambda: as_data([[[1.0, 2.0]], [[0.0, 1.0]]]), DataError, "cannot read data from a list of list, list"),
        (lambda: as_data(([[1], [2, 3]], [0, 1])), DataError, r"'x': .* list differ in length.*hr.Ragged.of"),
        (lambda: as_data({"x": [1, "a"]}), DataError, "'x' has dtype <U21, which is not a number"),
        (lambda: as_data({"x": pd.DataFrame({"a": [1], "k": ["b"]})}), DataError, "'k' cannot stand beside others"),
        (lambda: as_data((pd.Series([1.0, None]), [1, 2])), DataError, "has 1 nulls, the first in row 1"),
        (lambda: as_table([1, 2, 3]), DataError, "cannot read data from a list of int, int, int"),
        (lambda: as_table(None), DataError, "cannot read data from a NoneType"),
        (lambda: as_table("train.csv"), DataError, "there is no file train.csv"),
        (lambda: hr.Reader({"x": X}), ConfigError, r"reads a Table, got a dict.*ArrayTable"),  # type: ignore[arg-type]
    ],
    "ragged and sparse rows": [
        (lambda: Ragged.of([]), DataError, r"no sequences: nothing says what their items are\. Pass at least one\."),
        (lambda: Ragged(NUMBERS, torch.tensor([0.0, 3.0])), DataError, r"one more than rows, got torch.float32\[2\]"),
        (lambda: Ragged(NUMBERS, offsets(0, 3).int()), DataError, r"offsets of int64 .* got torch.int32\[2\]"),
        (lambda: Ragged(NUMBERS, offsets(0, 3)[None]), DataError, r"got torch.int64\[1, 2\]"),
        (lambda: Ragged(NUMBERS, offsets(0, 2)), DataError, "never fall, .* the number of values, 3; got 0 to 2"),
        (lambda: Ragged(NUMBERS, offsets(0, 2, 1, 3)), DataError, "offsets that never fall"),
        (lambda: Sparse(offsets(1, 2), None, offsets(0, 1), 7), DataError, "the number of indices, 2; got 0 to 1"),
        (lambda: Sparse(offsets(1, 2), NUMBERS, offsets(0, 2), 7), DataError, "a Sparse has 2 indices and 3 values"),
        (lambda: Sparse(offsets(1, 7), None, offsets(0, 2), 7), DataError, "index 7 is out of range for sparse rows"),
        (lambda: Sparse(offsets(-1, 7), None, offsets(0, 2), 7), DataError, "index -1 is out of range"),
        (lambda: pairs(2).ids, DataError, "these rows are not one-hot: ids need exactly one index in each"),
        (lambda: ragged().ids, DataError, "these items are dense: only sparse ones have ids"),
        (lambda: ragged().with_values(torch.zeros(4)), DataError, "expected 3 items for 2 sequences, got 4"),
        (lambda: ragged().with_values(pairs(0, 0)), DataError, r"got 2\. Padded ones belong to with_padded\(\)"),
        (lambda: ragged().items_of(X[:2]), DataError, r"for 3 items, or of shape \[2, 2\] and more, got \[2, 3\]"),
        (lambda: ragged().split([1, 2]), DataError, "runs of 3 rows do not make up 2"),
        (lambda: ragged()[::2], DataError, r"rows are cut start:stop, got a step of 2\. Use take\(\) for others"),
        (lambda: ragged()[0.5], DataError, r"rows are cut start:stop, got 0.5"),
        (lambda: Ragged(NUMBERS, offsets(0, 3, 3)).packed(), DataError, "row 1 is an empty sequence, .*Drop it"),
    ],
    "orders": [
        (lambda: hr.Order(0), ConfigError, "at least one row, got 0"),
        (lambda: hr.Order(9, "ful"), ConfigError, "unknown order 'ful'. Did you mean 'full'"),
        (lambda: hr.Order(9, block=0), ConfigError, "block= .* got 0"),
        (lambda: Permutation(2**62), ConfigError, "got 4611686018427387904"),
        (
            lambda: hr.Order(9, "blocks", mix=0),
            ConfigError,
            "mix= is a number of blocks, .*got 0 for 'blocks'",
        ),
        (lambda: hr.Order(9, "full", mix=2), ConfigError, "for order 'blocks'; got 2 for 'full'"),
        *[
            (lambda a=a, b=b: hr.Order(9).indices(0, a, b), ConfigError, f"positions {a} to {b} are not within")
            for a, b in ((-1, 3), (0, 10), (5, 4), (10, 10))
        ],
    ],
    "readers": [
        (lambda: hr.Reader(hr.ArrayTable({"x": X}), hr.Order(3)), ConfigError, r"and the order 3\. Give hr\.Order\("),
        (lambda: reader(max_samples=0), ConfigError, "max_samples= is at least 1, got 0"),
        (lambda: reader(max_epochs=0), ConfigError, "max_epochs= is at least 1, got 0"),
        (lambda: reader().next_batch(0), ConfigError, "at least one row, got size 0"),
        (lambda: hr.Reader(column(torch.empty(0, 3))), DataError, "no rows"),
        (lambda: words(count="wrods"), SourceError, "unknown stream 'wrods'. Did you mean 'words'"),
        (lambda: words(count="row"), SourceError, "'row' has no sequences: every row is one item. Count rows"),
        (lambda: words(count="words").next_batch(0), ConfigError, "at least one item, got size 0"),
        (
            lambda: hr.Reader(Short(ragged_table("words", [1, 2]).columns), count="words"),
            SourceError,
            r"Short.lengths\('words'\) gave 1 numbers for 2 rows",
        ),
        (lambda: words(buckets="words").next_batch(8), ConfigError, "say of how many"),
        (
            lambda: words(buckets="words", batch_size=4).next_batch(8),
            ConfigError,
            "batch_size=4 rows, and is read",
        ),
        *[(lambda size=size: fed(size), ConfigError, f"batch_size= .* got {size}") for size in (0, -1, 2.5, True)],
        *[
            (lambda rows=rows: fed(macrobatch=rows), ConfigError, f"macrobatch= .* got {rows!r}")
            for rows in (0, -8, "big", 2.5, None, True)
        ],
        (lambda: hr.Feed(Elsewhere({"x": X})), ConfigError, "Elsewhere"),  # type: ignore[arg-type]
        (lambda: make(macrobatch="1 TB").fit((X, Y)), ConfigError, "macrobatch= .* got .1 TB."),
    ],
    "mixes, packs and parts": [
        (lambda: mixed(9, weights=[1.0]), ConfigError, r"two tables or more.*got 1 and 1"),
        (lambda: mixed(9, 9, weights=[1.0]), ConfigError, r"a weight for each, got 2 and 1"),
        (lambda: mixed(9, 9, weights=[1, 0]), ConfigError, r"weights are greater than 0, got 0"),
        (lambda: mixed(9, 9, weights=[1, float("nan")]), ConfigError, r"weights are .*nan"),
        (lambda: mixed(9, 9, weights=[1, 1e-5]), ConfigError, r"weight 1e-05 is less than 1 in 1024"),
        (lambda: mixed(9, 0, weights=[1, 1]), DataError, r"table 1 has no rows"),
        (lambda: mixed(9, 9, weights=[1, 1], rows=-5), ConfigError, r"rows="),
        (lambda: mixed(9, 9, weights={0: [1, 1], "5 steps": [1, 2]}), ConfigError, "needs the rows of a step"),
        (lambda: mixed(9, 9, weights={"5 samples": [1, 1]}), ConfigError, "begins with a value for 0"),
        (
            lambda: mixed(9, 9, weights={0: [1, 1], "2 epochs": [1, 2], "9 samples": [1, 1]}),
            ConfigError,
            "another order",
        ),
        (lambda: mixed(9, 9, weights={0: [0, 0], "2 epochs": [1, 2]}), ConfigError, "greater than 0"),
        (lambda: mixed(9, 9, weights={0: [1, 1], "2 epochs": [1]}), ConfigError, "a weight for each"),
        (lambda: hr.mix([column(NUMBERS), {"x": NUMBERS.long()}], [1, 1]), DataError, "table 1 has x: int64"),
        (lambda: hr.pack(ragged_table("words", [9]), 8, "words"), ConfigError, "'row' is no sequence"),
        (lambda: hr.pack({"w": ragged()}, 0, "w"), ConfigError, "above 0, got 0"),
        (lambda: hr.pack({"w": ragged()}, 1, "w"), DataError, "row 0 has 2 items"),
        (lambda: hr.pack({"x": NUMBERS}, 8, "x"), SourceError, "no sequences"),
        (lambda: hr.pack({"w": ragged(), "mask": ragged()}, 8, "w"), ConfigError, "is added"),
        (lambda: hr.pack({"w": ragged()}, 8, "w", fill={"tag": 1}), ConfigError, "'tag', which is no stream"),
        (lambda: hr.split(composed(range(10))), ConfigError, "fractions above 0 that make at most 1, got "),
        (lambda: hr.split(composed(range(10)), 0.5, 0.6), ConfigError, "at most 1, got 0.5, 0.6"),
        (lambda: hr.split(composed(range(10)), float("nan")), ConfigError, "above 0"),
        (lambda: hr.split(composed(range(10)), 0.9, 0.01), DataError, "0.01 of 10 rows is none"),
        (lambda: hr.split(composed(range(10)), 0.5, stratify="z"), DataError, "unknown stream 'z'"),
        (
            lambda: hr.split(composed(range(10)), 0.5, stratify="x"),
            DataError,
            "one whole number for each row",
        ),
        (lambda: hr.split(hr.skip(composed(range(3)), 3), 0.5), DataError, r"split\(\): the table has no rows"),
        *[
            (lambda n=n: hr.head(counted(9), n), ConfigError, r"head\(\) takes a number of rows, at least 1")
            for n in (0, -1, 2.5, True)
        ],
        *[
            (lambda n=n: hr.skip(composed(range(4)), n), ConfigError, r"skip\(\) takes a number of rows, at least")
            for n in (-1, 2.5, "3", True, None)
        ],
    ],
    "maps": [
        (lambda: mapped(lambda f: {"id": f["id"][::2]}), DataError, r"made 3 rows of 6.*filter\(\)"),
        (lambda: mapped(lambda f: f["id"]), DataError, "returned a Tensor. Return the fields by name"),
        (lambda: mapped(lambda f: {"id": f["id"], "x": f["x"][:1]}), DataError, "different lengths"),
        (lambda: hr.map(composed(range(5)), dict).lengths("x"), SourceError, "'x' has no sequences"),
        (lambda: hr.Draws.at(0, [(0, 0, 9)]).integers(5, 5), ConfigError, "5.*5"),
    ],
    "lengths": [
        *[
            (lambda text=text: hr.Length.parse(text, "every"), ConfigError, told)
            for text, told in (
                ("5 epoks", r"every='5 epoks': unknown unit 'epoks'. Did you mean 'epochs'\?"),
                ("5 fortnights", "Choose one of: epoch, epochs, min"),
                ("0 epochs", "every= is greater than 0, got 0"),
                ("1.5 epochs", "every= counts whole epochs, got 1.5"),
                ("-1 epochs", "every= is a number and a unit, as in \"1 epoch\" .*got '-1 epochs'"),
                (5, "number and a unit, .* got 5"),
                (True, "number and a unit, .* got True"),
            )
        ],
        *[
            (lambda count=count: hr.Length.of(count, "epochs", "epochs"), ConfigError, "epochs=")
            for count in (0, -0.5, True, float("nan"), float("inf"), "10", [1])
        ],
        (lambda: hr.Length(0, "steps"), ConfigError, "0"),
        (lambda: interval("30 min", "log_every"), ConfigError, "log_every='30 min': minutes differ from run to run"),
        (lambda: limits(0, None, None, None), ConfigError, "^epochs= is greater than 0, got 0"),
        (lambda: limits(None, None, None, True), ConfigError, "^minutes= is greater than 0, got True"),
    ],
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_cannot_be_is_refused_in_a_sentence(what: str, subtests: pytest.Subtests) -> None:
    for number, (call, kind, told) in enumerate(REFUSED[what]):
        with subtests.test(number=number, told=told), pytest.raises(kind, match=told):
            call()
