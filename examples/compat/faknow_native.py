"""The native twin of `faknow_legacy.py`."""

import torch
from torch import nn

import headrace as hr


def news(rows, seed):
    """How often each of 30 words is in a text, and whether it is false."""
    draw = torch.Generator().manual_seed(seed)
    words = torch.poisson(torch.full((rows, 30), 0.6), generator=draw)
    noise = torch.randn(rows, generator=draw)
    return words, (words[:, :3].sum(1) + noise > words[:, 3:6].sum(1)).long()


def main() -> tuple[list[float], dict[str, float]]:
    """The first layer's bias at the end, and what the test says."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(30, 16), nn.ReLU(), nn.Linear(16, 2))
    trainer = hr.Trainer(
        model,
        hr.CrossEntropy(),
        torch.optim.Adam(model.parameters(), lr=0.01),
        batch_size=50,
        order="none",
        clip_norm=1.0,
        schedule=hr.Schedule(lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, step_size=2, gamma=0.5)),
        metrics=["accuracy", "f1"],
        device="cpu",
    )
    stop = hr.EarlyStopping("val/accuracy", patience=2, min_delta=1e-6)
    trainer.fit(news(1000, 1), news(300, 2), epochs=8, callbacks=[stop], progress=False)
    found = trainer.test(news(300, 3))
    return model[0].bias.tolist(), {name: found[f"test/{name}"] for name in ("accuracy", "f1")}


if __name__ == "__main__":
    print(main())
