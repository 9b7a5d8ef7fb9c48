"""A snapshot of tensors is by value, in memory that the next one uses again."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from headrace.errors import CheckpointError
from headrace.store.snapshot import Copier


def bits(tensor: Tensor) -> tuple[torch.dtype, torch.Size, list[int]]:
    plain = tensor.detach().resolve_conj().resolve_neg().contiguous()
    return tensor.dtype, tensor.shape, plain.reshape(-1).view(torch.uint8).tolist() if plain.numel() else []


def whole() -> Tensor:
    return torch.arange(24.0)


KINDS: dict[str, Callable[[], Tensor]] = {
    "whole": whole,
    "of a module": lambda: nn.Parameter(torch.randn(3, 2)),
    "without dimensions": lambda: torch.tensor(3.5),
    "empty": lambda: torch.empty(0, 4),
    "empty, of a storage": lambda: whole()[3:3],
    "transposed": lambda: whole().view(4, 6).T,
    "strided": lambda: whole()[1::2],
    "a small part": lambda: whole()[5:7],
    "a strided small part": lambda: whole()[3:12:4],
    "channels last": lambda: torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
    "expanded": lambda: torch.randn(3, 1).expand(3, 50),
    "a bit of an expanded one": lambda: torch.randn(1).expand(9)[2:4],
    "conjugate": lambda: torch.randn(4, dtype=torch.complex64).conj(),
    "negative": lambda: torch.randn(4, dtype=torch.complex64).conj().imag,
    "complex": lambda: torch.randn(4, dtype=torch.complex64),
    "booleans": lambda: torch.rand(5) > 0.5,
    "bytes": lambda: torch.arange(5, dtype=torch.uint8),
    "halves": lambda: torch.randn(3).to(torch.bfloat16),
    "viewed as another dtype": lambda: whole().view(torch.int32),
    "with a gradient function": lambda: torch.randn(3, requires_grad=True) * 2,
}


def change(tensors: dict[str, Tensor]) -> None:
    """Every value of every storage becomes another."""
    for storage in {t.untyped_storage().data_ptr(): t.untyped_storage() for t in tensors.values()}.values():
        raw = torch.empty(0, dtype=torch.uint8).set_(storage)
        raw.add_(77)


def test_copies_have_the_values_and_keep_them_and_the_next_ones_use_the_same_memory() -> None:
    torch.manual_seed(0)
    tensors = {kind: make() for kind, make in KINDS.items()} | {"a": torch.randn(100), "b": torch.randn(100)}
    copier, memory = Copier(), set[int]()
    for _ in range(3):
        expected = {name: bits(tensor) for name, tensor in tensors.items()}
        copy = copier(tensors)
        assert list(copy) == list(tensors)
        assert {name: bits(tensor) for name, tensor in copy.items()} == expected
        assert not any(tensor.requires_grad for tensor in copy.values())
        change(tensors)
        assert all(bits(tensor) != expected[name] for name, tensor in tensors.items() if tensor.numel()), "no change"
        assert {name: bits(tensor) for name, tensor in copy.items()} == expected
        found = {tensor.untyped_storage().data_ptr() for tensor in copy.values() if tensor.numel()}
        memory = memory or found
        assert found == memory


def test_tensors_of_one_storage_are_copied_together_and_stay_views_of_it() -> None:
    home = torch.arange(10.0)
    tensors = {
        "whole": home,
        "first": home[:4],
        "tied": home[:4],
        "last": home[4:].view(2, 3),
        "as": home.view(torch.int32),
    }
    copy = Copier()(tensors)
    assert len({tensor.untyped_storage().data_ptr() for tensor in copy.values()}) == 1
    copy["whole"][0] = 99.0
    assert copy["first"][0] == copy["tied"][0] == 99.0
    assert home[0] == 0.0


@pytest.mark.parametrize("order", [("small", "large"), ("large", "small")])
def test_two_storages_that_begin_at_the_same_place_are_copied_as_they_are(order: tuple[str, str]) -> None:
    """As arrays of NumPy are, one of which is the beginning of the other."""
    array = np.arange(10.0)
    tensors = {"small": torch.from_numpy(array[:3]), "large": torch.from_numpy(array)}
    copy = Copier()({name: tensors[name] for name in order})
    assert {name: copy[name].tolist() for name in order} == {name: tensors[name].tolist() for name in order}


def test_a_small_part_of_a_large_storage_is_copied_alone() -> None:
    copy = Copier()({"part": torch.zeros(1_000_000)[10:20], "other": torch.zeros(1_000_000)[::1000]})
    assert copy["part"].untyped_storage().nbytes() == 40
    assert copy["other"].untyped_storage().nbytes() == 4000


class Tagged(Tensor):
    """A tensor of somebody else's kind."""


@pytest.mark.parametrize(
    ("tensor", "named"),
    [
        (lambda: torch.eye(3).to_sparse(), "torch.sparse_coo"),
        (lambda: torch.eye(3).as_subclass(Tagged), "Tagged"),
        (lambda: torch.empty(3, device="meta"), "Tensor"),
    ],
)
def test_what_is_not_a_dense_tensor_is_refused_by_name(tensor: Callable[[], Tensor], named: str) -> None:
    with pytest.raises(CheckpointError, match=rf"'odd one'.*{named}"):
        Copier()({"fine": torch.ones(2), "odd one": tensor()})
