"""The backward pass of an update gives what torch's own gives."""

import pytest
import torch
from torch import Tensor, nn

from headrace.step.passes import _backward as backward


class Marked(Tensor):
    """A class of tensors as users make them."""


@pytest.mark.parametrize("kind", [Tensor, Marked])
@pytest.mark.parametrize("chosen", [False, True])
def test_the_gradients_are_those_of_torch(kind: type[Tensor], chosen: bool) -> None:
    def gradients(ours: bool) -> list[Tensor | None]:
        one, other = nn.Parameter(torch.tensor([1.0, 2.0])), nn.Parameter(torch.tensor([3.0, 4.0]))
        roots = [(one * other).sum().as_subclass(kind), other.exp().sum()]
        seeds, inputs = [torch.tensor(0.5), torch.tensor(3.0)], [other] if chosen else None
        if ours:
            backward(roots, seeds, inputs)
        else:
            torch.autograd.backward(roots, seeds, inputs=inputs)
        return [one.grad, other.grad]

    ours, torchs = gradients(True), gradients(False)
    assert (ours[0] is None) == (torchs[0] is None) == chosen
    assert all(a is b or torch.equal(a, b) for a, b in zip(ours, torchs, strict=True))  # type: ignore[arg-type]
