"""A program for FaKnow, with its imports changed: news that are told to be true or false by the words in them."""

import torch
from torch import nn
from torch.utils.data import DataLoader

from headrace.compat.faknow import BaseTrainer, EarlyStopping, Evaluator


class Detector(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(30, 16), nn.ReLU(), nn.Linear(16, 2))

    def forward(self, words):
        return self.layers(words)

    def calculate_loss(self, data):
        return nn.functional.cross_entropy(self.forward(data["words"]), data["label"])

    def predict(self, data):
        return self.forward(data["words"]).softmax(1)


def news(rows, seed):
    """How often each of 30 words is in a text, and whether it is false."""
    draw = torch.Generator().manual_seed(seed)
    words = torch.poisson(torch.full((rows, 30), 0.6), generator=draw)
    noise = torch.randn(rows, generator=draw)
    false = (words[:, :3].sum(1) + noise > words[:, 3:6].sum(1)).long()
    return [{"words": row, "label": label} for row, label in zip(words, false, strict=True)]


def main() -> tuple[list[float], dict[str, float]]:
    """The first layer's bias at the end, and what the test says."""
    torch.manual_seed(0)
    model = Detector()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=2, gamma=0.5)
    trainer = BaseTrainer(
        model,
        Evaluator(["accuracy", "f1"]),
        optimizer,
        scheduler,
        clip_grad_norm={"max_norm": 1.0},
        early_stopping=EarlyStopping(patience=2),
    )
    loaders = [DataLoader(news(rows, seed), batch_size=50) for rows, seed in ((1000, 1), (300, 2), (300, 3))]
    trainer.fit(loaders[0], 8, loaders[1])
    return model.layers[0].bias.tolist(), trainer.evaluate(loaders[2])


if __name__ == "__main__":
    print(main())
