"""Models as users write them, whose passes are recorded and replayed.

A pass is replayed only if everything that it does is on the tape's list, so that one model shows many things at once:
each forward below is made of the ways in which a thing is usually written. Where one is not on the list any more, the
note says its line.
"""

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn import functional

import headrace as hr

N, WIDTH, STEPS, CLASSES, WORDS = 48, 6, 5, 3, 11
TEMPERATURE = 0.5
SIZES = (8, 8)
NAMES = {"first": 0.5, "second": 1.5}


def _random(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def _whole(most: int, *shape: int, seed: int = 2) -> Tensor:
    return torch.randint(0, most, shape, generator=torch.Generator().manual_seed(seed))


Y = _whole(CLASSES, N)
ROWS = {"x": _random(N, WIDTH), "y": Y}
SERIES = {"x": _random(N, STEPS, WIDTH), "y": Y}
TWO = {"a": _random(N, WIDTH), "b": _random(N, 4, seed=3), "y": Y, "wanted": _random(N, 4, seed=3)}
VALUES = {"x": _random(N, WIDTH), "y": _random(N, 1, seed=4)}
MASKED = {"x": _random(N, STEPS, WIDTH), "mask": _whole(2, N, STEPS).bool(), "y": Y}


class Ordinary(NamedTuple):
    """How a model is made, and what it is trained with."""

    model: Callable[[], nn.Module]
    data: dict[str, Tensor] = ROWS
    loss: Callable[[], Any] = lambda: F.cross_entropy


ORDINARY: dict[str, Ordinary] = {}


class Layers(nn.Module):
    """Two layers, and copies of these."""

    def __init__(self, **more: nn.Module) -> None:
        super().__init__()
        self.fc1, self.relu, self.fc2 = nn.Linear(WIDTH, 16), nn.ReLU(), nn.Linear(16, CLASSES)
        for name, module in more.items():
            self.add_module(name, copy.deepcopy(module))

    def forward(self, x: Tensor) -> Any:
        x = self.fc1(x)
        x = self.relu(x)
        return self.fc2(x)


def add(
    data: dict[str, Tensor] = ROWS, loss: Callable[[], Any] = lambda: F.cross_entropy, **layers: nn.Module
) -> Callable[[Any], Any]:
    """Adds a model to the table: a class, or a forward pass that uses these layers."""

    def to_table(made: Any) -> Any:
        model = made if isinstance(made, type) else type(made.__name__, (Layers,), {"forward": made})
        ORDINARY[made.__name__] = Ordinary(lambda: model(**layers), data, loss)
        return made

    return to_table


# --- what a pass reads and computes -------------------------------------------------------------------------------


@add()
def functions(self: Any, x: Tensor) -> Any:
    """Torch's functions by their several names, and methods of tensors."""
    x = F.dropout(F.leaky_relu(self.fc1(x), 0.1), p=0.2, training=self.training)
    x = torch.nn.functional.gelu(functional.silu(x)).relu().clamp(max=6.0).pow(2).add(1e-3).sqrt()
    if self.training:
        x = x + 0.1 * torch.randn_like(x)
    return F.log_softmax(self.fc2(x / x.norm(dim=1, keepdim=True).clamp_min(1e-6)), dim=-1)


@add(
    blocks=nn.ModuleList([nn.Linear(16, 16) for _ in range(3)]),
    norms=nn.ModuleList([nn.LayerNorm(16) for _ in range(3)]),
    parts=nn.ModuleDict({"one": nn.Linear(16, 16), "act": nn.ELU()}),
    body=nn.Sequential(nn.Linear(16, 16), nn.SELU(), nn.Hardtanh()),
    factors=nn.ParameterList([nn.Parameter(torch.ones(16)) for _ in range(2)]),
    shifts=nn.ParameterDict({"a": nn.Parameter(torch.ones(16)), "b": nn.Parameter(torch.zeros(16))}),
)
def containers(self: Any, x: Tensor) -> Any:
    """Lists, dictionaries and sequences of modules and parameters."""
    x = self.fc1(x)
    for block, norm in zip(self.blocks, self.norms, strict=True):
        x = x + F.relu(block(norm(x)))
    for i, block in enumerate(self.blocks[:-1]):
        x = block(x) if i == 0 else x + block(x) / (i + 1)
    for i in range(len(self.norms)):
        x = self.norms[i](x)
    for block in reversed(self.blocks[1:]):
        x = torch.relu(block(x))
    made = [F.relu(block(x)) for block in self.blocks]
    x = torch.stack(made, dim=0).mean(dim=0) + sum(made) + sum(each * 0.1 for each in made)
    for _, part in self.parts.items():
        x = part(x)
    for layer in self.body:
        x = layer(x)
    for layer in self.body.children():
        x = layer(x)
    for factor in self.factors:
        x = self.norms[-1](x * factor)
    x = self.body[0:2](x) * self.shifts["a"] + self.shifts["b"] + 0.0 * self.parts["one"].bias
    return self.fc2(x)


class Block(nn.Module):
    """A block that other models are made of."""

    expansion = 2

    def __init__(self, width: int, norm: bool = True, activation: Any = F.relu) -> None:
        super().__init__()
        self.grow = nn.Linear(width, width * self.expansion)
        self.shrink = nn.Linear(width * self.expansion, width)
        self.norm = nn.BatchNorm1d(width) if norm else None
        self.activation, self.downsample = activation, nn.Identity()

    def forward(self, x: Tensor) -> Any:
        identity = x
        x = self.shrink(self.activation(self.grow(x)))
        if self.norm is not None:
            x = self.norm(x)
        return x + self.downsample(identity)


class Inherits(Layers):
    def forward(self, x: Tensor) -> Any:
        return super().forward(self.blocks(x))  # type: ignore[operator]


@add(blocks=nn.Sequential(Block(WIDTH), Block(WIDTH, norm=False, activation=torch.tanh)))
class InheritsEverything(Inherits):
    pass


def normalised(x: Tensor, dim: int = -1, *, eps: float = 1e-5) -> Tensor:
    """A helper, as users have them beside their models."""
    return (x - x.mean(dim, keepdim=True)) / (x.std(dim, keepdim=True) + eps)


@dataclass
class Settings:
    scale: float = 1.0


@add()
class Reads(Layers):
    """Numbers, names, containers and functions: of the model, of its class, and global ones."""

    momentum = 0.9
    shape = (4, 4)

    def __init__(self, act: Any = F.gelu) -> None:
        super().__init__()
        self.scale, self.kind, self.slope, self.missing = Settings().scale, "sum", 0.1, None
        self.sizes, self.weights, self.names = [2, 2, 4], {"a": 1.0, "b": 0.5}, list(vars(Settings()))
        self.act, self.last, self.gate = act, torch.tanh, lambda x: x * torch.sigmoid(1.702 * x)
        self.register_buffer("mean", torch.full((WIDTH,), 0.1))
        self.register_buffer("running", torch.zeros(16), persistent=False)

    @property
    def device(self) -> torch.device:
        return self.fc1.weight.device

    @staticmethod
    def squashed(x: Tensor) -> Tensor:
        return torch.sigmoid(x)

    @torch.no_grad()
    def centre(self, x: Tensor) -> Tensor:
        return x.mean(0, keepdim=True)

    def hidden(self, x: Tensor, *layers: nn.Module, **options: float) -> Tensor:
        for layer in layers:
            x = layer(x) * options["scale"]
        return normalised(x, 0, eps=1e-3)

    def forward(self: Any, x: Tensor, mask: Tensor | None = None) -> Any:
        assert x.dim() == 2, "rows"
        if not isinstance(x, Tensor) or x.ndim != 2:
            raise TypeError(f"expected a tensor, got {type(x).__name__}")
        if x.shape[1] != self.fc1.in_features:
            raise ValueError(f"expected {self.fc1.in_features} columns, got {x.shape}")
        first = next(self.parameters())
        x = x.to(self.device).to(first.dtype) - self.mean
        if x.is_cuda or x.device.type != "cpu" or x.dtype != torch.float32 or mask is not None:
            x = x.float()
        x = self.hidden(x - self.centre(x), self.fc1, self.relu, scale=0.7) / math.sqrt(self.fc1.out_features)
        if self.training:
            with torch.no_grad():
                self.running.mul_(0.9).add_(x.mean(0), alpha=0.1)
        x = F.leaky_relu(x - self.running, self.slope).clamp(min=torch.finfo(x.dtype).min) * self.scale * self.momentum
        if self.kind == "sum":
            x = x + self.sizes[0] * self.weights["b"]
        elif self.kind == "mean" or self.missing is not None:
            x = x.mean()
        for size in self.sizes:
            x = x + 0.01 * size
        for weight in self.weights.values():
            x = x * weight
        for name, factor in NAMES.items():
            x = x * factor if name == "first" else x + factor
        x = self.gate(self.last(self.act(x))).view(-1, *self.shape).flatten(1)
        return self.fc2(self.squashed(x)[:, : sum(SIZES)]) / TEMPERATURE


@add()
def shapes(self: Any, x: Tensor) -> Any:
    """Shapes, products of matrices, writes into memory of its own, and lists and dictionaries of a pass."""
    batch, width = x.shape
    assert width == WIDTH
    x = self.fc1(x).view(batch, 4, -1).transpose(1, 2).reshape(x.size(0), -1)
    first, second = x.chunk(2, dim=1)
    a, b = torch.split(second, [3, 5], dim=1)
    x = torch.cat([first, b, a], dim=-1).view(len(x), 2, 8).permute(0, 2, 1).contiguous().flatten(1)
    pairs = torch.einsum("bi,bj->bij", x, x)
    rows = torch.bmm(pairs, x[:, :, None])[..., 0] + (pairs @ x.unsqueeze(-1)).squeeze(-1)
    x = torch.where(rows > 0, rows, 0.01 * rows) * (x > 0).float()
    out = torch.zeros(x.size(0), 16)
    out[:, :8] = x[:, 8:]
    out[:, 8:] += x[:, :8].tanh()
    found: dict[str, Tensor] = {"hidden": out.mul_(2.0)}
    found["hard"] = (x > 0).to(x.dtype) + x - x.detach()  # a straight-through estimator
    skips = [*found.values()]
    both = (skips.pop(), skips[0])
    while x.dim() < 3:
        x = x.unsqueeze(0)
    return self.fc2(both[0] + max(both, key=len) + x.squeeze(0))


@add(TWO, lambda: hr.CrossEntropy(output="logits") + hr.MSE(output="again", target="wanted"), b=nn.Bilinear(16, 4, 4))
def gives_dictionary(self: Any, a: Tensor, b: Tensor) -> Any:
    hidden = torch.relu(self.fc1(a))
    return {"logits": self.fc2(hidden), "again": self.b(hidden, b)}


# --- sequences ----------------------------------------------------------------------------------------------------


@add(
    SERIES,
    lstm=nn.LSTM(WIDTH, 8, batch_first=True),
    rnn=nn.RNN(8, 16),
    cell=nn.LSTMCell(16, 16),
    gru=nn.GRU(8, 4, num_layers=2, batch_first=True, bidirectional=True),
)
def recurrent(self: Any, x: Tensor) -> Any:
    h0 = torch.zeros(1, x.size(0), 8, device=x.device)
    c0 = torch.zeros(1, x.shape[0], self.lstm.hidden_size).to(x.device)
    out, (h, _) = self.lstm(x, (h0, c0))
    out, _ = self.gru(out)
    out, _ = self.rnn(out.transpose(0, 1))
    state: Any = None
    for t in range(out.size(0)):
        state = self.cell(out[t], state)
    return self.fc2(state[0] + out[-1] + h[-1].repeat(1, 2))


@add(MASKED)
class Attention(Layers):
    """Attention as it is written in tutorials: by torch's layer, and by hand with masks of several kinds."""

    def __init__(self) -> None:
        super().__init__(attention=nn.MultiheadAttention(WIDTH, 2, batch_first=True), norm=nn.LayerNorm(WIDTH))
        self.query, self.key, self.value = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(3))
        self.register_buffer("tril", torch.tril(torch.ones(8, 8)))
        self.dropout = nn.Dropout(0.1)

    def forward(self: Any, x: Tensor, mask: Tensor) -> Any:  # type: ignore[override]
        made, _ = self.attention(x, x, x, need_weights=False)
        x = self.norm(x + made)
        _, t, c = x.shape
        wei = self.query(x) @ self.key(x).transpose(-2, -1) * c**-0.5
        wei = wei.masked_fill(self.tril[:t, :t] == 0, float("-inf"))
        x = x + self.dropout(F.softmax(wei, dim=-1)) @ self.value(x)
        later = torch.triu(torch.ones(t, t, dtype=torch.bool, device=x.device), diagonal=1)
        scores = self.query(x) @ self.key(x).mT
        scores = scores + torch.zeros_like(scores).masked_fill_(later, -torch.inf)
        x = x + torch.softmax(scores.masked_fill(~mask.unsqueeze(1), -1e9), dim=-1).matmul(self.value(x))
        return super().forward((x * mask.unsqueeze(-1)).sum(1) / mask.sum(1, keepdim=True).clamp(min=1))


# --- losses and objectives ------------------------------------------------------------------------------------------


def scaled_loss(outputs: Tensor, y: Tensor, temperature: float = TEMPERATURE) -> Tensor:
    """A loss of plain torch."""
    log = F.log_softmax(outputs / temperature, dim=1)
    return -(log.gather(1, y[:, None])).mean() + 1e-3 * outputs.square().mean()


class Focal(nn.Module):
    def __init__(self, gamma: float = 2.0) -> None:
        super().__init__()
        self.gamma = gamma

    def forward(self, outputs: Tensor, y: Tensor) -> Tensor:
        cost = F.cross_entropy(outputs, y, reduction="none")
        return ((1 - torch.exp(-cost)) ** self.gamma * cost).mean()


class Penalised(hr.Objective):
    """An objective that calls the model twice, on inputs with noise, and looks at all parameters."""

    temperature = 0.5

    def __init__(self) -> None:
        self.strength = 1e-3

    def terms(self, model: nn.Module, batch: hr.Batch) -> dict[str, hr.Term]:
        x = batch["x"]
        first, second = (F.normalize(model(x + 0.1 * torch.randn_like(x)), dim=1) for _ in range(2))
        logits = first @ second.t() / self.temperature
        contrast = F.cross_entropy(logits, torch.arange(batch.rows), reduction="sum")
        penalty = sum(param.abs().sum() for param in model.parameters() if param.requires_grad)
        named = sum(p.square().sum() for n, p in model.named_parameters() if n.endswith("weight"))
        return {
            "contrast": hr.Term(contrast, batch.rows),
            "penalty": hr.Term(self.strength * penalty, 1.0, coefficient=self.strength),
            "named": hr.Term(named, 1e3),
        }


def sequential(outputs: int = CLASSES) -> nn.Module:
    return nn.Sequential(nn.Linear(WIDTH, 8), nn.BatchNorm1d(8), nn.Softplus(), nn.Dropout(0.1), nn.Linear(8, outputs))


ORDINARY.update(
    {
        "function_as_loss": Ordinary(sequential, loss=lambda: scaled_loss),
        "lambda_as_loss": Ordinary(sequential, loss=lambda: lambda out, y: F.cross_entropy(out, y) * 2.0),
        "module_as_loss": Ordinary(sequential, loss=Focal),
        "huber": Ordinary(lambda: sequential(1), VALUES, lambda: F.smooth_l1_loss),
        "penalised": Ordinary(sequential, loss=Penalised),
    }
)
