"""Files of tensors: as safetensors writes and reads them, for every dtype and layout."""

from collections.abc import Callable
from pathlib import Path

import pytest
import safetensors.torch
import torch
from kit.small import same
from torch import Tensor

from headrace.errors import CheckpointError, CorruptError
from headrace.store.checkpoints import Store
from headrace.store.codec import _NAMES, encode, from_json, parse_tensors, tensor_pieces, to_json
from headrace.store.contents import Contents

DTYPES = list(_NAMES)


def of(dtype: torch.dtype) -> dict[str, Tensor]:
    """Tensors of one dtype, of every shape; their bits are random where any will do."""
    count = 12
    if dtype is torch.bool:
        values = torch.rand(count) > 0.5
    else:
        values = torch.randint(256, (count * dtype.itemsize,), dtype=torch.uint8).view(dtype)
    return {
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


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_safetensors_reads_what_a_save_has_written(dtype: torch.dtype, tmp_path: Path) -> None:
    torch.manual_seed(0)
    tensors = of(dtype)
    path = Store(tmp_path, "run").save(Contents(1, {}, {"model.safetensors": tensors}))
    assert same(safetensors.torch.load_file(path / "model.safetensors"), tensors)
    assert same(Store(tmp_path, "run").load(1).tensors["model.safetensors"], tensors)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_what_safetensors_writes_is_read(dtype: torch.dtype) -> None:
    tensors = {name: tensor.clone().contiguous() for name, tensor in of(dtype).items()}
    assert same(parse_tensors(safetensors.torch.save(tensors), "x.safetensors", len(tensors)), tensors)


def test_all_dtypes_share_a_file_in_which_each_tensor_is_aligned(tmp_path: Path) -> None:
    tensors = {f"{dtype}/{name}": tensor for dtype in DTYPES for name, tensor in of(dtype).items()}
    data = b"".join(tensor_pieces("model.safetensors", tensors))
    length = int.from_bytes(data[:8], "little")
    assert length % 8 == 0
    header = from_json(data[8 : 8 + length], "header")
    for name, entry in header.items():
        assert entry["data_offsets"][0] % tensors[name].element_size() == 0
    assert same(parse_tensors(data, "model.safetensors", len(tensors)), tensors)


def test_a_file_without_tensors_is_one(tmp_path: Path) -> None:
    path = Store(tmp_path, "run").save(Contents(1, {}, {"model.safetensors": {}}))
    assert safetensors.torch.load_file(path / "model.safetensors") == {}


def test_a_dtype_that_the_file_cannot_hold_is_refused_and_nothing_is_there(tmp_path: Path) -> None:
    tensor = torch.ones(2, dtype=torch.complex128)
    with pytest.raises(CheckpointError, match=r"'w' is of torch\.complex128, which model\.safetensors cannot hold"):
        Store(tmp_path, "run").save(Contents(1, {}, {"model.safetensors": {"w": tensor}}))
    assert Store(tmp_path, "run").steps() == []


# A file of tensors cannot hold these names: a save that returned could never be loaded.
@pytest.mark.parametrize("name", ["__metadata__", "file-\udcff.bin"])
def test_a_name_that_could_not_be_read_again_is_refused_or_comes_back(name: str, tmp_path: Path) -> None:
    tensors = {name: torch.ones(2)}
    store = Store(tmp_path, "run")
    try:
        store.save(Contents(1, {}, {"rank-00000.safetensors": tensors}))
    except CheckpointError:
        return
    assert same(store.load(1).tensors["rank-00000.safetensors"], tensors)


# Python makes no text of an integer of more than 4300 digits, and so no JSON.
def test_what_the_codec_accepts_can_be_written(tmp_path: Path) -> None:
    try:
        document = encode({"a": 10**5000}, {}, "state", strict=True)
    except CheckpointError:
        return
    Store(tmp_path, "run").save(Contents(1, {"trainer.json": document}, {}))


@pytest.mark.parametrize("document", [None, 1, 0.1, "α\ud800", [], {}, {"a": [1, {"b": None}]}, {"": ""}, -(2**70)])
def test_a_document_comes_back_as_it_was(document: object) -> None:
    assert from_json(to_json(document), "x.json") == document


Damage = Callable[[bytes], bytes]


@pytest.mark.parametrize(
    "damage", [lambda d: b"", lambda d: d[:7], lambda d: d[:8], lambda d: d[:-1], lambda d: d + b"x"]
)
def test_what_is_not_a_file_of_tensors_is_corrupt(damage: Damage) -> None:
    data = b"".join(tensor_pieces("x", {"w": torch.ones(3)}))
    assert same(parse_tensors(data, "x", 1), {"w": torch.ones(3)})
    with pytest.raises(CorruptError, match="x"):
        parse_tensors(damage(data), "x", 1)


@pytest.mark.slow
def test_a_header_may_be_longer_where_more_tensors_are_told() -> None:
    tensors = {f"{number:05d}{'x' * 200}": torch.ones(()) for number in range(5000)}
    data = b"".join(tensor_pieces("x", tensors))
    assert len(parse_tensors(data, "x", len(tensors))) == 5000
    with pytest.raises(CorruptError, match="a header of"):
        parse_tensors(data, "x", 1)
