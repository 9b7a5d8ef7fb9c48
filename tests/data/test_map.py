"""A map changes rows as they are read, keeps their number, and knows what it makes."""

from types import MappingProxyType

import pytest
import torch
from kit.composed import Fields, named, renamed, same, table

import headrace as hr
from headrace.adapters import compose
from headrace.data.ragged import Ragged


def test_map_learns_its_streams_and_changes_rows_as_they_are_read() -> None:
    made = compose.map(
        table(range(9)),
        lambda f: {"id": f["id"], "n": f["words"].lengths, "half": f["words"].with_values(f["words"].values / 2)},
    )
    assert list(map(str, made.streams)) == ["id: int64[]", "n: int64[]", "half: sequences of float32[]"]
    assert made.take(torch.tensor([7, 2]))["n"].tolist() == [3, 2]
    assert [each.tolist() for each in made.rows(2, 4)["half"]] == [[10, 10.5], [15, 15.5, 16]]


def test_map_knows_the_lengths_that_it_makes() -> None:
    def doubled(fields: Fields) -> Fields:
        words = fields["words"]
        return {**fields, "words": Ragged.of([torch.cat([one, one]) for one in words])}

    made = compose.map(table(range(20)), doubled)
    assert made.lengths("words").tolist() == [2 * (k % 4) for k in range(20)]
    reader = hr.Reader(made, count="words", max_epochs=1)
    batches = list(iter(lambda: reader.next_batch(12), None))
    assert sum(batch.rows for batch in batches) == 20
    assert all(batch.items("words") <= 12 for batch in batches)


def test_map_of_a_table_without_rows_has_its_streams() -> None:
    for empty in (compose.filter(table(range(3)), lambda f: f["id"] < 0), compose.skip(table(range(3)), 3), table([])):
        made = compose.map(empty, renamed)
        assert (len(made), [stream.name for stream in made.streams]) == (0, ["other"])


def test_a_map_whose_rows_change_their_form_is_named_by_the_reader() -> None:
    def fickle(fields: Fields) -> Fields:
        return {"id": fields["id"].float() if len(fields["id"]) > 64 else fields["id"]}

    with pytest.raises(hr.SourceError, match=r"Mapped: expected stream id: int64\[\], got id: float32\[\]"):
        hr.Reader(compose.map(table(range(100)), fickle)).next_batch(80)


def test_a_map_cannot_change_its_table_by_adding_to_the_fields() -> None:
    def meddling(fields: Fields) -> Fields:
        fields["new"] = fields.pop("id")
        return fields

    base = table(range(4))
    assert "new" in compose.map(base, meddling).rows(0, 4)
    assert next(iter(base.rows(0, 4).fields)) == "id"


def test_categories_are_those_of_the_streams_that_a_map_leaves() -> None:
    coded = hr.ArrayTable({"who": torch.tensor([0, 1]), "n": torch.arange(2)}, categories={"who": ["ann", "bob"]})
    assert compose.map(coded, same).categories == {"who": ["ann", "bob"]}
    assert compose.map(coded, lambda fields: {"n": fields["n"]}).categories == {}


def test_categories_that_a_table_of_ones_own_names_are_those_of_its_views() -> None:
    class Coded(hr.Table):
        streams = (hr.Stream("who", (), "int64"),)
        categories = MappingProxyType({"who": ("ann", "bob")})

        def __len__(self) -> int:
            return 4

        def take(self, indices: torch.Tensor) -> hr.Batch:
            return hr.Batch({"who": indices % 2})

    for made in Coded(), hr.head(Coded(), 3), compose.map(Coded(), same), hr.concat(Coded(), Coded()):
        assert made.categories == made.encoding.categories == {"who": ("ann", "bob")}


def test_a_map_that_makes_more_of_a_row_takes_as_many_bytes_as_it_makes() -> None:
    images = named(x=torch.zeros(6, 8, dtype=torch.uint8))
    assert compose.map(images, lambda fields: {"x": fields["x"].double()}).row_bytes == pytest.approx(64, rel=0.5)
