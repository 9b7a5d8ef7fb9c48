"""Models as users write them, whose passes are recorded and replayed; and some whose passes cannot be proven.

A pass is replayed only if everything that it does is on the tape's list, so that one model shows many things at once:
each forward below is made of the ways in which a thing is usually written. Where one is not on the list any more, the
note says its line.
"""

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


class Layers(nn.Module):
    """Two layers, which most models here have."""

    def __init__(self, **more: nn.Module) -> None:
        super().__init__()
        self.fc1, self.relu, self.fc2 = nn.Linear(WIDTH, 16), nn.ReLU(), nn.Linear(16, CLASSES)
        for name, module in more.items():
            self.add_module(name, module)

    def forward(self, x: Tensor) -> Any:
        x = self.fc1(x)
        x = self.relu(x)
        return self.fc2(x)


# --- layers, in the ways that they are put together -------------------------------------------------------------


@add()
class Functions(Layers):
    """Torch's functions by their several names, and methods of tensors."""

    def forward(self, x: Tensor) -> Any:
        x = F.dropout(F.leaky_relu(self.fc1(x), 0.1), p=0.2, training=self.training)
        x = torch.nn.functional.gelu(functional.silu(x)).relu().clamp(max=6.0).pow(2).add(1e-3).sqrt()
        return F.log_softmax(self.fc2(x / x.norm(dim=1, keepdim=True).clamp_min(1e-6)), dim=-1)


@add()
class Containers(Layers):
    """Lists, dictionaries and sequences of modules and parameters."""

    def __init__(self) -> None:
        super().__init__(
            blocks=nn.ModuleList([nn.Linear(16, 16) for _ in range(3)]),
            norms=nn.ModuleList([nn.LayerNorm(16) for _ in range(3)]),
            parts=nn.ModuleDict({"one": nn.Linear(16, 16), "act": nn.ELU()}),
            body=nn.Sequential(nn.Linear(16, 16), nn.SELU(), nn.Hardtanh()),
        )
        self.gain = nn.Parameter(torch.ones(1))
        self.factors = nn.ParameterList([nn.Parameter(torch.ones(16)) for _ in range(2)])
        self.shifts = nn.ParameterDict({"a": nn.Parameter(torch.ones(16)), "b": nn.Parameter(torch.zeros(16))})

    def forward(self, x: Tensor) -> Any:
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
        return self.fc2(x) * self.gain.exp()


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
    def __init__(self) -> None:
        super().__init__(blocks=nn.Sequential(Block(WIDTH), Block(WIDTH, norm=False, activation=torch.tanh)))

    def forward(self, x: Tensor) -> Any:
        return super().forward(self.blocks(x))


@add()
class InheritsEverything(Inherits):
    pass


# --- what a pass reads --------------------------------------------------------------------------------------------


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

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Any:
        first = next(self.parameters())
        x = x.to(self.device).to(first.dtype)
        if x.is_cuda or x.device.type != "cpu" or x.dtype != torch.float32 or mask is not None:
            x = x.float()
        x = self.hidden(x - self.centre(x), self.fc1, self.relu, scale=0.7) / math.sqrt(self.fc1.out_features)
        x = F.leaky_relu(x, self.slope).clamp(min=torch.finfo(x.dtype).min) * self.scale * self.momentum
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
class Training(Layers):
    def forward(self, x: Tensor) -> Any:
        x = self.fc1(x)
        if self.training:
            x = x + 0.1 * torch.randn_like(x)
        return self.fc2(x) if self.training else self.fc2(x.detach())


@add()
class Checks(Layers):
    def forward(self, x: Tensor) -> Any:
        assert x.dim() == 2, "rows"
        if not isinstance(x, Tensor) or x.ndim != 2:
            raise TypeError(f"expected a tensor, got {type(x).__name__}")
        if x.shape[1] != self.fc1.in_features:
            raise ValueError(f"expected {self.fc1.in_features} columns, got {x.shape}")
        return super().forward(x)


@add()
class Buffers(Layers):
    """Normalises by buffers, and keeps a running mean in one."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.full((WIDTH,), 0.1))
        self.register_buffer("std", torch.full((WIDTH,), 1.1), persistent=False)
        self.register_buffer("running", torch.zeros(16))

    def forward(self, x: Tensor) -> Any:
        hidden = self.fc1((x - self.mean) / self.std)
        if self.training:
            with torch.no_grad():
                self.running.mul_(0.9).add_(hidden.mean(0), alpha=0.1)
        return self.fc2(hidden - self.running)


# --- what a pass computes -----------------------------------------------------------------------------------------


@add()
class Shapes(Layers):
    """Shapes, products of matrices, writes into memory of its own, and lists and dictionaries of a pass."""

    def forward(self, x: Tensor) -> Any:
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


@add()
class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.enter, self.leave = nn.Linear(WIDTH, 8, bias=False), nn.Linear(8, WIDTH, bias=False)
        self.again, self.head = nn.Linear(WIDTH, 8, bias=False), nn.Linear(8, CLASSES)
        self.again.weight = self.enter.weight

    def forward(self, x: Tensor) -> Any:
        return self.head(self.again(self.leave(torch.relu(self.enter(x)))) + F.linear(x, self.enter.weight))


@add()
class Mixture(nn.Module):
    def __init__(self, experts: int = 3) -> None:
        super().__init__()
        self.gate = nn.Linear(WIDTH, experts)
        self.experts = nn.ModuleList([nn.Sequential(nn.Linear(WIDTH, 8), nn.GELU()) for _ in range(experts)])
        self.head = nn.Linear(8, CLASSES)

    def forward(self, x: Tensor) -> Any:
        gates = F.softmax(self.gate(x), dim=-1)
        made = torch.stack([expert(x) for expert in self.experts], dim=1)
        return self.head((gates.unsqueeze(-1) * made).sum(dim=1))


# --- several inputs and outputs -----------------------------------------------------------------------------------


@add(TWO)
class TwoInputs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.head = nn.Linear(WIDTH, 8), nn.Linear(4, 8), nn.Bilinear(8, 8, CLASSES)

    def forward(self, a: Tensor, b: Tensor) -> Any:
        return self.head(torch.relu(self.a(a)), torch.relu(self.b(b)))


@add({**ROWS, "wanted": ROWS["x"]}, lambda: hr.CrossEntropy(output="logits") + hr.MSE(output="again", target="wanted"))
class GivesDictionary(Layers):
    def __init__(self) -> None:
        super().__init__(back=nn.Linear(16, WIDTH))

    def forward(self, x: Tensor) -> Any:
        hidden = torch.relu(self.fc1(x))
        return {"logits": self.fc2(hidden), "again": self.back(hidden)}


@add(loss=lambda: hr.CrossEntropy(output=0) + hr.CrossEntropy(output=1, name="second"))
class GivesTuple(Layers):
    def forward(self, x: Tensor) -> Any:
        hidden = self.fc1(x)
        return self.fc2(hidden), self.fc2(-hidden)


# --- sequences ----------------------------------------------------------------------------------------------------


@add(SERIES)
class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.rnn, self.cell = nn.LSTM(WIDTH, 8, batch_first=True), nn.RNN(8, 8), nn.LSTMCell(8, 8)
        self.gru = nn.GRU(8, 4, num_layers=2, batch_first=True, bidirectional=True)
        self.head = nn.Linear(8, CLASSES)

    def forward(self, x: Tensor) -> Any:
        h0 = torch.zeros(1, x.size(0), 8, device=x.device)
        c0 = torch.zeros(1, x.shape[0], self.lstm.hidden_size).to(x.device)
        out, (h, _) = self.lstm(x, (h0, c0))
        out, _ = self.gru(out)
        out, _ = self.rnn(out.transpose(0, 1))
        state = None
        for t in range(out.size(0)):
            state = self.cell(out[t], state)
        assert state is not None
        return self.head(state[0] + h[-1] + out[-1])


@add(TEXT)
class Words(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, 8, padding_idx=0), nn.Embedding(16, 8)
        self.head = nn.Linear(8, CLASSES)

    def forward(self, tokens: Tensor) -> Any:
        mask = (tokens != 0).unsqueeze(-1)
        places = torch.arange(tokens.size(1), device=tokens.device).unsqueeze(0)
        x = (self.words(tokens) + self.places(places)) * mask
        return self.head(x.sum(dim=1) / mask.sum(dim=1).clamp(min=1) + x.amax(dim=1))


@add(TEXT)
class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        at, rate = torch.arange(16).unsqueeze(1), torch.exp(torch.arange(0, 8, 2) * (-math.log(10000.0) / 8))
        table = torch.zeros(1, 16, 8)
        table[0, :, 0::2], table[0, :, 1::2] = torch.sin(at * rate), torch.cos(at * rate)
        self.register_buffer("pe", table)
        self.embedding, self.dropout = nn.Embedding(WORDS, 8), nn.Dropout(0.1)
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1, batch_first=True)
        self.head = nn.Linear(8, CLASSES)

    def forward(self, tokens: Tensor) -> Any:
        x = self.embedding(tokens) * math.sqrt(8)
        return self.head(self.layer(self.dropout(x + self.pe[:, : x.size(1)])).mean(dim=1))


@add(MASKED)
class Attention(nn.Module):
    """Attention as it is written in tutorials: by torch's layer, and by hand with masks of several kinds."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(WIDTH, 2, batch_first=True)
        self.query, self.key, self.value = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(3))
        self.register_buffer("tril", torch.tril(torch.ones(8, 8)))
        self.dropout, self.norm, self.head = nn.Dropout(0.1), nn.LayerNorm(WIDTH), nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor, mask: Tensor) -> Any:
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
        return self.head((x * mask.unsqueeze(-1)).sum(1) / mask.sum(1, keepdim=True).clamp(min=1))


class GptBlock(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.c_attn, self.c_proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.ModuleDict({"c_fc": nn.Linear(width, 4 * width), "c_proj": nn.Linear(4 * width, width)})
        self.n_head, self.n_embd, self.dropout = heads, width, 0.1

    def attn(self, x: Tensor) -> Any:
        B, T, C = x.size()
        q, k, v = (
            each.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
            for each in self.c_attn(x).split(self.n_embd, dim=2)
        )
        p = self.dropout if self.training else 0
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=None, dropout_p=p, is_causal=True)
        return self.c_proj(y.transpose(1, 2).contiguous().view(B, T, C))

    def forward(self, x: Tensor) -> Any:
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

    def forward(self, idx: Tensor) -> Any:
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
class Pictures(nn.Module):
    """Convolutions there and back, pools and norms, as in LeNet and a U-Net."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1)
        self.up, self.last = nn.ConvTranspose2d(4, 4, 2, stride=2), nn.Conv2d(8, 4, 1)
        self.bn, self.drop, self.fc = nn.BatchNorm2d(4), nn.Dropout2d(0.1), nn.Linear(16, CLASSES)
        self.features = nn.Sequential(
            nn.Conv2d(4, 4, 3, stride=2, padding=1, bias=False), nn.GroupNorm(2, 4), nn.SiLU(), nn.AdaptiveAvgPool2d(2)
        )

    def forward(self, x: Tensor) -> Any:
        first = F.relu(self.bn(self.conv1(x)))
        deep = self.drop(F.relu(self.conv2(F.max_pool2d(first, 2))))
        x = self.features(F.avg_pool2d(self.last(torch.cat([self.up(deep), first], dim=1)), 2))
        return self.fc(torch.flatten(x, 1))


@add(IMAGES)
class Patches(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.patch, self.conv = nn.Conv2d(1, 8, 4, 4), nn.Conv1d(8, 8, 3, padding="same")
        self.cls, self.pos = nn.Parameter(torch.zeros(1, 1, 8)), nn.Parameter(torch.zeros(1, 5, 8))
        self.norm, self.pool, self.head = nn.LayerNorm(8), nn.AdaptiveMaxPool1d(1), nn.Linear(8, CLASSES)

    def forward(self, x: Tensor) -> Any:
        x = self.patch(x).flatten(2).transpose(1, 2)
        x = torch.cat((self.cls.expand(x.shape[0], -1, -1), x), dim=1) + self.pos
        pooled = self.pool(F.relu(self.conv(F.pad(x.permute(0, 2, 1), (1, 1))))).squeeze(-1)
        return self.head(self.norm(x)[:, 0] + pooled)


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
        named = sum(p.square().sum() for n, p in model.named_parameters() if n.endswith("weight"))
        return {
            "loss": hr.Term(loss, batch.rows),
            "penalty": hr.Term(self.strength * penalty, 1.0),
            "named": hr.Term(named, 1e3),  # type: ignore[arg-type]
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


def sequential(outputs: int = CLASSES) -> nn.Module:
    return nn.Sequential(nn.Linear(WIDTH, 8), nn.BatchNorm1d(8), nn.Softplus(), nn.Dropout(0.1), nn.Linear(8, outputs))


def of_values() -> nn.Module:
    return sequential(1)


ORDINARY.update(
    {
        "function_as_loss": Ordinary(sequential, loss=lambda: scaled_loss),
        "lambda_as_loss": Ordinary(sequential, loss=lambda: lambda out, y: F.cross_entropy(out, y) * 2.0),
        "module_as_loss": Ordinary(sequential, loss=Focal),
        "loss_of_torch": Ordinary(sequential, loss=lambda: nn.CrossEntropyLoss(torch.tensor([1.0, 2, 3]))),
        "loss_with_a_prior": Ordinary(sequential, loss=lambda: hr.CrossEntropy() + hr.L2Prior(1e-3)),
        "weights_of_rows": Ordinary(sequential, WEIGHED, lambda: hr.CrossEntropy(weight="w")),
        "squared_error": Ordinary(of_values, VALUES, hr.MSE),
        "huber": Ordinary(of_values, VALUES, lambda: F.smooth_l1_loss),
        "mean_of_rows": Ordinary(of_values, VALUES, lambda: hr.RowMean(F.l1_loss)),
        "penalty_of_parameters": Ordinary(sequential, loss=Penalised),
        "contrast": Ordinary(sequential, loss=Contrasts),
        "vae_with_a_prior": Ordinary(Vae, {"x": ROWS["x"]}, lambda: Elbo() + hr.L2Prior(1e-3)),
    }
)


# --- passes that cannot be proven -----------------------------------------------------------------------------------


class NotReplayed(NamedTuple):
    """What scales a model whose passes are left to torch, and what the note says of the reason: a name, or a word."""

    scale: Callable[[Any, Tensor], Any]
    word: str
    line: int = 0
    """The line of the reason, counted from that of the function."""
    loss: Any = F.cross_entropy

    def model(self) -> nn.Module:
        scale = self.scale
        forward = {"forward": lambda self, x: Layers.forward(self, x) * self.scale(x), "scale": scale}
        made: Any = type("NotReplayed", (Layers,), {**forward, "cfg": Settings})()
        made.settings = Settings()
        return made  # type: ignore[no-any-return]


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return gradients[0] * 2


class CallableLoss:
    factor = 2.0

    def __call__(self, outputs: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(outputs, y) * self.factor


def imports(self: Any, x: Tensor) -> Any:
    import statistics

    return statistics.fmean([1.0, 1.0])


def counts(self: Any, x: Tensor) -> Any:
    self.calls = getattr(self, "calls", 0) + 1
    return 1.0


NOT_REPLAYED: dict[str, NotReplayed] = {
    "class of settings": NotReplayed(lambda self, x: self.cfg.scale, "cfg"),
    "settings": NotReplayed(lambda self, x: self.settings.scale, "settings"),
    "global settings": NotReplayed(lambda self, x: Settings.scale, "Settings"),
    "getattr": NotReplayed(lambda self, x: getattr(self, "factor", 1.0), "getattr"),
    "hasattr": NotReplayed(lambda self, x: 2.0 if hasattr(self, "factor") else 1.0, "hasattr"),
    "random": NotReplayed(lambda self, x: 2.0 if random.random() < 0.5 else 1.0, "random"),
    "item": NotReplayed(lambda self, x: self.fc1.weight.mean().item(), "item"),
    "print": NotReplayed(lambda self, x: (print(x.shape), 1.0)[1], "print"),
    "import": NotReplayed(imports, "statistics", 1),
    "counts": NotReplayed(counts, "calls", 1),
    "function of autograd": NotReplayed(lambda self, x: Doubled.apply(x.mean()), "Doubled"),
    "callable loss": NotReplayed(lambda self, x: 1.0, "CallableLoss", -1, CallableLoss()),
}
