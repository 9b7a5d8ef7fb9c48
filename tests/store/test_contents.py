"""Files of tensors: as safetensors writes and reads them, for every dtype and layout."""

from pathlib import Path

import pytest
import safetensors.torch
import torch
from kit.small import same
from torch import Tensor

from headrace.errors import CheckpointError, CorruptError
from headrace.store.checkpoints import Store
from headrace.store.codec import _NAMES, encode, from_json, parse_tensors, tensor_pieces
from headrace.store.contents import Contents

FILE = "model.safetensors"


def of(dtype: torch.dtype) -> dict[str, Tensor]:
    """Tensors of one dtype, of every shape; their bits are random where any will do."""
    count = 12
    if dtype is torch.bool:
        values = torch.rand(count) > 0.5
    else:
        values = torch.randint(256, (count * dtype.itemsize,), dtype=torch.uint8).view(dtype)
    shapes = {
        "vector": values,
        "matrix": values.view(3, 4),
        "transposed": values.view(3, 4).T,
        "strided": values[1::3],
        "part": values[2:5],
        "scalar": values[7],
        "expanded": values[:1].expand(5),
        "empty": values[:0],
        "none of many": values[:0].view(0, 3),
        'names: α, 漢字, \u2028, "quoted", back\\slash, a/b.c': values[:1],
    }
    return {f"{dtype}/{name}": tensor for name, tensor in shapes.items()}


def test_tensors_of_every_dtype_and_layout_are_written_and_read_as_by_safetensors(tmp_path: Path) -> None:
    torch.manual_seed(0)
    tensors = {name: tensor for dtype in _NAMES for name, tensor in of(dtype).items()}
    path = Store(tmp_path, "run").save(Contents(1, {}, {FILE: tensors, "none.safetensors": {}}))
    assert same(safetensors.torch.load_file(path / FILE), tensors)
    assert same(Store(tmp_path, "run").load(1).tensors[FILE], tensors)
    assert safetensors.torch.load_file(path / "none.safetensors") == {}
    plain = {name: tensor.clone().contiguous() for name, tensor in tensors.items()}
    assert same(parse_tensors(safetensors.torch.save(plain), FILE, len(tensors)), tensors)
    data = (path / FILE).read_bytes()
    length = int.from_bytes(data[:8], "little")
    assert length % 8 == 0
    for name, entry in from_json(data[8 : 8 + length], "header").items():
        assert entry["data_offsets"][0] % tensors[name].element_size() == 0, "each tensor is aligned"


def test_a_dtype_that_the_file_cannot_hold_is_refused_and_nothing_is_there(tmp_path: Path) -> None:
    tensor = torch.ones(2, dtype=torch.complex128)
    with pytest.raises(CheckpointError, match=r"'w' is of torch\.complex128, which model\.safetensors cannot hold"):
        Store(tmp_path, "run").save(Contents(1, {}, {FILE: {"w": tensor}}))
    assert Store(tmp_path, "run").steps() == []


# A file of tensors cannot hold these names, and Python makes no JSON of an integer of more than 4300 digits: a save
# that returned could never be loaded.
@pytest.mark.parametrize("name", ["__metadata__", "file-\udcff.bin"])
def test_what_could_not_be_read_again_is_refused(name: str, tmp_path: Path) -> None:
    store, tensors = Store(tmp_path, "run"), {name: torch.ones(2)}
    with pytest.raises(CheckpointError):
        store.save(Contents(1, {}, {"rank-00000.safetensors": tensors}))
    with pytest.raises(CheckpointError):
        encode({"a": 10**5000}, {}, "state", strict=True)


def test_what_is_not_a_file_of_tensors_is_corrupt() -> None:
    data = b"".join(tensor_pieces("x", {"w": torch.ones(3)}))
    assert same(parse_tensors(data, "x", 1), {"w": torch.ones(3)})
    for damaged in (b"", data[:7], data[:8], data[:-1], data + b"x"):
        with pytest.raises(CorruptError, match="x"):
            parse_tensors(damaged, "x", 1)


def test_a_header_may_be_longer_where_more_tensors_are_told() -> None:
    tensors = {f"{number:05d}{'x' * 200}": torch.ones(()) for number in range(5000)}
    data = b"".join(tensor_pieces("x", tensors))
    assert len(parse_tensors(data, "x", len(tensors))) == 5000
    with pytest.raises(CorruptError, match="a header of"):
        parse_tensors(data, "x", 1)
