"""A training that logs every update, and the loop that does the same by hand: a line of JSON, and TensorBoard."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import torch
from inference import Prepare
from peers import headrace_trainer, job
from timing import Job
from torch import Tensor, nn
from work import Work


def raw_logged(work: Work, x: Tensor, y: Tensor) -> Job:
    """The hand-written loop with loss, accuracy and rate of every batch; the weights are saved at the end."""
    from torch.utils.tensorboard import SummaryWriter

    model = work.model()
    optimizer = work.optimizer_for(model)
    criterion = nn.CrossEntropyLoss()

    def run() -> None:
        model.train()
        with tempfile.TemporaryDirectory() as folder, open(Path(folder, "metrics.jsonl"), "a") as lines:
            writer = SummaryWriter(folder)  # type: ignore[no-untyped-call]
            order = torch.randperm(len(x))
            for step, start in enumerate(range(0, len(x), work.batch_size), 1):
                rows = order[start : start + work.batch_size]
                optimizer.zero_grad()
                outputs, target = model(x[rows]), y[rows]
                loss = criterion(outputs, target)
                loss.backward()
                optimizer.step()
                accuracy = (outputs.argmax(1) == target).float().mean()
                row = {"loss": loss.item(), "accuracy": accuracy.item(), "rate": optimizer.param_groups[0]["lr"]}
                for key, value in row.items():
                    writer.add_scalar(key, value, step)  # type: ignore[no-untyped-call]
                lines.write(json.dumps({"step": step, **row}) + "\n")
                lines.flush()
            torch.save([model.state_dict(), optimizer.state_dict()], Path(folder, "last.pt"))
            writer.close()  # type: ignore[no-untyped-call]

    return job(run, model, x, y)


def headrace_logged(work: Work, x: Tensor, y: Tensor) -> Job:
    """`fit(run=, log_every="1 step")`, which also writes the log and the checkpoints of a run."""
    model = work.model()
    trainer = headrace_trainer(work, model)

    def run() -> None:
        with tempfile.TemporaryDirectory() as folder:
            trainer.fit((x, y), epochs=1, progress=False, run=f"{folder}/run", log_every="1 step")

    return job(run, model, x, y)


LOGGED: dict[str, dict[str, Prepare]] = {"log": {"raw": raw_logged, "headrace": headrace_logged}}
