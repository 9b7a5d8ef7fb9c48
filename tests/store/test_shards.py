"""Files of which several workers write a part: any division of rows is read back, in little more than its memory."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from kit.fault_harness import recommit
from kit.forked import start, tell
from torch import Tensor

from headrace.errors import CorruptError
from headrace.store.checkpoints import Store
from headrace.store.contents import Contents, divided, write_files
from headrace.store.shards import LAYOUT, RowPart

FILE = "model.safetensors"
MB = 1 << 20


def write(store: Store, tensors: dict[str, Tensor], count: int) -> Path:
    """A checkpoint of these tensors, as so many workers write it."""
    directory, written = store.begin(1), []
    for worker in range(count):
        part = RowPart(worker, count)
        mine = {name: tensor[slice(*part.of(len(tensor)))] for name, tensor in tensors.items()}
        shapes = {FILE: {name: list(tensor.shape) for name, tensor in tensors.items()}}
        contents = Contents(1, {"trainer.json": {}}, {FILE: mine | {"count": torch.tensor(3)}}, shapes)
        written += write_files(directory, divided(contents, part, leads=worker == 0))
    store.commit(directory, written, count)
    return directory


def small() -> dict[str, Tensor]:
    return {
        "a": torch.arange(33.0).reshape(11, 3),
        "b": torch.arange(2),
        "c": torch.arange(7).to(torch.bfloat16),
        "d": torch.zeros(5, 0),
        "e": torch.arange(8, dtype=torch.float64).reshape(1, 2, 4),
    }


@pytest.mark.parametrize("count", [1, 2, 3, 5])
@pytest.mark.parametrize("readers", [1, 2, 4])
def test_any_number_of_workers_reads_what_any_number_has_written(count: int, readers: int, tmp_path: Path) -> None:
    tensors, store = small(), Store(tmp_path, None)
    write(store, tensors, count)
    for reader in range(readers):
        part = RowPart(reader, readers)
        found = store.load(1, part=part)
        assert int(found.tensors[FILE].pop("count")) == 3
        assert found.shapes[FILE] == {name: list(tensor.shape) for name, tensor in tensors.items()}
        for name, tensor in tensors.items():
            expected = tensor[slice(*part.of(len(tensor)))]
            assert torch.equal(found.tensors[FILE][name], expected)
            assert found.tensors[FILE][name].dtype == tensor.dtype


def changed(directory: Path, change: Callable[[Any], None]) -> None:
    """Another layout, with hashes that fit it: what a person might make by hand."""
    layout = json.loads((directory / LAYOUT).read_text())
    change(layout[FILE]["a"])
    recommit(directory, files={LAYOUT: json.dumps(layout).encode()})


LAYOUTS: dict[str, Callable[[Any], None]] = {
    "fewer rows": lambda place: place.update(rows=[0, 6, 10]),
    "more rows": lambda place: place.update(rows=[0, 6, 12], shape=[12, 3]),
    "rows backwards": lambda place: place.update(rows=[0, 12, 11]),
    "no rows": lambda place: place.update(rows=[]),
    "no shape": lambda place: place.update(shape=[]),
    "another shape": lambda place: place.update(shape=[11, 4]),
    "another worker": lambda place: place.update(rows=[0, 6, 11, 11]),
    "no numbers": lambda place: place.update(rows=["0", "6", "11"]),
    "nothing": lambda place: place.clear(),
}


@pytest.mark.parametrize("change", LAYOUTS.values(), ids=list(LAYOUTS))
def test_a_layout_that_does_not_fit_the_files_is_corrupt(change: Callable[[Any], None], tmp_path: Path) -> None:
    store = Store(tmp_path, None)
    changed(write(store, small(), 2), lambda place: None)
    store.load(1)  # the control
    changed(store.at(1), change)
    with pytest.raises(CorruptError):
        store.load(1)


def reads(folder: str) -> None:
    status = Path("/proc/self/status")
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins here
    before = _kilobytes(status, "VmHWM")
    found = Store(Path(folder), None).load(1, part=RowPart(1, 2))
    tell(f"grew {(_kilobytes(status, 'VmHWM') - before) * 1024 // MB}")
    assert sum(tensor.nbytes for tensor in found.tensors[FILE].values()) >= 100 * MB


def _kilobytes(status: Path, name: str) -> int:
    return int(status.read_text().partition(f"{name}:")[2].split()[0])


def test_a_part_is_read_in_little_more_memory_than_it_has(tmp_path: Path) -> None:
    tensors = {f"weight {k}": torch.ones(5 * MB // 2) for k in range(20)}  # 200 MB, of which one worker reads 100
    write(Store(tmp_path / "run", None), tensors, 3)
    with start(reads, tmp_path, str(tmp_path / "run")) as child:
        grown = int(child.until("grew"))
        assert child.ending() == 0, child.output
    assert 90 <= grown <= 164
