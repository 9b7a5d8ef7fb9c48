"""A snapshot of tensors is by value, in memory that the next one uses again."""

from collections.abc import Callable

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
        raw.bitwise_xor_(1)  # a boolean stays one


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


def test_the_same_view_of_memory_is_copied_once() -> None:
    home = torch.arange(10.0)
    tied = {"first": home[:4], "tied": home[:4], "transposed": home[:4].view(2, 2).T, "as": home[:4].view(torch.int32)}
    copy = Copier()(tied)
    copy["first"][0] = 99.0
    assert [copy[name].view(torch.float32).reshape(-1)[0] for name in tied] == [99.0, 99.0, 0.0, 0.0]
    assert home[0] == 0.0


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
