"""A validation joins batches only where that changes nothing, and whatever `fit` accepts it accepts too."""

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from kit.small import Parts
from torch import Tensor, nn

import headrace as hr

X = torch.randn(50, 6, generator=torch.Generator().manual_seed(0))
Y = torch.randint(0, 3, (50,), generator=torch.Generator().manual_seed(1))
MASK = (torch.rand(50, generator=torch.Generator().manual_seed(2)) > 0.3).float()


def trainer(model: nn.Module, loss: Any, **options: Any) -> hr.Trainer:
    return hr.Trainer(model, loss, torch.optim.SGD(model.parameters(), lr=0.1), batch_size=16, **options)


class Masked(hr.Loss):
    """A loss that reads a stream which it has not declared."""

    def weight(self, batch: hr.Batch) -> Any:
        return batch["mask"].sum()

    def sum(self, outputs: Any, batch: hr.Batch) -> Any:
        return (F.cross_entropy(outputs, batch["y"], reduction="none") * batch["mask"]).sum()


def test_a_loss_may_read_any_stream() -> None:
    ours = trainer(nn.Linear(6, 3), Masked(), inputs="x")
    data = {"x": X, "y": Y, "mask": MASK}
    ours.fit(data, data, epochs=1, progress=False)
    expected = (F.cross_entropy(ours.model(X), Y, reduction="none") * MASK).sum() / MASK.sum()
    assert ours.validate(data)["val/loss"] == pytest.approx(expected.item(), rel=1e-5)


IGNORED = torch.full_like(Y, -100)


@pytest.mark.parametrize(
    ("loss", "streams"),
    [
        (hr.CrossEntropy(ignore_index=-100), {"x": X, "y": IGNORED}),
        (hr.CrossEntropy(class_weights=[0.0, 1.0, 1.0]), {"x": X, "y": Y * 0}),
        (hr.CrossEntropy(weight="w"), {"x": X, "y": Y, "w": X[:, 0] * 0}),
    ],
)
def test_a_set_in_which_no_row_counts_has_no_loss_and_is_never_the_best(
    loss: hr.Loss, streams: dict[str, Tensor]
) -> None:
    ours = trainer(nn.Linear(6, 3), loss, inputs="x")
    good = {"x": X, "y": Y % 2 + 1} | ({"w": X[:, 0] * 0 + 1} if "w" in streams else {})
    keep, stop = hr.BestModel(), hr.EarlyStopping(patience=2)
    with pytest.warns(UserWarning, match=r"val: no row counted for cross_entropy, whose loss is NaN"):
        history = ours.fit(good, streams, epochs=5, progress=False, callbacks=[keep, stop])
    assert all(map(math.isnan, history["val/loss"]))
    assert len(history["val/loss"]) == 2
    assert keep.ranking == stop.ranking == []
    assert "no better than NaN" in str(history.stopped)


def test_a_term_of_which_no_row_counts_is_left_out_of_the_loss_and_warned_of() -> None:
    ours = trainer(nn.Linear(6, 3), hr.CrossEntropy() + hr.MSE(target="z", weight="w"), inputs="x")
    with pytest.warns(UserWarning, match=r"val: no row counted for mse, whose loss is NaN"):
        found = ours.validate({"x": X, "y": Y, "z": X[:, :3], "w": X[:, 0] * 0})
    assert found["val/loss"] == found["val/loss/cross_entropy"]
    assert math.isnan(found["val/loss/mse"])


def recurrent(self: Any, x: Tensor) -> tuple[Tensor, Any]:
    """Returns outputs with rows first, and a state with rows second."""
    out, state = self.layer(x.view(-1, 3, 2))
    return self.leave(out[:, -1]), state


def test_a_model_may_return_more_than_rows() -> None:
    model = Parts(recurrent, layer=nn.LSTM(2, 5, batch_first=True), leave=nn.Linear(5, 3))
    ours = trainer(model, hr.CrossEntropy(output=0), metrics="accuracy")
    ours.fit((X, Y), (X, Y), epochs=1, progress=False)
    logits = ours.model(X)[0]
    scores = ours.validate((X, Y))
    assert scores["val/loss"] == pytest.approx(F.cross_entropy(logits, Y).item(), rel=1e-5)
    assert scores["val/accuracy"] == pytest.approx((logits.argmax(1) == Y).float().mean().item())


def test_a_block_keeps_no_inputs_alive() -> None:
    import weakref

    alive: list[Any] = []

    class Host(hr.Table):
        thread_safe = True
        streams = (hr.Stream("x", (6,)), hr.Stream("y", (), "int64"))

        def __len__(self) -> int:
            return 50

        def take(self, indices: Tensor) -> hr.Batch:
            batch = hr.Batch({"x": X[indices], "y": Y[indices]})
            alive.append(weakref.ref(batch["x"]))
            most.append(sum(ref() is not None for ref in alive))
            return batch

    most: list[int] = []
    ours = trainer(nn.Linear(6, 3), hr.CrossEntropy(), macrobatch=4)
    ours.batch_size = 4
    ours.validate(Host())
    assert len(alive) >= 13
    assert max(most) <= 3


class Merges(nn.Module):
    """Adds its adapter to its weight in eval mode, and takes it out again, as some layers of LoRA do."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.weight = nn.Parameter(torch.randn(3, 6), requires_grad=False)
        self.adapter, self.merged, self.scale = nn.Parameter(torch.zeros(3, 6)), False, 1.0

    def train(self, mode: bool = True) -> "Merges":
        if mode == self.merged:
            self.weight.data += self.adapter * (-1 if mode else 1)
            self.merged = not mode
        return super().train(mode)

    def eval(self) -> "Merges":
        self.scale = 0.5
        return super().eval()

    def forward(self, x: Tensor) -> Tensor:
        weight = self.weight if self.merged else self.weight + self.adapter
        return self.scale * nn.functional.linear(x, weight)


def test_the_train_and_eval_of_a_model_are_called_as_in_a_loop() -> None:
    x, y = torch.randn(40, 6), torch.randint(0, 3, (40,))
    raw = Merges()
    ours: Any = nn.Sequential(Merges())
    by_hand = torch.optim.SGD([raw.adapter], lr=0.5)
    for epoch in range(3):
        raw.train()
        for rows in torch.from_numpy(hr.Order(40, seed=0).indices(epoch, 0, 40)).split(16):
            by_hand.zero_grad()
            nn.functional.cross_entropy(raw(x[rows]), y[rows]).backward()
            by_hand.step()
        nn.Module.eval(raw)
    trainer = hr.Trainer(ours, hr.CrossEntropy(), torch.optim.SGD([ours[0].adapter], lr=0.5), batch_size=16)
    trainer.fit((x, y), (x, y), epochs=3, progress=False)
    raw.train()
    assert torch.equal(raw.adapter, ours[0].adapter)
    assert torch.equal(raw.weight, ours[0].weight)
    raw.eval()
    assert torch.equal(hr.Trainer(ours[0]).predict(x), raw(x))
