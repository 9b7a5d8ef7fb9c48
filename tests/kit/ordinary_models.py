"""Models as users write them, whose passes are recorded and replayed; and some whose passes cannot be proven."""

import math
import random
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
TEXT = {"x": _whole(WORDS, N, STEPS), "y": Y}
IMAGES = {"x": _random(N, 1, 8, 8), "y": Y}
TWO = {"a": _random(N, WIDTH), "b": _random(N, 4, seed=3), "y": Y}
VALUES = {"x": _random(N, WIDTH), "y": _random(N, 1, seed=4)}
WEIGHED = {"x": _random(N, WIDTH), "y": Y, "w": _random(N, seed=5).abs()}
MASKED = {"x": _random(N, STEPS, WIDTH), "mask": _whole(2, N, STEPS).bool(), "y": Y}


class Config:
    scale = 1.0


@dataclass
class Settings:
    scale: float = 1.0


class Ordinary(NamedTuple):
    """How a model is made, and what it is trained with."""

    model: Callable[[], nn.Module]
    data: dict[str, Tensor] = ROWS
    loss: Callable[[], Any] = lambda: F.cross_entropy


ORDINARY: dict[str, Ordinary] = {}


def add(data: dict[str, Tensor] = ROWS, loss: Callable[[], Any] = lambda: F.cross_entropy) -> Callable[[Any], Any]:
    """Adds a model to the table, by the name of its class."""

    def to_table(model: Any) -> Any:
        ORDINARY[model.__name__] = Ordinary(model, data, loss)
        return model

    return to_table


# --- layers, in the ways that they are put together -------------------------------------------------------------


@add()
class Layers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc1 = nn.Linear(WIDTH, 16)
        self.relu = nn.ReLU()
        self.fc2 = nn.Linear(16, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.fc1(x)
        x = self.relu(x)
        return self.fc2(x)


@add()
class Functions(Layers):
    def forward(self, x: Tensor) -> Tensor:
        x = F.leaky_relu(self.fc1(x), 0.1)
        x = F.dropout(x, p=0.2, training=self.training)
        return F.log_softmax(self.fc2(torch.tanh(x)), dim=-1)


@add()
class ByNames(Layers):
    """Torch's functions by other names: from imports, and by the whole path."""

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(torch.nn.functional.gelu(functional.silu(self.fc1(x))))


@add()
class Methods(Layers):
    def forward(self, x: Tensor) -> Tensor:
        hidden = self.fc1(x).relu().clamp(max=6.0).pow(2).add(1e-3).sqrt()
        return self.fc2(hidden / hidden.norm(dim=1, keepdim=True).clamp_min(1e-6))


@add()
class Residuals(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.enter = nn.Linear(WIDTH, 8)
        self.blocks = nn.ModuleList([nn.Linear(8, 8) for _ in range(3)])
        self.norms = nn.ModuleList([nn.LayerNorm(8) for _ in range(3)])
        self.leave = nn.Linear(8, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.enter(x)
        for block, norm in zip(self.blocks, self.norms, strict=True):
            x = x + F.relu(block(norm(x)))
        return self.leave(x)


@add()
class Enumerated(Residuals):
    def forward(self, x: Tensor) -> Tensor:
        x = self.enter(x)
        for i, block in enumerate(self.blocks):
            x = block(x) if i == 0 else x + block(x) / (i + 1)
        for i in range(len(self.norms)):
            x = self.norms[i](x)
        return self.leave(x)


@add()
class Reversed(Residuals):
    def forward(self, x: Tensor) -> Tensor:
        x = self.enter(x)
        for block in reversed(self.blocks[1:]):
            x = torch.relu(block(x))
        while x.dim() < 3:
            x = x.unsqueeze(0)
        return self.leave(x.squeeze(0))


@add()
class Comprehension(Residuals):
    def forward(self, x: Tensor) -> Tensor:
        x = self.enter(x)
        made = [F.relu(block(x)) for block in self.blocks]
        return self.leave(torch.stack(made, dim=0).mean(dim=0) + sum(made) + sum(each * 0.1 for each in made))


@add()
class Dictionary(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ModuleDict({"enter": nn.Linear(WIDTH, 8), "act": nn.ELU(), "leave": nn.Linear(8, CLASSES)})

    def forward(self, x: Tensor) -> Tensor:
        for _, part in self.parts.items():
            x = part(x)
        return x + 0.0 * self.parts["leave"].bias


@add()
class Children(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(WIDTH, 8), nn.SELU(), nn.Linear(8, 8), nn.Hardtanh())
        self.head = nn.Linear(8, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.body:
            x = layer(x)
        return self.head(x)


@add()
class NamedChildren(Children):
    def forward(self, x: Tensor) -> Tensor:
        for layer in self.body.children():
            x = layer(x)
        return self.head(self.body[0:2](x[:, :WIDTH]))


@add()
class InheritsForward(Layers):
    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(CLASSES, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(super().forward(x))


@add()
class InheritsEverything(InheritsForward):
    pass


class Block(nn.Module):
    """A block that other models here are made of."""

    expansion = 2

    def __init__(self, width: int, norm: bool = True, activation: Any = F.relu) -> None:
        super().__init__()
        self.grow = nn.Linear(width, width * self.expansion)
        self.shrink = nn.Linear(width * self.expansion, width)
        self.norm = nn.BatchNorm1d(width) if norm else None
        self.activation = activation
        self.downsample = nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        identity = x
        x = self.shrink(self.activation(self.grow(x)))
        if self.norm is not None:
            x = self.norm(x)
        return x + self.downsample(identity)


@add()
class Blocks(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.Sequential(Block(WIDTH), Block(WIDTH, norm=False, activation=torch.tanh))
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.blocks(x))


# --- what a pass reads --------------------------------------------------------------------------------------------


@add()
class Numbers(Layers):
    momentum = 0.9
    shape = (4, 4)

    def __init__(self) -> None:
        super().__init__()
        self.scale, self.kind, self.slope, self.missing = 0.5, "sum", 0.1, None
        self.sizes = [2, 2, 4]
        self.weights = {"a": 1.0, "b": 0.5}

    def forward(self, x: Tensor) -> Tensor:
        x = F.leaky_relu(self.fc1(x), self.slope) * self.scale * self.momentum
        if self.kind == "sum":
            x = x + self.sizes[0] * self.weights["b"]
        elif self.kind == "mean" or self.missing is not None:
            x = x.mean()
        for size in self.sizes:
            x = x + 0.01 * size
        for weight in self.weights.values():
            x = x * weight
        return self.fc2(x.view(-1, *self.shape).flatten(1))


@add()
class Globals(Layers):
    def forward(self, x: Tensor) -> Tensor:
        x = self.fc1(x)
        for name, factor in NAMES.items():
            x = x * factor if name == "first" else x + factor
        return self.fc2(x[:, : sum(SIZES)]) / TEMPERATURE


def normalised(x: Tensor, dim: int = -1, *, eps: float = 1e-5) -> Tensor:
    """A helper, as users have them beside their models."""
    return (x - x.mean(dim, keepdim=True)) / (x.std(dim, keepdim=True) + eps)


@add()
class Helpers(Layers):
    def hidden(self, x: Tensor, scale: float = 2.0) -> Tensor:
        return normalised(self.fc1(x)) * scale

    @staticmethod
    def squashed(x: Tensor) -> Tensor:
        return torch.sigmoid(x)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(self.squashed(self.hidden(x, scale=0.5) + normalised(self.hidden(x), 0, eps=1e-3)))


@add()
class Properties(Layers):
    @property
    def width(self) -> int:
        return self.fc1.out_features

    @property
    def device(self) -> torch.device:
        return self.fc1.weight.device

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(self.fc1(x.to(self.device)) / math.sqrt(self.width))


@add()
class Activation(Layers):
    def __init__(self, act: Any = F.gelu) -> None:
        super().__init__()
        self.act, self.last = act, torch.tanh

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(self.last(self.act(self.fc1(x))))


@add()
class Lambda(Layers):
    def __init__(self) -> None:
        super().__init__()
        self.act = lambda x: x * torch.sigmoid(1.702 * x)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(self.act(self.fc1(x)))


@add()
class Training(Layers):
    def forward(self, x: Tensor) -> Tensor:
        x = self.fc1(x)
        if self.training:
            x = x + 0.1 * torch.randn_like(x)
        return self.fc2(x) if self.training else self.fc2(x.detach())


@add()
class Checks(Layers):
    def forward(self, x: Tensor, scale: float = 1.0, mask: Tensor | None = None) -> Tensor:
        assert x.dim() == 2, "rows"
        if not isinstance(x, Tensor) or x.ndim != 2:
            raise TypeError(f"expected a tensor, got {type(x).__name__}")
        if x.shape[1] != self.fc1.in_features:
            raise ValueError(f"expected {self.fc1.in_features} columns, got {x.shape}")
        if mask is not None:
            x = x * mask
        return self.fc2(self.fc1(x)) * scale


@add()
class Options(Layers):
    def step(self, x: Tensor, *layers: nn.Module, **options: float) -> Tensor:
        for layer in layers:
            x = layer(x) * options["scale"]
        return x

    def forward(self, x: Tensor) -> Tensor:
        return self.step(x, self.fc1, self.relu, self.fc2, scale=0.7)


@add()
class NoGradient(Layers):
    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            centre = x.mean(0)
        return self.fc2(torch.relu(self.fc1(x - centre.detach())))


@add()
class Shapes(Layers):
    def forward(self, x: Tensor) -> Tensor:
        batch, width = x.shape
        n = x.size(0)
        x = self.fc1(x).view(batch, 4, -1).transpose(1, 2).reshape(n, -1)
        first, second = x.chunk(2, dim=1)
        a, b = torch.split(second, [3, 5], dim=1)
        x = torch.cat([first, b, a], dim=-1).view(len(x), 2, 8).permute(0, 2, 1).contiguous().flatten(1)
        assert width == WIDTH
        return self.fc2(x)


@add()
class Sums(Layers):
    """Products of matrices in several ways."""

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.fc1(x)
        pairs = torch.einsum("bi,bj->bij", hidden, hidden)
        rows = torch.bmm(pairs, hidden[:, :, None])[..., 0] + (pairs @ hidden.unsqueeze(-1)).squeeze(-1)
        return self.fc2(torch.where(rows > 0, rows, 0.01 * rows) * (hidden > 0).float())


@add()
class Scalars(Layers):
    def __init__(self) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.ones(1))
        self.bias = nn.Parameter(torch.zeros(16))
        self.factors = nn.ParameterList([nn.Parameter(torch.ones(16)) for _ in range(2)])

    def forward(self, x: Tensor) -> Tensor:
        x = self.fc1(x) + self.bias
        for factor in self.factors:
            x = x * factor
        return self.fc2(x) * self.gain.exp()


@add()
class Devices(Layers):
    """Asks where it is, and of what type."""

    def forward(self, x: Tensor) -> Tensor:
        first = next(self.parameters())
        x = x.to(first.device).to(first.dtype)
        if x.is_cuda or x.device.type != "cpu" or x.dtype != torch.float32:
            x = x.float()
        return self.fc2(self.fc1(x).clamp(min=torch.finfo(x.dtype).min))


@add()
class Decorated(Layers):
    @torch.no_grad()
    def centre(self, x: Tensor) -> Tensor:
        return x.mean(0, keepdim=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(torch.relu(self.fc1(x - self.centre(x))))


@add()
class Assigns(Layers):
    """Writes into memory of its own."""

    def forward(self, x: Tensor) -> Tensor:
        x = self.fc1(x)
        out = torch.zeros(x.size(0), 16)
        out[:, :8] = x[:, 8:]
        out[:, 8:] += x[:, :8].tanh()
        out = out.mul_(2.0)
        return self.fc2(out)


@add()
class ParameterDictionary(Layers):
    def __init__(self) -> None:
        super().__init__()
        self.gains = nn.ParameterDict({"a": nn.Parameter(torch.ones(16)), "b": nn.Parameter(torch.zeros(16))})

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(self.fc1(x) * self.gains["a"] + self.gains["b"])


@add()
class LastLayer(Residuals):
    def forward(self, x: Tensor) -> Tensor:
        x = self.enter(x)
        for block in self.blocks[:-1]:
            x = x + block(x)
        return self.leave(self.norms[-1](self.blocks[-1](x)))


@add()
class Buffers(Layers):
    """Normalises by buffers, and keeps a running mean in one."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.full((WIDTH,), 0.1))
        self.register_buffer("std", torch.full((WIDTH,), 1.1), persistent=False)
        self.register_buffer("running", torch.zeros(16))

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.fc1((x - self.mean) / self.std)
        if self.training:
            with torch.no_grad():
                self.running.mul_(0.9).add_(hidden.mean(0), alpha=0.1)
        return self.fc2(hidden - self.running)


@add()
class FromConfig(Layers):
    """Takes its settings from an object once, when it is made."""

    def __init__(self) -> None:
        super().__init__()
        settings = Settings()
        self.scale, self.names = settings.scale, list(vars(settings))

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * self.scale


@add()
class GradientsPass(Layers):
    """A straight-through estimator."""

    def forward(self, x: Tensor) -> Tensor:
        x = self.fc1(x)
        hard = (x > 0).to(x.dtype)
        return self.fc2(hard + x - x.detach())


@add()
class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.enter, self.leave = nn.Linear(WIDTH, 8, bias=False), nn.Linear(8, WIDTH, bias=False)
        self.leave.weight = nn.Parameter(self.enter.weight.detach().t().clone())
        self.again = nn.Linear(WIDTH, 8, bias=False)
        self.again.weight = self.enter.weight
        self.head = nn.Linear(8, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.again(self.leave(torch.relu(self.enter(x)))) + F.linear(x, self.enter.weight))


@add()
class Mixture(nn.Module):
    def __init__(self, experts: int = 3) -> None:
        super().__init__()
        self.gate = nn.Linear(WIDTH, experts)
        self.experts = nn.ModuleList([nn.Sequential(nn.Linear(WIDTH, 8), nn.GELU()) for _ in range(experts)])
        self.head = nn.Linear(8, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        gates = F.softmax(self.gate(x), dim=-1)
        made = torch.stack([expert(x) for expert in self.experts], dim=1)
        return self.head((gates.unsqueeze(-1) * made).sum(dim=1))


@add()
class Skips(nn.Module):
    """As in a U-Net: what goes down is kept in a list for the way up."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.ModuleList([nn.Linear(WIDTH, 8), nn.Linear(8, 4)])
        self.up = nn.ModuleList([nn.Linear(4, 8), nn.Linear(16, CLASSES)])

    def forward(self, x: Tensor) -> Tensor:
        skips = []
        for layer in self.down:
            x = F.relu(layer(x))
            skips.append(x)
        skips.pop()
        for k, layer in enumerate(self.up):
            x = layer(x)
            if k == 0:
                x = torch.cat([F.relu(x), skips.pop()], dim=1)
        return x


@add()
class LocalDictionary(Layers):
    def forward(self, x: Tensor) -> Tensor:
        found: dict[str, Tensor] = {}
        found["hidden"] = self.fc1(x)
        found["active"] = self.relu(found["hidden"])
        both = (found["hidden"], found["active"])
        return self.fc2(both[0] + max(both, key=len))


# --- several inputs and outputs -----------------------------------------------------------------------------------


@add(TWO)
class TwoInputs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.head = nn.Linear(WIDTH, 8), nn.Linear(4, 8), nn.Bilinear(8, 8, CLASSES)

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return self.head(torch.relu(self.a(a)), torch.relu(self.b(b)))


@add({**ROWS, "wanted": ROWS["x"]}, lambda: hr.CrossEntropy(output="logits") + hr.MSE(output="again", target="wanted"))
class GivesDictionary(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.enter, self.head, self.back = nn.Linear(WIDTH, 8), nn.Linear(8, CLASSES), nn.Linear(8, WIDTH)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        hidden = torch.relu(self.enter(x))
        return {"logits": self.head(hidden), "again": self.back(hidden)}


@add(loss=lambda: hr.CrossEntropy(output=0) + hr.CrossEntropy(output=1, name="second"))
class GivesTuple(GivesDictionary):
    def forward(self, x: Tensor) -> Any:
        hidden = self.enter(x)
        return self.head(hidden), self.head(-hidden)


# --- sequences ----------------------------------------------------------------------------------------------------


@add(SERIES)
class Lstm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rnn, self.head = nn.LSTM(WIDTH, 8, batch_first=True), nn.Linear(8, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        out, (_, _) = self.rnn(x)
        return self.head(out[:, -1])


@add(SERIES)
class LstmWithStates(Lstm):
    def forward(self, x: Tensor) -> Tensor:
        h0 = torch.zeros(1, x.size(0), 8, device=x.device)
        c0 = torch.zeros(1, x.shape[0], self.rnn.hidden_size).to(x.device)
        _, (h, _) = self.rnn(x, (h0, c0))
        return self.head(h[-1])


@add(SERIES)
class Gru(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.GRU(WIDTH, 4, num_layers=2, batch_first=True, bidirectional=True)
        self.head = nn.Linear(8, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        out, _ = self.rnn(x)
        return self.head(out.mean(dim=1))


@add(SERIES)
class Rnn(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rnn, self.head = nn.RNN(WIDTH, 8), nn.Linear(8, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        _, h = self.rnn(x.transpose(0, 1))
        return self.head(h.squeeze(0))


@add(SERIES)
class Cell(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell, self.head = nn.LSTMCell(WIDTH, 8), nn.Linear(8, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        state = None
        for t in range(x.size(1)):
            state = self.cell(x[:, t], state)
        assert state is not None
        return self.head(state[0])


@add(TEXT)
class Words(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, 8, padding_idx=0)
        self.head = nn.Linear(8, CLASSES)

    def forward(self, tokens: Tensor) -> Tensor:
        mask = (tokens != 0).unsqueeze(-1)
        x = self.embedding(tokens) * mask
        return self.head(x.sum(dim=1) / mask.sum(dim=1).clamp(min=1))


@add(TEXT)
class Positions(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, 8), nn.Embedding(16, 8)
        self.head = nn.Linear(8, CLASSES)

    def forward(self, tokens: Tensor) -> Tensor:
        places = torch.arange(tokens.size(1), device=tokens.device).unsqueeze(0)
        return self.head((self.words(tokens) + self.places(places)).amax(dim=1))


class PositionalEncoding(nn.Module):
    def __init__(self, width: int, most: int = 16) -> None:
        super().__init__()
        at = torch.arange(most).unsqueeze(1)
        rate = torch.exp(torch.arange(0, width, 2) * (-math.log(10000.0) / width))
        table = torch.zeros(1, most, width)
        table[0, :, 0::2], table[0, :, 1::2] = torch.sin(at * rate), torch.cos(at * rate)
        self.register_buffer("pe", table)
        self.dropout = nn.Dropout(0.1)

    def forward(self, x: Tensor) -> Tensor:
        return self.dropout(x + self.pe[:, : x.size(1)])


@add(TEXT)
class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.places = nn.Embedding(WORDS, 8), PositionalEncoding(8)
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1, batch_first=True)
        self.head = nn.Linear(8, CLASSES)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.places(self.embedding(tokens) * math.sqrt(8))
        return self.head(self.layer(x).mean(dim=1))


@add(SERIES)
class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(WIDTH, 2, batch_first=True)
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        made, _ = self.attention(x, x, x, need_weights=False)
        return self.head(self.norm(x + made).mean(1))


@add(SERIES)
class ScaledDotProduct(nn.Module):
    def __init__(self, heads: int = 2) -> None:
        super().__init__()
        self.heads = heads
        self.qkv, self.out, self.head = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        b, t, c = x.shape
        q, k, v = (each.view(b, t, self.heads, c // self.heads).transpose(1, 2) for each in self.qkv(x).chunk(3, -1))
        made = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.head(self.out(made.transpose(1, 2).reshape(b, t, c))[:, -1])


@add(SERIES)
class CausalAttention(nn.Module):
    """Attention as it is written in tutorials."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(WIDTH, 4, bias=False) for _ in range(3))
        self.register_buffer("tril", torch.tril(torch.ones(8, 8)))
        self.dropout, self.head = nn.Dropout(0.1), nn.Linear(4, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        _, t, c = x.shape
        k, q = self.key(x), self.query(x)
        wei = q @ k.transpose(-2, -1) * c**-0.5
        wei = wei.masked_fill(self.tril[:t, :t] == 0, float("-inf"))
        wei = self.dropout(F.softmax(wei, dim=-1))
        return self.head((wei @ self.value(x)).mean(dim=1))


@add(MASKED)
class MaskedAttention(CausalAttention):
    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        scores = torch.matmul(self.query(x), self.key(x).transpose(1, 2)) / math.sqrt(self.query.out_features)
        scores = scores.masked_fill(~mask.unsqueeze(1), -1e9)
        made = torch.softmax(scores, dim=-1).matmul(self.value(x)) * mask.unsqueeze(-1)
        return self.head(made.sum(1) / mask.sum(1, keepdim=True).clamp(min=1))


@add(SERIES)
class TriangleMade(CausalAttention):
    """Attention whose mask is made in each pass."""

    def forward(self, x: Tensor) -> Tensor:
        t = x.size(1)
        mask = torch.triu(torch.ones(t, t, dtype=torch.bool, device=x.device), diagonal=1)
        scores = self.query(x) @ self.key(x).mT
        scores = scores + torch.zeros_like(scores).masked_fill_(mask, -torch.inf)
        return self.head((scores.softmax(-1) @ self.value(x))[:, 0, :])


class SelfAttention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        assert width % heads == 0
        self.c_attn, self.c_proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.n_head, self.n_embd, self.dropout = heads, width, 0.1

    def forward(self, x: Tensor) -> Tensor:
        B, T, C = x.size()
        q, k, v = self.c_attn(x).split(self.n_embd, dim=2)
        q = q.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        k = k.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        v = v.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        p = self.dropout if self.training else 0
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=None, dropout_p=p, is_causal=True)
        return self.c_proj(y.transpose(1, 2).contiguous().view(B, T, C))


class GptBlock(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attn = SelfAttention(width, heads)
        self.mlp = nn.ModuleDict({"c_fc": nn.Linear(width, 4 * width), "c_proj": nn.Linear(4 * width, width)})

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.ln_1(x))
        m = self.mlp
        return x + m["c_proj"](F.gelu(m["c_fc"](self.ln_2(x))))


@add(TEXT)
class Gpt(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.transformer = nn.ModuleDict(
            {"wte": nn.Embedding(WORDS, 8), "wpe": nn.Embedding(16, 8), "h": nn.ModuleList([GptBlock(8, 2)])}
        )
        self.block_size, self.head = 16, nn.Linear(8, CLASSES, bias=False)

    def forward(self, idx: Tensor) -> Tensor:
        device = idx.device
        _, t = idx.size()
        assert t <= self.block_size, f"cannot forward a sequence of length {t}, the block size is {self.block_size}"
        pos = torch.arange(0, t, dtype=torch.long, device=device)
        x = self.transformer.wte(idx) + self.transformer.wpe(pos)
        for block in self.transformer.h:
            x = block(x)
        return self.head(x[:, -1, :])


# --- images ---------------------------------------------------------------------------------------------------------


@add(IMAGES)
class LeNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 4, 3, padding=1), nn.Conv2d(4, 4, 3)
        self.bn, self.drop, self.fc = nn.BatchNorm2d(4), nn.Dropout2d(0.1), nn.Linear(4, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.bn(self.conv1(x))), 2)
        x = self.drop(F.relu(self.conv2(x)))
        return self.fc(torch.flatten(F.avg_pool2d(x, 2), 1))


@add(IMAGES)
class Groups(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 4, 3, stride=2, padding=1, bias=False), nn.GroupNorm(2, 4), nn.SiLU(), nn.AdaptiveAvgPool2d(1)
        )
        self.classifier = nn.Linear(4, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.features(x)
        return self.classifier(x.view(x.size(0), -1))


@add(IMAGES)
class Patches(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.patch = nn.Conv2d(1, 8, 4, 4)
        self.cls, self.pos = nn.Parameter(torch.zeros(1, 1, 8)), nn.Parameter(torch.zeros(1, 5, 8))
        self.norm, self.head = nn.LayerNorm(8), nn.Linear(8, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patch(x).flatten(2).transpose(1, 2)
        x = torch.cat((self.cls.expand(x.shape[0], -1, -1), x), dim=1) + self.pos
        return self.head(self.norm(x)[:, 0])


@add(IMAGES)
class UNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down, self.middle = nn.Conv2d(1, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1)
        self.up, self.last = nn.ConvTranspose2d(4, 4, 2, stride=2), nn.Conv2d(8, CLASSES, 1)

    def forward(self, x: Tensor) -> Tensor:
        first = F.relu(self.down(x))
        deep = F.relu(self.middle(F.max_pool2d(first, 2)))
        return self.last(torch.cat([self.up(deep), first], dim=1)).mean(dim=(2, 3))


@add(SERIES)
class Convolution1d(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.pool = nn.Conv1d(WIDTH, 8, 3, padding="same"), nn.AdaptiveMaxPool1d(1)
        self.head = nn.Linear(8, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = F.pad(x.permute(0, 2, 1), (1, 1))
        return self.head(self.pool(F.relu(self.conv(x))).squeeze(-1))


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
    """An objective that looks at all parameters."""

    def __init__(self) -> None:
        self.strength = 1e-3

    def terms(self, model: nn.Module, batch: hr.Batch) -> dict[str, hr.Term]:
        outputs = model(batch["x"])
        loss = F.cross_entropy(outputs, batch["y"], reduction="sum")
        penalty = sum(param.abs().sum() for param in model.parameters() if param.requires_grad)
        return {
            "loss": hr.Term(loss, batch.rows),
            "penalty": hr.Term(self.strength * penalty, 1.0),
            "named": hr.Term(sum(p.square().sum() for n, p in model.named_parameters() if n.endswith("weight")), 1e3),
        }


class Contrasts(hr.Objective):
    """An objective that calls the model twice, on inputs with noise."""

    temperature = 0.5

    def terms(self, model: nn.Module, batch: hr.Batch) -> dict[str, hr.Term]:
        x = batch["x"]
        first, second = (F.normalize(model(x + 0.1 * torch.randn_like(x)), dim=1) for _ in range(2))
        logits = first @ second.t() / self.temperature
        labels = torch.arange(batch.rows)
        return {"contrast": hr.Term(F.cross_entropy(logits, labels, reduction="sum"), batch.rows)}


class Vae(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.mu, self.logvar = nn.Linear(WIDTH, 8), nn.Linear(8, 2), nn.Linear(8, 2)
        self.decoder = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, WIDTH))

    def reparameterize(self, mu: Tensor, logvar: Tensor) -> Tensor:
        std = torch.exp(0.5 * logvar)
        eps = torch.randn_like(std)
        return mu + eps * std

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        hidden = F.relu(self.encoder(x))
        mu, logvar = self.mu(hidden), self.logvar(hidden)
        return self.decoder(self.reparameterize(mu, logvar)), mu, logvar


class Elbo(hr.Objective):
    """An objective with a plain number."""

    def __init__(self, beta: float = 0.5) -> None:
        self.beta = beta

    def terms(self, model: nn.Module, batch: hr.Batch) -> dict[str, hr.Term]:
        x = batch["x"]
        again, mu, logvar = model(x)
        error = F.mse_loss(again, x, reduction="sum")
        kl = -0.5 * torch.sum(1 + logvar - mu.pow(2) - logvar.exp())
        return {"error": hr.Term(error, batch.rows), "kl": hr.Term(kl, batch.rows, coefficient=self.beta)}


def sequential() -> nn.Module:
    return nn.Sequential(nn.Linear(WIDTH, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.1), nn.Linear(8, CLASSES))


def of_values() -> nn.Module:
    return nn.Sequential(nn.Linear(WIDTH, 8), nn.Softplus(), nn.Linear(8, 1))


ORDINARY.update(
    {
        "sequential": Ordinary(sequential),
        "function_as_loss": Ordinary(sequential, loss=lambda: scaled_loss),
        "lambda_as_loss": Ordinary(sequential, loss=lambda: lambda out, y: F.cross_entropy(out, y) * 2.0),
        "module_as_loss": Ordinary(sequential, loss=Focal),
        "loss_of_torch": Ordinary(sequential, loss=lambda: nn.CrossEntropyLoss(label_smoothing=0.1)),
        "weighted_loss_of_torch": Ordinary(sequential, loss=lambda: nn.CrossEntropyLoss(torch.tensor([1.0, 2, 3]))),
        "loss_with_a_prior": Ordinary(sequential, loss=lambda: hr.CrossEntropy() + hr.L2Prior(1e-3)),
        "weights_of_rows": Ordinary(sequential, WEIGHED, lambda: hr.CrossEntropy(weight="w")),
        "squared_error": Ordinary(of_values, VALUES, hr.MSE),
        "huber": Ordinary(of_values, VALUES, lambda: F.smooth_l1_loss),
        "mean_of_rows": Ordinary(of_values, VALUES, lambda: hr.RowMean(F.l1_loss)),
        "penalty_of_parameters": Ordinary(sequential, loss=Penalised),
        "contrast": Ordinary(sequential, loss=Contrasts),
        "vae": Ordinary(Vae, {"x": ROWS["x"]}, Elbo),
        "vae_with_a_prior": Ordinary(Vae, {"x": ROWS["x"]}, lambda: Elbo() + hr.L2Prior(1e-3)),
    }
)


# --- passes that cannot be proven -----------------------------------------------------------------------------------


class NotReplayed(NamedTuple):
    """A model whose passes are left to torch, and what the note says of the reason: a name, or a word."""

    model: Callable[[], nn.Module]
    words: tuple[str, ...]
    loss: Callable[[], Any] = lambda: F.cross_entropy


class UsesConfig(Layers):
    cfg = Config

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * self.cfg.scale  # note: cfg


class UsesSettings(Layers):
    def __init__(self) -> None:
        super().__init__()
        self.settings = Settings()

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * self.settings.scale  # note: settings


class UsesGlobalConfig(Layers):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * Config.scale  # note: Config


class UsesGetattr(Layers):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * getattr(self, "scale", 1.0)  # note: getattr


class UsesHasattr(Layers):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * (2.0 if hasattr(self, "scale") else 1.0)  # note: hasattr


class UsesImport(Layers):
    def forward(self, x: Tensor) -> Tensor:
        import statistics  # note: statistics

        return super().forward(x) * statistics.fmean([1.0, 1.0])


class UsesRandom(Layers):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * (2.0 if random.random() < 0.5 else 1.0)  # note: random


class UsesItem(Layers):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * self.fc1.weight.mean().item()  # note: item


class UsesPrint(Layers):
    def forward(self, x: Tensor) -> Tensor:
        print(x.shape)  # note: print
        return super().forward(x)


class Counts(Layers):
    calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1  # note: calls
        return super().forward(x)


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return gradients[0] * 2


class UsesFunction(Layers):
    def forward(self, x: Tensor) -> Tensor:
        return Doubled.apply(super().forward(x))  # note: Doubled


class Schedule:
    def __init__(self) -> None:
        self.value = 1.0

    def __call__(self) -> float:
        return self.value


class UsesCallable(Layers):
    def __init__(self) -> None:
        super().__init__()
        self.schedule = Schedule()

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * self.schedule()  # note: schedule


class CallableLoss:
    def __init__(self) -> None:
        self.factor = 2.0

    def __call__(self, outputs: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(outputs, y) * self.factor


NOT_REPLAYED: dict[str, NotReplayed] = {
    each.__name__: NotReplayed(each, (name,))
    for each, name in [
        (UsesConfig, "cfg"),
        (UsesSettings, "settings"),
        (UsesGlobalConfig, "Config"),
        (UsesGetattr, "getattr"),
        (UsesHasattr, "hasattr"),
        (UsesImport, "statistics"),
        (UsesRandom, "random"),
        (UsesItem, "item"),
        (UsesPrint, "print"),
        (Counts, "calls"),
        (UsesFunction, "Doubled"),
        (UsesCallable, "schedule"),
    ]
} | {"callable_loss": NotReplayed(sequential, ("CallableLoss",), CallableLoss)}
