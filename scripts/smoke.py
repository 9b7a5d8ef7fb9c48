"""A small program of a user: what an installed headrace has to import, train, resume and answer.

scripts/package runs it where nothing but the package is installed; mypy and pyright look at its types.
"""

import tempfile
from pathlib import Path

import torch
from torch import nn

import headrace as hr


def train(run: Path, epochs: int) -> tuple[hr.History, torch.Tensor]:
    """Trains, or goes on in, a run."""
    torch.manual_seed(1)
    x = torch.randn(200, 4)
    y = x[:, :3].argmax(dim=1)
    model = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 3))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    trainer = hr.Trainer(model, hr.CrossEntropy(), optimizer, batch_size=20, metrics=["accuracy"])
    history = trainer.fit((x[:150], y[:150]), val=(x[150:], y[150:]), epochs=epochs, run=run, progress=False)
    answers = trainer.predict(x[150:])
    assert isinstance(answers, torch.Tensor)
    return history, answers


def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        whole, answers = train(Path(directory, "whole"), epochs=4)
        train(Path(directory, "parts"), epochs=2)
        history, answers_of_parts = train(Path(directory, "parts"), epochs=4)
    accuracy: float = whole.last["val/accuracy"]
    assert accuracy > 0.5, accuracy
    assert torch.equal(answers, answers_of_parts)
    assert history.last["val/accuracy"] == accuracy
    print(f"headrace {hr.__version__} in {Path(hr.__file__).parent}: accuracy {accuracy:.2f}, the same when resumed")


if __name__ == "__main__":
    main()
