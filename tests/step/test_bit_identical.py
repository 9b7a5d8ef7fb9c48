"""The first promise: after three epochs the weights are, bit for bit, those of the loop written by hand."""

from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from kit.optimizers import OPTIMIZERS
from kit.plain_loop import plain_loop
from kit.sampled import sampled
from kit.small import Parts
from kit.small import same as equal
from torch import Tensor, nn
from torch.nn.utils import parametrizations

import headrace as hr
from headrace.arena import flat

ROWS, BATCH, EPOCHS = 1003, 64, 3
X = torch.randn(ROWS, 33, generator=torch.Generator().manual_seed(1))
Y = torch.randint(0, 7, (ROWS,), generator=torch.Generator().manual_seed(2))

Make = Callable[[], nn.Module]


def odd_mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(33, 37), nn.Tanh(), nn.Linear(37, 5), nn.ReLU(), nn.Linear(5, 7))


def dropout_mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(33, 41), nn.ReLU(), nn.Dropout(0.4), nn.Linear(41, 7))


def batchnorm_mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(33, 29), nn.BatchNorm1d(29), nn.ReLU(), nn.Linear(29, 7))


def frozen_mlp() -> Any:
    model: Any = odd_mlp()
    model[2].requires_grad_(False)
    return model


def tied() -> nn.Module:
    """The last layer uses the transpose of the first one's weights."""
    layers = {name: nn.Linear(33, 7, bias=False) for name in ("enter", "again")} | {"inner": nn.Linear(7, 33)}
    layers["again"].weight = layers["enter"].weight
    return Parts(lambda self, x: self.again(torch.tanh(self.inner(self.enter(x)))), **layers)


class Sometimes(nn.Module):
    """Two branches that take turns by batch, and a layer that is never used."""

    def __init__(self) -> None:
        super().__init__()
        self.enter = nn.Linear(33, 11)
        self.left, self.unused, self.right = nn.Linear(11, 7), nn.Linear(11, 7), nn.Linear(11, 7)
        self.calls = 0

    def forward(self, x: Tensor) -> Any:
        self.calls += self.training
        hidden = torch.relu(self.enter(x))
        return self.left(hidden) if self.calls % 3 else self.right(hidden)


def channels() -> Any:
    """Convolution weights stored with the channels last."""
    layers = {"conv": nn.Conv2d(3, 5, 3, padding=1), "leave": nn.Linear(55, 7)}
    model: Any = Parts(lambda self, x: self.leave(torch.relu(self.conv(x.view(-1, 3, 11, 1))).flatten(1)), **layers)
    return model.to(memory_format=torch.channels_last)


def raw_loop(model: nn.Module, optimizer: torch.optim.Optimizer, **options: Any) -> nn.Module:
    norm, value, y = (options.pop(name, default) for name, default in [("clip_norm", 0), ("clip_value", 0), ("y", Y)])

    def clip() -> None:
        if norm:
            nn.utils.clip_grad_norm_(model.parameters(), norm)
        if value:
            nn.utils.clip_grad_value_(model.parameters(), value)

    torch.manual_seed(7)
    return plain_loop(model, optimizer, (X, y), BATCH, EPOCHS, clip=clip, **options)


def fitted(model: nn.Module, optimizer: torch.optim.Optimizer, **options: Any) -> nn.Module:
    loss, y = options.pop("loss", nn.CrossEntropyLoss()), options.pop("y", Y)
    trainer = hr.Trainer(model, loss, optimizer, batch_size=BATCH, **options)
    torch.manual_seed(7)
    trainer.fit((X, y), epochs=EPOCHS, progress=False)
    return model


def both(make: Make, optimizer: Callable[[nn.Module], torch.optim.Optimizer]) -> tuple[list[Any], list[Any]]:
    """Two equal models with their optimizers."""
    pairs = []
    for _ in range(2):
        torch.manual_seed(3)
        model = make()
        pairs.append([model, optimizer(model)])
    return pairs[0], pairs[1]


FLAT = ["sgd", "momentum", "nesterov", "dampened", "adam", "amsgrad", "adamw"]
"""Those whose steps on vectors are made without torch's own bookkeeping."""


@pytest.mark.parametrize("name", sampled(OPTIMIZERS, keep=FLAT, of=3))
def test_every_elementwise_optimizer_gives_the_bits_of_the_raw_loop(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flat, "PIECE", 64)  # even parameters of this size are stepped in pieces
    (raw, o1), (ours, o2) = both(odd_mlp, lambda model: OPTIMIZERS[name](model.parameters()))
    start = {k: v.clone() for k, v in raw.state_dict().items()}
    assert equal(raw_loop(raw, o1), fitted(ours, o2))
    assert any(not torch.equal(v, start[k]) for k, v in raw.state_dict().items())


def spectral_mlp() -> nn.Module:
    """A layer whose weight changes buffers whenever it is asked for."""
    return nn.Sequential(parametrizations.spectral_norm(nn.Linear(33, 37)), nn.ReLU(), nn.Linear(37, 7))


class WithoutWeight(nn.Linear):
    """A linear layer whose weight has another name."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs)
        self.kernel = self.weight
        del self.weight

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.kernel, self.bias)


def renamed_mlp() -> nn.Module:
    return nn.Sequential(WithoutWeight(33, 37), nn.ReLU(), nn.Linear(37, 7))


class Rests(nn.Module):
    """Its `train` keeps the batch normalisation in eval mode, as a detector's does."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.norm, self.leave = nn.Linear(33, 29), nn.BatchNorm1d(29), nn.Linear(29, 7)

    def train(self, mode: bool = True) -> "Rests":
        super().train(mode)
        self.norm.eval()
        return self

    def forward(self, x: Tensor) -> Any:
        return self.leave(torch.relu(self.norm(self.enter(x))))


MODELS: list[Make] = [
    dropout_mlp,
    batchnorm_mlp,
    frozen_mlp,
    tied,
    Sometimes,
    channels,
    spectral_mlp,
    renamed_mlp,
    Rests,
]
NAMES = ["adam", "nesterov", "rmsprop", "adamw", "adam", "nesterov", "adam", "nesterov", "adam"]


@pytest.mark.parametrize(
    ("make", "name"),
    sampled(
        product(MODELS, ["nesterov", "adam", "adamw", "rmsprop"]), keep=list(zip(MODELS, NAMES, strict=True)), of=6
    ),
)
def test_every_kind_of_model_gives_the_bits_of_the_raw_loop(make: Make, name: str) -> None:
    (raw, o1), (ours, o2) = both(make, lambda model: OPTIMIZERS[name](model.parameters()))
    assert equal(raw_loop(raw, o1), fitted(ours, o2))
    assert equal(o1.state_dict(), o2.state_dict())


def bag() -> nn.Module:
    """Has sparse gradients."""
    layers = {"words": nn.EmbeddingBag(50, 8, sparse=True), "leave": nn.Linear(8, 7)}
    return Parts(lambda self, x: self.leave(self.words(x[:, :5].abs().mul(10).long().clamp(max=49))), **layers)


def half() -> nn.Module:
    """Parameters in half precision, in tensors whose ends a processor does not compute like their middle."""
    return Parts(lambda self, x: self.inner(x.bfloat16()), inner=odd_mlp().bfloat16())


def waves() -> nn.Module:
    """Has complex numbers alone."""
    weight = nn.Parameter(torch.randn(33, 7, dtype=torch.complex64))
    return Parts(lambda self, x: (x.to(torch.complex64) @ self.weight).abs(), weight=weight)


def decaying_weights(model: nn.Module) -> torch.optim.Optimizer:
    weights = [p for p in model.parameters() if p.dim() > 1]
    biases = [p for p in model.parameters() if p.dim() == 1]
    return torch.optim.AdamW([{"params": weights, "weight_decay": 0.1}, {"params": biases, "weight_decay": 0.0}])


def penalised(outputs: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(outputs, target) + 0.01 * outputs.square().mean()


class Doubled(Tensor):
    """A class of tensors whose backward pass doubles the gradients."""

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if function is Tensor.backward:
            kwargs["gradient"] = torch.tensor(2.0)
        elif function is torch.autograd.backward:
            kwargs["grad_tensors"] = [2 * seed for seed in kwargs["grad_tensors"]]
        return super().__torch_function__(function, types, args, kwargs)  # type: ignore[no-untyped-call]


def doubled(outputs: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(outputs, target).as_subclass(Doubled)


NUMBERS = torch.randn(ROWS, 7, generator=torch.Generator().manual_seed(5))
MOMENTUM: Any = lambda model: OPTIMIZERS["momentum"](model.parameters())  # noqa: E731
FUSED: Any = lambda model: torch.optim.Adam(model.parameters(), lr=1e-4, fused=True)  # noqa: E731
SMOOTH = nn.CrossEntropyLoss(label_smoothing=0.1)
WEIGHED = nn.CrossEntropyLoss(weight=torch.linspace(0.5, 2.0, 7))
EXACT: dict[str, tuple[Any, Any, dict[str, Any], dict[str, Any]]] = {
    "groups with weight decay of their own": (odd_mlp, decaying_weights, {}, {}),
    "squares": (odd_mlp, MOMENTUM, {"loss": F.mse_loss, "y": NUMBERS}, {"loss": nn.MSELoss(), "y": NUMBERS}),
    "distances": (odd_mlp, MOMENTUM, {"loss": F.l1_loss, "y": NUMBERS}, {"loss": nn.L1Loss(), "y": NUMBERS}),
    "Huber": (
        odd_mlp,
        MOMENTUM,
        {"loss": lambda out, y: F.smooth_l1_loss(out, y, beta=0.11), "y": NUMBERS},
        {"loss": hr.Huber(), "y": NUMBERS},
    ),
    "a plain function": (odd_mlp, MOMENTUM, {"loss": penalised}, {"loss": penalised}),
    "a loss with a backward pass of its own": (odd_mlp, MOMENTUM, {"loss": doubled}, {"loss": doubled}),
    "clipped by value": (odd_mlp, MOMENTUM, {"clip_value": 0.01}, {"clip_value": 0.01}),
    "no arena": (odd_mlp, MOMENTUM, {}, {"arena": False}),
    "parameters in half precision": (half, lambda model: torch.optim.SGD(model.parameters(), lr=0.1), {}, {}),
    "complex numbers": (waves, lambda model: torch.optim.Adam(model.parameters(), lr=1e-2), {}, {}),
    "sparse gradients": (bag, lambda model: torch.optim.SGD(model.parameters(), lr=0.1), {}, {}),
    "an optimizer that needs shapes": (odd_mlp, lambda model: torch.optim.Adafactor(model.parameters()), {}, {}),
}
"""The model, the optimizer, and the options of the loop by hand and of the trainer."""
TRUTHS = (NUMBERS > 0).float()
ROUNDED: dict[str, tuple[Any, Any, dict[str, Any], dict[str, Any]]] = {
    "clipped by norm": (odd_mlp, MOMENTUM, {"clip_norm": 0.1}, {"clip_norm": 0.1}),
    "fused": (odd_mlp, FUSED, {"loss": F.cross_entropy}, {"loss": nn.CrossEntropyLoss()}),
    "fused, with weights of classes": (odd_mlp, FUSED, {"loss": WEIGHED}, {"loss": WEIGHED}),
    "truths": (
        odd_mlp,
        MOMENTUM,
        {"loss": F.binary_cross_entropy_with_logits, "y": TRUTHS},
        {"loss": nn.BCEWithLogitsLoss(), "y": TRUTHS},
    ),
    "smoothed labels": (odd_mlp, MOMENTUM, {"loss": SMOOTH}, {"loss": SMOOTH}),
}


@pytest.mark.parametrize("name", EXACT)
def test_what_may_be_asked_for_gives_the_bits_of_the_raw_loop(name: str) -> None:
    make, optimizer, by_hand, ours = EXACT[name]
    (raw, o1), (model, o2) = both(make, optimizer)
    assert equal(raw_loop(raw, o1, **by_hand), fitted(model, o2, **ours))


@pytest.mark.parametrize("name", ROUNDED)
def test_where_rounding_is_allowed_it_stays_below_one_in_a_million(name: str) -> None:
    make, optimizer, by_hand, ours = ROUNDED[name]
    (raw, o1), (model, o2) = both(make, optimizer)
    raw_loop(raw, o1, **by_hand)
    fitted(model, o2, **ours)
    torch.testing.assert_close([*model.parameters()], [*raw.parameters()], rtol=0, atol=1e-6)


def test_another_order_gives_other_weights() -> None:
    """The control: the comparison is able to fail."""
    (raw, o1), (ours, o2) = both(odd_mlp, lambda model: OPTIMIZERS["sgd"](model.parameters()))
    assert not equal(raw_loop(raw, o1, seed=1), fitted(ours, o2))
