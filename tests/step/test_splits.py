"""The second promise: however a batch is split, the update is the same; a mean of means would not be."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from kit.small import Parts
from torch import Tensor, nn

import headrace as hr

CLASSES = 5
WEIGHTS = torch.tensor([0.2, 1.0, 3.0, 0.5, 2.0], dtype=torch.float64)
TOLERANCE = {torch.float32: 1e-6, torch.float64: 1e-12}


def data(rows: int, dtype: torch.dtype, seed: int = 0) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    y = torch.randint(0, CLASSES, (rows,), generator=generator)
    y[::4] = -100
    return {
        "x": torch.randn(rows, 11, generator=generator, dtype=dtype),
        "y": y,
        "boxes": torch.randn(rows, 3, generator=generator, dtype=dtype),
        "found": (torch.rand(rows, generator=generator) > 0.6).to(dtype),
    }


def detector(dtype: torch.dtype) -> nn.Module:
    """Classes and boxes from one trunk."""

    def call(self: Any, x: Tensor) -> dict[str, Tensor]:
        hidden = torch.tanh(self.trunk(x))
        return {"classes": self.classes(hidden), "boxes": self.boxes(hidden)}

    torch.manual_seed(0)
    sizes = {"trunk": (11, 13), "classes": (13, CLASSES), "boxes": (13, 3)}
    return Parts(call, **{name: nn.Linear(*size, dtype=dtype) for name, size in sizes.items()})


def two_terms() -> Any:
    """Denominators that differ: class weights met, and boxes found."""
    classes = hr.CrossEntropy(output="classes", class_weights=WEIGHTS, ignore_index=-100)
    return classes + 0.5 * hr.Huber(output="boxes", target="boxes", weight="found") + hr.L2Prior(1e-3)


def gradients(batch: dict[str, Tensor], microbatch: int | None, dtype: torch.dtype, loss: Any = None) -> Tensor:
    """What one update of plain SGD at rate 1 takes from the weights."""
    model = detector(dtype)
    before = torch.cat([p.detach().flatten() for p in model.parameters()])
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    trainer = hr.Trainer(model, loss or two_terms(), optimizer, microbatch=microbatch, inputs="x")
    trainer.step(batch)
    trainer.release()
    return before - torch.cat([p.detach().flatten() for p in model.parameters()])


def parts(batch: dict[str, Tensor], size: int) -> Sequence[dict[str, Tensor]]:
    rows = len(batch["x"])
    return [{k: v[i : i + size] for k, v in batch.items()} for i in range(0, rows, size)]


def by_hand(batch: dict[str, Tensor], dtype: torch.dtype) -> Tensor:
    """The whole batch by plain autograd."""
    model = detector(dtype)
    out = model(batch["x"])
    loss = F.cross_entropy(out["classes"], batch["y"], WEIGHTS.to(dtype))
    boxes = F.smooth_l1_loss(out["boxes"], batch["boxes"], beta=0.11, reduction="none")
    loss = loss + 0.5 * (boxes * batch["found"][:, None]).sum() / (3 * batch["found"].sum())
    loss = loss + 1e-3 * 0.5 * sum((p**2).sum() for n, p in model.named_parameters() if "bias" not in n)
    return torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(model.parameters()))])


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("microbatch", [None, 1, 7, 32, 95, 96, 500])
def test_any_microbatch_gives_the_gradient_of_the_whole_batch(microbatch: int | None, dtype: torch.dtype) -> None:
    batch = data(96, dtype)
    found = gradients(batch, microbatch, dtype)
    torch.testing.assert_close(found, by_hand(batch, dtype), rtol=0, atol=TOLERANCE[dtype])


@given(rows=st.integers(1, 60), microbatch=st.integers(1, 61), seed=st.integers(0, 1000), declared=st.booleans())
def test_ragged_batches_of_any_size_split_exactly(rows: int, microbatch: int, seed: int, declared: bool) -> None:
    batch = data(rows, torch.float64, seed)
    loss = hr.RowMean(lambda out, y: (out["classes"].sum(1) * y).mean()) if declared else None
    whole, split = (gradients(batch, size, torch.float64, loss) for size in (None, microbatch))
    torch.testing.assert_close(split, whole, rtol=0, atol=1e-12)


def test_the_mean_of_means_fails_this_test() -> None:
    """Negative control: averaging the losses of microbatches, as most loops do."""
    batch, whole = data(96, torch.float64), by_hand(data(96, torch.float64), torch.float64)
    cuts = parts(batch, 36)
    naive = sum(by_hand(part, torch.float64) for part in cuts) / len(cuts)
    assert (naive - whole).abs().max() > 1e-3


def test_weights_that_only_the_forward_pass_knows_leave_random_numbers_and_buffers_alone() -> None:
    class Confident(hr.Objective):
        """Rows count as much as the model is sure of them: unknown before the model is called."""

        splits = True

        def terms(self, model: nn.Module, batch: hr.Batch) -> dict[str, hr.Term]:
            out = model(batch["x"])
            sure = out.detach().softmax(dim=1).amax(dim=1)
            each = F.cross_entropy(out, batch["y"], reduction="none")
            return {"sure": hr.Term((sure * each).sum(), sure.sum())}

    class Watched(nn.Module):
        """A linear layer that counts its calls in a buffer and draws a random number in each."""

        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.layer = nn.Linear(11, CLASSES, dtype=torch.float64)
            self.register_buffer("calls", torch.zeros(()))

        def forward(self: Any, x: Tensor) -> Any:
            torch.rand(1)
            self.calls += 1
            return self.layer(x)

    batch = data(24, torch.float64)
    batch["y"] = batch["y"].clamp(min=0)
    found: dict[int | None, tuple[Tensor, float, Tensor]] = {}
    for microbatch in (None, 10):
        model: Any = Watched()
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        trainer = hr.Trainer(model, Confident(), optimizer, microbatch=microbatch)
        torch.manual_seed(4)
        trainer.step(batch)
        trainer.release()
        found[microbatch] = model.layer.weight.detach().clone(), float(model.calls), torch.get_rng_state()
    torch.testing.assert_close(found[10][0], found[None][0], rtol=0, atol=1e-12)
    assert (found[None][1], found[10][1]) == (1, 3)
    torch.manual_seed(4)
    torch.rand(1), torch.rand(1), torch.rand(1)
    assert torch.equal(found[10][2], torch.get_rng_state())


@pytest.mark.parametrize("layer", [nn.BatchNorm1d(11), nn.Dropout(0.5)])
def test_a_model_whose_rows_meet_or_draw_is_told_once(layer: nn.Module) -> None:
    model = nn.Sequential(layer, nn.Linear(11, CLASSES))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.warns(UserWarning, match="microbatch") as told:
        trainer = hr.Trainer(model, hr.CrossEntropy(ignore_index=-100), optimizer, microbatch=8, inputs="x")
        trainer.fit(data(40, torch.float32), epochs=2, progress=False)
    assert len(told) == 1
    hr.Trainer(model, hr.CrossEntropy(), optimizer)  # without microbatches there is nothing to tell
