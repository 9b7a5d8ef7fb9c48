"""Models whose parts can be sharded, trainings of them, and workers that make these."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import headrace as hr
from headrace.engines.job import Job
from headrace.engines.processes import run
from kit import forked
from kit.torch_workers import PATIENCE_S, fork_workers

WORDS, WIDTH, LENGTH, CLASSES = 11, 8, 5, 3
ROWS, BATCH = 39, 16  # the last of three batches of an epoch has 7 rows
State = dict[str, Tensor]


class Block(nn.Module):
    """A part of a transformer. Its attention has no bias: the keys' has no gradient, and Adam makes noise of that."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.attention = nn.MultiheadAttention(WIDTH, 2, bias=False, batch_first=True)
        self.layers = nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(x)
        x = x + self.attention(h, h, h, need_weights=False)[0]
        return x + self.layers(x)  # type: ignore[no-any-return]


class Tied(nn.Module):
    """A transformer whose first and last weights are the same."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.head = nn.Linear(WIDTH, WORDS, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, words: Tensor) -> Tensor:
        x = self.embedding(words)
        for block in self.blocks:
            x = block(x)
        return self.head(x).mean(dim=1)  # type: ignore[no-any-return]


class Adapted(nn.Module):
    """A frozen layer with a trained one of low rank beside it."""

    def __init__(self, layer: nn.Linear, rank: int = 2) -> None:
        super().__init__()
        self.layer = layer.requires_grad_(False)
        self.down = nn.Linear(layer.in_features, rank, bias=False)
        self.up = nn.Linear(rank, layer.out_features, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) + self.up(self.down(x))  # type: ignore[no-any-return]


class Layers(nn.Module):
    """Blocks of one layer each, and a layer behind them."""

    def __init__(self, adapted: bool = False, frozen: bool = False) -> None:
        super().__init__()
        layers = [nn.Linear(6, 7), nn.Linear(7, 5)]
        self.blocks = nn.ModuleList(Adapted(layer) if adapted else layer for layer in layers)
        self.blocks[0].requires_grad_((not frozen and not adapted) or adapted)
        if adapted:
            for block in self.blocks:
                block.layer.requires_grad_(False)
        self.last = nn.Linear(5, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = torch.tanh(block(x))
        return self.last(x)  # type: ignore[no-any-return]


class Measuring(Layers):
    """Layers that measure what passes, by batch normalisation."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(6)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(self.norm(x))


MODELS: dict[str, Callable[[], nn.Module]] = {
    "layers": Layers,
    "tied": Tied,
    "frozen": lambda: Layers(frozen=True),
    "adapted": lambda: Layers(adapted=True),
    "measuring": Measuring,
}


def data(kind: str, rows: int = ROWS) -> dict[str, Tensor]:
    """The data that a model of this kind learns from."""
    generator = torch.Generator().manual_seed(3)
    if kind == "tied":
        words = torch.randint(0, WORDS, (rows, LENGTH), generator=generator)
        return {"x": words, "y": words[:, 0]}
    x = torch.randn(rows, 6, generator=generator)
    return {"x": x, "y": x[:, :CLASSES].argmax(dim=1)}


def make(kind: str, **settings: Any) -> hr.Trainer:
    """A trainer of a model of this kind, the same on every worker."""
    torch.manual_seed(1)
    chosen: dict[str, Any] = {"batch_size": BATCH, "metrics": ["accuracy"], "strategy": hr.Sharded("blocks.*")}
    given = {"optimizer": adam, **chosen, **settings}
    return hr.Trainer(MODELS[kind](), hr.CrossEntropy(), **given)


def adam(params: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(params, lr=1e-2, eps=1e-4)


def sgd(params: Any) -> torch.optim.Optimizer:
    """One that gradients of another size show in."""
    return torch.optim.SGD(params, lr=0.01, momentum=0.5)


def full(model: nn.Module) -> State:
    """The complete tensors of a model; all workers that have a part of it call this."""
    found = {}
    for name, value in model.state_dict().items():
        whole = value.full_tensor() if type(value).__name__ == "DTensor" else value
        found[name] = whole.detach().clone()
    return found


def distance(one: State, other: State) -> float:
    """The largest difference between two states."""
    assert one.keys() == other.keys()
    return max(float((one[name].double() - other[name].double()).abs().max()) for name in one)


def by_workers(function: Callable[..., Any], *arguments: Any, workers: int = 2) -> Any:
    """What a function returns on worker 0, of workers that are forked from this process, which `start` has made."""
    fork_workers()
    return run(Job(function, arguments, workers=workers, timeout_s=PATIENCE_S)).value


def _call(file: str, name: str, workers: int, *arguments: Any) -> None:
    module = sys.modules.get(Path(file).stem) or forked._loaded(file)
    by_workers(getattr(module, name), *arguments, workers=workers)


def in_workers(function: Callable[..., Any], at: Path, *arguments: Any, workers: int = 2, code: int = 0) -> str:
    """Calls a function of a test's module in worker processes, which end with this status; what they have printed."""
    given = (function.__code__.co_filename, function.__name__, workers, *arguments)
    with forked.start(_call, at, *given) as child:
        assert child.ending() == code, child.output
        return child.output
