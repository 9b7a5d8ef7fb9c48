"""Files that change, are shared or are resumed from while a table reads them."""

import os
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from kit.file_tables import KINDS, every_row, numbers, parts, write

import headrace as hr
from headrace.formats.table import open_table
from headrace.formats.write import write_table

pytestmark = pytest.mark.usefixtures("in_tmp_path")


# --- files that change ----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [".arrow", ".npz"])
def test_a_file_that_is_cut_while_it_is_mapped_gives_an_error_and_no_crash(kind: str) -> None:
    write(numbers(10000), "t" + kind)
    table = open_table("t" + kind)
    os.truncate("t" + kind, 1000)
    with pytest.raises(hr.DataError, match=rf"t{kind} has changed while it was being read: it had \d+ bytes, now 1000"):
        table.take(torch.tensor([9999]))


@pytest.mark.parametrize("kind", [*KINDS, ".npz"])
def test_a_file_that_is_replaced_by_another_does_no_harm(kind: str) -> None:
    write(numbers(10), "t" + kind)
    table = open_table("t" + kind)
    write(numbers(3), "t" + kind)
    assert every_row(table) == every_row(numbers(10))


def test_the_fingerprint_is_that_of_the_rows_and_not_of_the_place_or_the_time(tmp_path: Path) -> None:
    parts()
    first = open_table("part-*.arrow")
    Path("moved").mkdir()
    for name in ("part-0.arrow", "part-1.arrow", "part-2.arrow"):
        Path("moved", name).write_bytes(Path(name).read_bytes())
    os.utime("moved/part-0.arrow", (1, 1))
    moved = open_table("moved")
    assert moved.fingerprint() == first.fingerprint()
    raw = bytearray(Path("part-2.arrow").read_bytes())
    raw[raw.index(np.arange(4, 10).tobytes())] ^= 1
    Path("part-2.arrow").write_bytes(raw)
    changed = open_table("part-*.arrow")
    assert changed.fingerprint() != first.fingerprint()


def test_a_run_is_not_resumed_on_a_file_some_rows_of_which_have_changed() -> None:
    def fit(epochs: int) -> None:
        model = torch.nn.Linear(4, 4)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        trainer = hr.Trainer(model, hr.MSE(), optimizer, inputs="x", target="x", batch_size=10_000)
        trainer.fit("t.npy", epochs=epochs, run="runs/one", progress=False)

    rows = np.random.default_rng(0).random((100_000, 4), np.float32)
    np.save("t.npy", rows)
    fit(1)
    rows[44_000:54_000] = 1e6
    np.save("t.npy", rows)
    with pytest.raises(hr.SourceError, match=r"fingerprint"):
        fit(2)


@pytest.mark.parametrize("kind", [".npy", ".arrow", ".csv", ".ctf"])
def test_a_byte_that_has_changed_anywhere_in_a_file_changes_its_fingerprint(kind: str) -> None:
    def fingerprint() -> str:
        if kind == ".ctf":
            return hr.open_ctf("t.ctf", [hr.Stream("x", (1,))]).fingerprint()
        return open_table("t" + kind).fingerprint()

    rows = 1_000_000  # more than 16 MB
    if kind == ".npy":
        np.save("t.npy", np.ones((rows, 3)))
    elif kind == ".arrow":
        write_table(hr.ArrayTable({name: np.ones(rows) for name in "abc"}), "t.arrow")
    else:
        Path("t" + kind).write_text(
            "x\n" * (kind == ".csv") + f"{'|x ' * (kind == '.ctf')}1.00000000000000000\n" * rows
        )
    before = fingerprint()
    digit = b"\xf0" if kind in (".npy", ".arrow") else b"0"  # of a one, as text and as float64
    for share in (0.02, 0.3, 0.999):
        raw = Path("t" + kind).read_bytes()
        at = raw.index(digit, int(len(raw) * share))
        Path("t" + kind).write_bytes(raw[:at] + (b"\xf1" if digit != b"0" else b"1") + raw[at + 1 :])
        assert fingerprint() != before
        Path("t" + kind).write_bytes(raw)
    assert fingerprint() == before


def test_files_of_more_than_a_gigabyte_are_told_apart_by_size_and_time() -> None:
    def fingerprint() -> str:
        return open_table("big-*.npy").fingerprint()

    np.save("big-1.npy", np.zeros(10))
    np.lib.format.open_memmap("big-2.npy", "w+", np.float64, (150_000_000,)).flush()  # of holes: it takes no space
    found = [fingerprint()]
    for name in ("big-1.npy", "big-2.npy"):
        os.utime(name, ns=(1, 1))
        found += [fingerprint()]
    assert fingerprint() == found[-1]
    assert len(set(found)) == 3


def test_a_file_that_was_replaced_before_a_training_began_is_refused() -> None:
    write_table(numbers(10), "t.arrow")
    table = open_table("t.arrow")
    os.unlink("t.arrow")
    write_table(numbers(20), "t.arrow")
    with pytest.raises(hr.DataError, match=r"t\.arrow has been changed since it was opened\. Open it again\."):
        hr.Reader(table)


# --- several readers ------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [*KINDS, ".npz"])
def test_a_table_travels_to_another_process_by_the_names_of_its_files(kind: str) -> None:
    table = numbers(1000)
    write(table, "t" + kind)
    found = open_table("t" + kind, columns={"z": "x"}, dtypes={"z": "float64"})
    sent = pickle.dumps(found)
    assert len(sent) < 2000, "no rows travel"
    assert every_row(pickle.loads(sent)) == every_row(found)
    write(numbers(999), "t" + kind)
    with pytest.raises(hr.DataError, match=rf"t{kind} has changed"):
        pickle.loads(sent)
