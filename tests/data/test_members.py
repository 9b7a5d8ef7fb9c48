"""How little a table or a source of one's own has to have, and that the page about them says so."""

import re
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import headrace as hr
from headrace.testing import check_source, check_table

PAGE = Path(__file__).parents[2] / "docs" / "source.md"
OF_TABLE = {"streams", "__len__", "take", "rows", "lengths", "fingerprint"}
OF_SOURCE = {"streams", "next_batch", "state_dict", "load_state_dict"}
WORDS = hr.Ragged.of([torch.arange(1 + k % 3) for k in range(20)])


class Words(hr.Table):
    """A table with every member that an author may have to know."""

    streams = (hr.Stream("words", dtype="int64", sequence=True),)

    def __len__(self) -> int:
        return 20

    def take(self, indices: Tensor) -> hr.Batch:
        return hr.Batch({"words": WORDS.take(indices)})

    def rows(self, start: int, stop: int) -> hr.Batch:
        return hr.Batch({"words": WORDS[start:stop]})

    def lengths(self, stream: str) -> Tensor:
        return WORDS.host_offsets.diff()

    def fingerprint(self) -> str:
        return "words"


class Count(hr.Source):
    """A source with every member that an author may have to know."""

    streams = (hr.Stream("x", dtype="int64"),)

    def __init__(self) -> None:
        self.at = 0

    def next_batch(self, size: int, shard: hr.Shard = hr.Shard()) -> hr.Batch | None:
        start, self.at = self.at, min(30, self.at + size)
        return hr.Batch({"x": torch.arange(start, self.at)}) if self.at > start else None

    def state_dict(self) -> Any:
        return {"at": self.at}

    def load_state_dict(self, state: Any) -> None:
        self.at = state["at"]


def written(kind: type) -> set[str]:
    return {name for name in vars(kind) if name not in ("__init__", "__module__", "__doc__", "__abstractmethods__")} - {
        name for name in vars(kind) if name.startswith("_") and name != "__len__"
    }


def test_a_table_has_six_members_and_a_source_four() -> None:
    assert written(Words) == OF_TABLE
    assert written(Count) == OF_SOURCE
    check_source(Count)
    batch = hr.Reader(Words(), count="words").next_batch(8)
    assert batch is not None
    assert batch.items("words") <= 8
    assert hr.Table.__abstractmethods__ < OF_TABLE
    assert hr.Source.__abstractmethods__ < OF_SOURCE


def test_the_page_names_these_members_and_no_others() -> None:
    text = PAGE.read_text(encoding="utf-8")
    members = text.partition("## A table")[2].partition("\n\n`take`")[0]
    assert {name.partition("(")[0] for name in re.findall(r"^\| `([^`]+)`", members, re.MULTILINE)} == OF_TABLE
    sentence = text.partition("A source has four members: ")[2].partition(".")[0]
    assert set(re.findall(r"`([^`]+)`", sentence)) == OF_SOURCE


def test_a_table_with_all_of_them_keeps_its_promises() -> None:
    check_table(Words)
