"""Thousands of data files with something changed in them: an error of ours or a table, soon, and never a crash."""

import io
import json
import time
import zipfile
from collections import Counter
from pathlib import Path
from random import Random

import numpy as np
import pytest
import torch
from kit.forked import start, tell
from kit.sampled import seeds
from kit.spoilt import spoilt

import headrace as hr
from headrace.data.fields import tensors_of
from headrace.data.ragged import Ragged
from headrace.data.sparse import Sparse
from headrace.formats.columns import record_batch_of
from headrace.formats.schema import schema_of
from headrace.formats.table import open_table
from headrace.formats.write import write_table

LIMIT_S = 10.0  # of computing, whatever else the machine does
ROWS = 40
AT_ONCE = 250  # in one process, of each kind
SEEDS = seeds(AT_ONCE, nightly=8 * AT_ONCE)


def table() -> hr.ArrayTable:
    """Streams of every kind."""
    bounds = torch.arange(ROWS + 1) * 2
    ids = torch.arange(2 * ROWS) % 30
    return hr.ArrayTable(
        {
            "x": torch.arange(3.0 * ROWS).view(ROWS, 3),
            "n": torch.arange(ROWS),
            "flag": torch.arange(ROWS) % 2 == 0,
            "words": Sparse(ids, torch.rand(2 * ROWS), bounds, 30),
            "bag": Sparse(ids, None, bounds, 30),
            "tokens": Ragged(ids, bounds),
            "tagged": Ragged(Sparse.one_hot(ids, 30), bounds),
            "species": torch.arange(ROWS) % 3,
        },
        categories={"species": ["setosa", "versicolor", "virginica"]},
    )


def write(kind: str, at: Path) -> Path:
    """An intact file of this kind."""
    import pyarrow as pa

    path = at / ("intact" + kind.partition(" ")[0])
    whole = table()
    batch = whole.rows(0, ROWS).fields
    dense = {name: batch[name].numpy() for name in ("x", "n", "flag")}
    schema = schema_of(whole.streams, categories=whole.categories)
    record = record_batch_of(batch, schema, whole.categories)
    if kind == ".arrow compressed":
        options = pa.ipc.IpcWriteOptions(compression="zstd")
        with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, schema, options=options) as writer:
            writer.write_batch(record.slice(0, 30))
            writer.write_batch(record.slice(30))
    elif kind == ".arrow stream":
        with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, schema) as writer:
            writer.write_batch(record)
    elif kind == ".arrow strings":
        strings = pa.record_batch({"s": ["ab", "", "c" * 9] * 9, "t": [["a"], [], ["b", "c"]] * 9})
        numbers = pa.array([0.5, 2.5, 0.5] * 9).dictionary_encode()
        strings = strings.append_column("d", strings.column("s").dictionary_encode()).append_column("n", numbers)
        with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, strings.schema) as writer:
            writer.write_batch(strings)
    elif kind == ".npz compressed":
        np.savez_compressed(path, **dense)
    elif kind == ".npy":
        np.save(path, dense["x"])
    elif kind == ".npz":
        np.savez(path, **dense)
    else:
        write_table(whole, path, rows_per_block=30)
    return path


KINDS = (
    ".arrow",
    ".arrow compressed",
    ".arrow stream",
    ".arrow strings",
    ".parquet",
    ".npz",
    ".npz compressed",
    ".npy",
)


def use(path: Path) -> None:
    """Everything that reads rows."""
    found = open_table(path)
    some = min(len(found), 1000)
    batch = found.rows(0, some)
    found.take(torch.tensor([some - 1, 0]))
    for name in batch.fields:
        for tensor in tensors_of(batch[name]):
            tensor.sum()
    for stream in found.streams:
        if stream.sequence:
            found.lengths(stream.name)


def with_a_changed_member(raw: bytes, draw: Random) -> bytes:
    """A zip file of which one member is changed as a file would be, with a checksum that is right."""
    whole = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(raw)) as intact, zipfile.ZipFile(whole, "w") as other:
        chosen = draw.choice(intact.namelist())
        for name in intact.namelist():
            data = intact.read(name)
            other.writestr(name, spoilt(data, draw) if name == chosen else data)
    return whole.getvalue()


def survey(at: str, first: int, count: int) -> None:
    """What using changed files of each kind came to; an error that is not ours ends the process."""
    for kind in KINDS:
        tell(f"{kind}: {json.dumps(survey_of(kind, Path(at), first, count))}")


def survey_of(kind: str, at: Path, first: int, count: int) -> dict[str, float]:
    intact = write(kind, at)
    use(intact)
    raw, path = intact.read_bytes(), at / ("changed" + kind.partition(" ")[0])
    outcomes: Counter[str] = Counter()
    slowest_s = 0.0
    for seed in range(first, first + count):
        path.unlink(missing_ok=True)
        change = with_a_changed_member if kind == ".npz" and seed % 2 else spoilt
        path.write_bytes(change(raw, Random(seed)))
        print(f"{kind}, seed {seed}", flush=True)
        start_s = time.process_time()
        try:
            use(path)
            outcomes["a table"] += 1
        except hr.DataError as error:
            outcomes["an error"] += 1
            if path.name not in str(error):
                raise AssertionError("which file?") from error
        slowest_s = max(slowest_s, time.process_time() - start_s)
    return {**outcomes, "slowest_s": slowest_s}


@pytest.mark.parametrize("first", range(0, len(SEEDS), AT_ONCE))
def test_of_thousands_of_changed_files_each_is_an_error_of_ours_or_a_table(first: int, tmp_path: Path) -> None:
    with start(survey, tmp_path, tmp_path, SEEDS[first], AT_ONCE) as child:
        code = child.ending()
        assert code == 0, f"ended by {code}: {child.output[-3000:]}"
    assert [line.partition(": ")[0] for line in child.told] == [*KINDS]
    for line in child.told:
        outcomes = json.loads(line.partition(": ")[2])
        assert outcomes.pop("slowest_s") < LIMIT_S
        assert min(outcomes["an error"], outcomes["a table"]) > AT_ONCE / 20, line
