"""Tables that are written to files come back the same; what a kind of file cannot hold is refused."""

import os

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kit.any_rows import columns, contents
from kit.file_tables import KINDS, every_row, mixed, numbers

import headrace as hr
from headrace.data.sparse import Sparse
from headrace.formats.table import open_table
from headrace.formats.write import write_table

pytestmark = pytest.mark.usefixtures("in_tmp_path")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rows_per_block", [1, 3, 100])
def test_a_table_that_is_written_is_read_with_all_that_belongs_to_it(kind: str, rows_per_block: int) -> None:
    table = mixed()
    write_table(table, "t" + kind, rows_per_block=rows_per_block)
    found = open_table("t" + kind)
    assert list(found.streams) == list(table.streams)
    assert found.categories == table.categories
    assert found.block == min(rows_per_block, 7)
    assert found.row_bytes > 0
    assert every_row(found) == every_row(table)
    for indices in ([6, 0, 0, 3], [2], []):
        assert contents(found.take(torch.tensor(indices, dtype=torch.int64))) == contents(
            table.take(torch.tensor(indices, dtype=torch.int64))
        )
    assert contents(found.rows(2, 5)) == contents(table.rows(2, 5))
    assert torch.equal(found.lengths("tokens"), table.lengths("tokens"))
    assert os.listdir() == ["t" + kind]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_rows_come_back_from_a_file(data: st.DataObject) -> None:
    rows, kind = data.draw(st.integers(1, 6)), data.draw(st.sampled_from(KINDS))
    table = hr.ArrayTable(data.draw(columns(rows)))
    write_table(table, "t" + kind, rows_per_block=data.draw(st.integers(1, 6)))
    found = open_table("t" + kind)
    assert every_row(found) == every_row(table)
    indices = torch.tensor(data.draw(st.lists(st.integers(0, rows - 1))), dtype=torch.int64)
    assert contents(found.take(indices)) == contents(table.take(indices))


def test_sparse_rows_that_turn_out_to_have_values_are_written_with_all_of_them() -> None:
    class Turning(hr.Table):
        streams = (hr.Stream("w", (5,), layout="sparse"),)

        def __len__(self) -> int:
            return 4

        def take(self, indices: torch.Tensor) -> hr.Batch:
            values = None if int(indices[0]) < 2 else torch.full((len(indices),), 3.0)
            return hr.Batch({"w": Sparse(indices, values, torch.arange(len(indices) + 1), 5)})

    write_table(Turning(), "t.arrow", rows_per_block=2)
    assert open_table("t.arrow").rows(0, 4)["w"].values.tolist() == [1, 1, 3, 3]


def test_a_file_that_cannot_be_written_leaves_what_was_there() -> None:
    write_table(numbers(3), "t.arrow")

    class Failing(hr.ArrayTable):
        def rows(self, start: int, stop: int) -> hr.Batch:
            if start:
                raise RuntimeError("gone")
            return super().rows(start, stop)

    with pytest.raises(RuntimeError, match="gone"):
        write_table(Failing(numbers(5).rows(0, 5).fields), "t.arrow", rows_per_block=2)
    assert len(open_table("t.arrow")) == 3
    assert os.listdir() == ["t.arrow"]
