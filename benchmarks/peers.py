"""The peers: one epoch of the same work as each of them would be asked to do it by a user.

All draw shuffled batches of the same size and make the same number of updates with the same optimizer from
the same first weights. The frameworks show progress, log the loss and keep one metric, accuracy; `accelerate`
has none of these to offer, so its loop only sums the loss. Building a model and a trainer is not timed; what
a framework does inside its `fit` is.
"""

from __future__ import annotations

import copy
import importlib
import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from timing import Job, silence
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset
from work import Work

os.environ["KERAS_BACKEND"] = "torch"  # read when keras is first imported

Prepare = Callable[[Work, Tensor, Tensor], Job]


@dataclass(frozen=True)
class Peer:
    """A name, how to prepare one epoch, the packages this needs and the works it can do."""

    name: str
    prepare: Prepare
    needs: tuple[str, ...] = ()
    works: str = "abcdefg"

    def missing(self) -> str | None:
        """Why this peer cannot run here, or None."""
        for package in self.needs:
            try:
                with silence():
                    importlib.import_module(package)
            except ImportError as error:
                return str(error)
        return None


def job(run: Callable[[], object], model: Callable[[Tensor], Tensor], x: Tensor, y: Tensor) -> Job:
    """Score a run by the trained model's loss on the first rows: all peers should come out about equal."""

    def score() -> float:
        with torch.no_grad():
            return nn.functional.cross_entropy(model(x[:4096]), y[:4096]).item()

    return Job(run, score)


def loader(work: Work, x: Tensor, y: Tensor) -> DataLoader[tuple[Tensor, ...]]:
    """The usual DataLoader over tensors, in this process."""
    return DataLoader(TensorDataset(x, y), batch_size=work.batch_size, shuffle=True)


def raw(work: Work, x: Tensor, y: Tensor, **options: Any) -> Job:
    """The hand-written loop: a permutation, index slicing, nothing logged."""
    model = work.model()
    optimizer = work.optimizer_for(model, **options)
    criterion = nn.CrossEntropyLoss()

    def run() -> None:
        model.train()
        order = torch.randperm(len(x))
        for start in range(0, len(x), work.batch_size):
            rows = order[start : start + work.batch_size]
            optimizer.zero_grad()
            loss = criterion(model(x[rows]), y[rows])
            loss.backward()
            optimizer.step()

    return job(run, model, x, y)


def raw_fused(work: Work, x: Tensor, y: Tensor) -> Job:
    """The hand-written loop with torch's fused optimizer, for reference."""
    return raw(work, x, y, fused=True)


def raw_loader(work: Work, x: Tensor, y: Tensor) -> Job:
    """The hand-written loop over a DataLoader."""
    model = work.model()
    optimizer = work.optimizer_for(model)
    criterion = nn.CrossEntropyLoss()
    batches = loader(work, x, y)

    def run() -> None:
        model.train()
        for rows, target in batches:
            optimizer.zero_grad()
            loss = criterion(model(rows), target)
            loss.backward()
            optimizer.step()

    return job(run, model, x, y)


def headrace_trainer(work: Work, model: nn.Module) -> Any:
    """The trainer that is compared, with nothing switched off."""
    import headrace as hr

    return hr.Trainer(
        model,
        loss=nn.CrossEntropyLoss(),
        optimizer=work.optimizer_for(model),
        batch_size=work.batch_size,
        metrics=["accuracy"],
    )


def headrace(work: Work, x: Tensor, y: Tensor) -> Job:
    """`Trainer.fit` with progress lines, logging and accuracy."""
    model = work.model()
    trainer = headrace_trainer(work, model)
    return job(lambda: trainer.fit((x, y), epochs=1, progress="plain"), model, x, y)


def accelerate(work: Work, x: Tensor, y: Tensor) -> Job:
    """The loop of accelerate's examples, with its running sum of the loss."""
    from accelerate import Accelerator

    model = work.model()
    accelerator = Accelerator(cpu=True)
    wrapped, optimizer, batches = accelerator.prepare(model, work.optimizer_for(model), loader(work, x, y))
    criterion = nn.CrossEntropyLoss()

    def run() -> None:
        wrapped.train()
        total = torch.zeros(())
        for rows, target in batches:
            optimizer.zero_grad()
            loss = criterion(wrapped(rows), target)
            total += loss.detach()
            accelerator.backward(loss)
            optimizer.step()

    return job(run, model, x, y)


def lightning(work: Work, x: Tensor, y: Tensor) -> Job:
    """A LightningModule that logs loss and accuracy per epoch, with the progress bar and a CSV log."""
    import lightning as pl
    from lightning.pytorch.loggers import CSVLogger
    from torchmetrics.classification import MulticlassAccuracy

    class Module(pl.LightningModule):  # type: ignore[misc, unused-ignore]
        def __init__(self) -> None:
            super().__init__()
            self.model = work.model()
            self.criterion = nn.CrossEntropyLoss()
            self.accuracy = MulticlassAccuracy(10, average="micro")

        def training_step(self, batch: list[Tensor], _: int) -> Tensor:
            rows, target = batch
            logits = self.model(rows)
            loss: Tensor = self.criterion(logits, target)
            self.accuracy(logits, target)
            self.log("train_loss", loss, on_step=False, on_epoch=True)
            self.log("train_accuracy", self.accuracy, on_step=False, on_epoch=True)
            return loss

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return work.optimizer_for(self.model)

    module, batches = Module(), loader(work, x, y)
    scratch = tempfile.TemporaryDirectory()
    trainer = pl.Trainer(
        max_epochs=1,
        accelerator="cpu",
        devices=1,
        logger=CSVLogger(scratch.name),
        enable_checkpointing=False,
        num_sanity_val_steps=0,
    )

    def run() -> None:
        with scratch:
            trainer.fit(module, batches)

    return job(run, module.model, x, y)


def ignite(work: Work, x: Tensor, y: Tensor) -> Job:
    """`create_supervised_trainer` with a running loss, accuracy and the progress bar."""
    from ignite.engine import create_supervised_trainer
    from ignite.handlers import ProgressBar
    from ignite.metrics import Accuracy, RunningAverage

    model, batches = work.model(), loader(work, x, y)
    trainer = create_supervised_trainer(
        model,
        work.optimizer_for(model),
        nn.CrossEntropyLoss(),
        output_transform=lambda rows, target, logits, loss: (logits, target, loss.item()),
    )
    RunningAverage(output_transform=lambda output: output[2]).attach(trainer, "loss")
    Accuracy(output_transform=lambda output: output[:2]).attach(trainer, "accuracy")
    ProgressBar().attach(trainer, ["loss"])
    return job(lambda: trainer.run(batches, max_epochs=1), model, x, y)


def skorch(work: Work, x: Tensor, y: Tensor) -> Job:
    """`NeuralNetClassifier` with its epoch timer, its log and accuracy on the training rows."""
    from skorch import NeuralNetClassifier
    from skorch.callbacks import EpochScoring

    model = work.model()
    net = NeuralNetClassifier(
        model,
        criterion=nn.CrossEntropyLoss,
        optimizer=work.optimizer,
        batch_size=work.batch_size,
        max_epochs=1,
        train_split=None,
        iterator_train__shuffle=True,
        callbacks=[EpochScoring("accuracy", on_train=True, name="train_acc", lower_is_better=False)],
        **{f"optimizer__{name}": value for name, value in work.options.items()},
    )
    return job(lambda: net.fit(x, y), model, x, y)


def keras(work: Work, x: Tensor, y: Tensor) -> Job:
    """`Model.fit` of the same perceptron on the torch backend, with its progress bar and accuracy."""
    import keras as k

    first, _, second = work.model().children()
    model = k.Sequential(
        [k.Input(work.shape), k.layers.Dense(128, activation="relu"), k.layers.Dense(10)],
    )
    model.set_weights([v.detach().numpy().T for linear in (first, second) for v in linear.parameters()])
    model.compile(
        optimizer=k.optimizers.SGD(learning_rate=work.options["lr"], momentum=work.options["momentum"]),
        loss=k.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    rows, target = x.numpy(), y.numpy()
    return job(lambda: model.fit(rows, target, batch_size=work.batch_size, epochs=1), model, x, y)


def compiled(work: Work, x: Tensor, y: Tensor) -> Job:
    """The hand-written loop with forward, backward and update compiled by torch. Compiling is not timed."""
    torch.compiler.reset()  # type: ignore[no-untyped-call]  # what was compiled for another model
    model = work.model()
    optimizer = work.optimizer_for(model)
    criterion = nn.CrossEntropyLoss()
    before = copy.deepcopy((model.state_dict(), optimizer.state_dict()))

    loss_of = torch.compile(lambda rows, target: criterion(model(rows), target))  # and with it the backward pass
    update = torch.compile(optimizer.step)

    def run(x: Tensor = x, y: Tensor = y) -> None:
        model.train()
        order = torch.randperm(len(x))
        for start in range(0, len(x), work.batch_size):
            rows = order[start : start + work.batch_size]
            optimizer.zero_grad()
            loss_of(x[rows], y[rows]).backward()
            update()

    short = len(x) % work.batch_size
    for _ in range(3):
        run(x[: 3 * work.batch_size + short], y[: 3 * work.batch_size + short])
    model.load_state_dict(before[0])
    optimizer.load_state_dict(before[1])
    return job(run, model, x, y)


def jax(work: Work, x: Tensor, y: Tensor) -> Job:
    """A bare loop over `jax.jit` of the whole step of work a, NumPy batches going in. Compiling is not timed."""
    import jax as j
    import jax.numpy as jnp
    import numpy as np

    first, _, second = work.model().children()
    weights = [jnp.asarray(p.detach().numpy()) for layer in (first, second) for p in layer.parameters()]
    model, rate, momentum = work.model(), work.options["lr"], work.options["momentum"]

    def loss(w: Any, rows: Any, target: Any) -> Any:
        logits = j.nn.relu(rows @ w[0].T + w[1]) @ w[2].T + w[3]
        return -jnp.take_along_axis(j.nn.log_softmax(logits), target[:, None], 1).mean()

    @j.jit
    def step(w: Any, v: Any, rows: Any, target: Any) -> Any:
        gradients = j.grad(loss)(w, rows, target)
        v = [momentum * a + g for a, g in zip(v, gradients, strict=True)]
        return [a - rate * b for a, b in zip(w, v, strict=True)], v

    rows, target = x.numpy(), y.numpy().astype(np.int32)

    def run() -> None:
        w, v = weights, [jnp.zeros_like(a) for a in weights]
        order = np.random.default_rng(0).permutation(len(rows))
        for start in range(0, len(rows), work.batch_size):
            batch = order[start : start + work.batch_size]
            w, v = step(w, v, rows[batch], target[batch])
        for layer, (weight, bias) in zip((model[0], model[2]), (w[:2], w[2:]), strict=True):  # type: ignore[index]
            layer.weight.data, layer.bias.data = (torch.from_numpy(np.array(a)) for a in (weight, bias))

    for size in {work.batch_size, len(rows) % work.batch_size or work.batch_size}:
        zeros = [jnp.zeros_like(a) for a in weights]
        j.block_until_ready(step(weights, zeros, rows[:size], target[:size]))
    return job(run, model, x, y)


# What `raw-again` differs from `raw` by is the noise of the run.
PEERS = {
    peer.name: peer
    for peer in (
        Peer("raw", raw),
        Peer("headrace", headrace, ("headrace.train.trainer",)),
        Peer("raw-again", raw),
        Peer("raw-fused", raw_fused, works="b"),
        Peer("raw-loader", raw_loader),
        Peer("accelerate", accelerate, ("accelerate",)),
        Peer("lightning", lightning, ("lightning", "torchmetrics")),
        Peer("ignite", ignite, ("ignite", "tqdm"), works="a"),
        Peer("skorch", skorch, ("skorch",), works="a"),
        Peer("keras", keras, ("keras",), works="a"),
        Peer("compiled", compiled, works="a"),
        Peer("jax", jax, ("jax",), works="a"),
    )
}
# Quick ones whose ratios decide by a few percent: timed several times in each repeat.
OFTEN = ("raw", "headrace", "raw-again", "raw-fused", "jax")
