"""Batches of loaders with dicts in dicts and with text: both reach the model and the step as they are."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

import headrace as hr

IDS = torch.randint(0, 9, (12, 5), generator=torch.Generator().manual_seed(0))
MASK = (IDS > 2).float()
Y = IDS.sum(1).float() / 20


class Rows(Dataset[Any]):
    def __len__(self) -> int:
        return len(Y)

    def __getitem__(self, row: int) -> Any:
        return {"inputs": {"ids": IDS[row], "mask": MASK[row]}, "text": f"row {row}", "y": Y[row]}


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(9, 1)

    def forward(self, inputs: dict[str, Tensor]) -> Any:
        return (self.words(inputs["ids"])[..., 0] * inputs["mask"]).sum(1)


def trainer(kind: type[hr.Trainer] = hr.Trainer, **options: Any) -> hr.Trainer:
    torch.manual_seed(0)
    model = Model()
    return kind(model, hr.MSE(), torch.optim.SGD(model.parameters(), lr=0.01), inputs="inputs", device="cpu", **options)


def by_hand(epochs: int) -> Tensor:
    torch.manual_seed(0)
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(epochs):
        for batch in DataLoader(Rows(), batch_size=4):
            optimizer.zero_grad()
            nn.functional.mse_loss(model(batch["inputs"]), batch["y"]).backward()
            optimizer.step()
    return model.words.weight.detach()


@pytest.mark.parametrize("tape", [False, "auto"])
def test_a_nested_dict_reaches_the_model_and_trains_as_a_loop_by_hand(tape: Any) -> None:
    found = trainer(tape=tape)
    loader = DataLoader(Rows(), batch_size=4)
    found.fit(loader, loader, epochs=12, progress=False)
    assert torch.equal(found.model.words.weight, by_hand(12))
    assert found.predict(loader).shape == (12,)


def test_text_reaches_a_step_of_one_s_own_as_a_list() -> None:
    seen = []

    class Reading(hr.Trainer):
        def train_step(self, batch: Any) -> Any:
            seen.extend(batch["text"])
            return super().train_step(batch)

    trainer(Reading).fit(DataLoader(Rows(), batch_size=4), epochs=1, progress=False)
    assert seen == [f"row {row}" for row in range(12)]
    assert all(type(text) is str for text in seen)


def test_what_cannot_be_cut_is_refused_where_it_would_have_to_be() -> None:
    with pytest.raises(hr.DataError, match="cannot be cut into rows"):
        trainer(microbatch=2).fit(DataLoader(Rows(), batch_size=4), epochs=1, progress=False)
    with pytest.raises(hr.DataError, match="Give each part a name of its own in one flat dict, or pass a DataLoader"):
        trainer().fit(Rows(), epochs=1, progress=False)
