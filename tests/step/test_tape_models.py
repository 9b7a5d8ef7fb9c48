"""Random models of torch's layers: with a tape their weights are those of the loop written by hand, bit for bit."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kit.optimizers import OPTIMIZERS
from kit.plain_loop import plain_loop
from kit.sampled import EVERY
from kit.small import Parts
from torch import Tensor, nn

import headrace as hr

WIDTH = 12


def reshaped(layer: nn.Module, shape: tuple[int, ...], width: int) -> nn.Module:
    """A layer for another shape of rows, back to rows of `WIDTH` numbers by a linear layer."""

    def call(self: Any, x: Tensor) -> Any:
        out = self.layer(x.view(-1, *shape))
        out = out[0] if isinstance(out, tuple) else out
        return self.leave(out.flatten(1))

    return Parts(call, layer=layer, leave=nn.Linear(width, WIDTH))


def added(layer: nn.Module) -> nn.Module:
    """What a layer gives is added to what it gets."""
    return Parts(lambda self, x: x + self.layer(x), layer=layer)


def attention() -> nn.Module:
    """Every part of a row looks at the others."""
    layer = nn.MultiheadAttention(4, 2, dropout=0.1, batch_first=True)
    return Parts(lambda self, x: self.layer(x, x, x, need_weights=False)[0], layer=layer)


def looked(layer: nn.Module) -> nn.Module:
    """Numbers as words, which are looked up."""
    return Parts(lambda self, x: self.layer(x.detach().mul(3).long().clamp(-4, 4) + 4), layer=layer)


def rows_of(make: Callable[..., nn.Module], *shape: int, width: int, **options: Any) -> Callable[[], nn.Module]:
    return lambda: reshaped(make(**options), shape, width)


LAYERS: list[Callable[[], nn.Module]] = [
    lambda: nn.utils.parametrizations.spectral_norm(nn.Linear(WIDTH, WIDTH)),
    lambda: nn.Linear(WIDTH, WIDTH),
    lambda: nn.Linear(WIDTH, WIDTH, bias=False),
    *(nn.ReLU, nn.Tanh, nn.Sigmoid, nn.GELU, nn.SiLU, nn.ELU, nn.Softplus, nn.Hardswish, nn.Mish, nn.LogSigmoid),
    lambda: nn.LeakyReLU(0.2),
    lambda: nn.PReLU(WIDTH),
    lambda: nn.Softmax(-1),
    lambda: nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(inplace=True)),
    lambda: nn.Dropout(0.3),
    lambda: nn.AlphaDropout(0.2),
    lambda: nn.BatchNorm1d(WIDTH),
    lambda: nn.BatchNorm1d(WIDTH, affine=False, track_running_stats=False),
    lambda: nn.LayerNorm(WIDTH),
    lambda: nn.RMSNorm(WIDTH),
    lambda: nn.GroupNorm(3, WIDTH),
    lambda: nn.utils.parametrizations.weight_norm(nn.Linear(WIDTH, WIDTH)),
    rows_of(nn.Conv1d, 2, 6, width=24, in_channels=2, out_channels=4, kernel_size=3, padding=1),
    rows_of(nn.Conv2d, 1, 3, 4, width=24, in_channels=1, out_channels=2, kernel_size=3, padding=1),
    rows_of(nn.ConvTranspose1d, 2, 6, width=21, in_channels=2, out_channels=3, kernel_size=2),
    rows_of(nn.MaxPool1d, 2, 6, width=6, kernel_size=2),
    rows_of(nn.AvgPool2d, 1, 4, 3, width=2, kernel_size=2),
    rows_of(nn.AdaptiveAvgPool1d, 2, 6, width=8, output_size=4),
    rows_of(nn.InstanceNorm1d, 2, 6, width=12, num_features=2, affine=True),
    rows_of(nn.BatchNorm2d, 3, 2, 2, width=12, num_features=3),
    rows_of(nn.Dropout2d, 3, 2, 2, width=12),
    rows_of(nn.Upsample, 1, 3, 4, width=48, scale_factor=2),
    rows_of(nn.RNN, 3, 4, width=9, input_size=4, hidden_size=3, batch_first=True),
    rows_of(nn.GRU, 3, 4, width=9, input_size=4, hidden_size=3, batch_first=True),
    rows_of(nn.LSTM, 3, 4, width=9, input_size=4, hidden_size=3, batch_first=True),
    rows_of(nn.LSTM, 3, 4, width=18, input_size=4, hidden_size=3, num_layers=2, bidirectional=True, batch_first=True),
    rows_of(attention, 3, 4, width=12),
    rows_of(nn.TransformerEncoderLayer, 3, 4, width=12, d_model=4, nhead=2, dim_feedforward=8, batch_first=True),
    lambda: reshaped(looked(nn.Embedding(9, 2, padding_idx=0)), (WIDTH,), 24),
    lambda: reshaped(looked(nn.EmbeddingBag(9, 5)), (WIDTH,), 5),
]

NOT_RECORDED = {0}
"""Which of these change in a pass what they compute with."""


def classes_of(outputs: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(outputs, target)


def distance_of(outputs: Tensor, target: Tensor) -> Tensor:
    return F.mse_loss(outputs, torch.eye(WIDTH)[target])


def margins_of(outputs: Tensor, target: Tensor) -> Tensor:
    return F.multi_margin_loss(outputs, target) + 1e-3 * outputs.square().mean()


@dataclass
class Case:
    """A training: how the model is made and trained, and on what."""

    make: Callable[[], nn.Module]
    optimizer: Callable[[Any], torch.optim.Optimizer]
    loss: Callable[[Tensor, Tensor], Tensor]
    rows: int
    batch: int
    text: str


def random_case(random: Random) -> Case:
    """A training at random."""
    kinds = [random.randrange(len(LAYERS)) for _ in range(random.randint(1, 4))]
    residual = [random.random() < 0.3 for _ in kinds]
    again, frozen, tied = random.random() < 0.3, random.random() < 0.3, random.random() < 0.3

    def make() -> nn.Module:
        found = [LAYERS[kind]() for kind in kinds]
        layers = [added(layer) if add else layer for layer, add in zip(found, residual, strict=True)]
        first, last = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        if tied:
            last.weight = first.weight
        if frozen:
            layers[0].requires_grad_(False)
        return nn.Sequential(first, *layers, *(layers[-1:] if again else []), last)

    batch = random.choice([4, 7, 8])
    rows = batch * random.randint(5, 7) + random.choice([0, 2, 3])
    text = f"{kinds=} {residual=} {again=} {frozen=} {tied=} {batch=} {rows=}"
    loss = random.choice([classes_of, distance_of, margins_of])
    return Case(make, OPTIMIZERS[random.choice([*OPTIMIZERS])], loss, rows, batch, text)


# --- trainings ----------------------------------------------------------------------------------------------------

EPOCHS = 3


def data_of(rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(rows, WIDTH, generator=generator), torch.randint(0, WIDTH, (rows,), generator=generator)


def start(case: Case) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(3)
    model = case.make()
    return model, case.optimizer([p for p in model.parameters() if p.requires_grad])


def by_hand(case: Case) -> nn.Module:
    model, optimizer = start(case)
    torch.manual_seed(7)
    return plain_loop(model, optimizer, data_of(case.rows), case.batch, EPOCHS, loss=case.loss)


def taped(case: Case, tape: Any, **options: Any) -> tuple[nn.Module, str]:
    model, optimizer = start(case)
    trainer = hr.Trainer(model, hr.RowMean(case.loss), optimizer, batch_size=case.batch, tape=tape, **options)
    torch.manual_seed(7)
    trainer.fit(data_of(case.rows), epochs=EPOCHS, progress=False)
    return model, trainer.tape_note


def differing(a: nn.Module, b: nn.Module) -> list[str]:
    pairs = zip(a.state_dict().items(), b.state_dict().values(), strict=True)
    return [name for (name, p), q in pairs if not torch.equal(p.nan_to_num(), q.nan_to_num())]


@settings(
    max_examples=200 if EVERY in os.environ else 12,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.differing_executors],
)
@given(st.integers(0, 2**32))
def test_a_random_model_gives_the_bits_of_the_raw_loop(seed: int) -> None:
    case = random_case(Random(seed))
    expected = by_hand(case)
    try:
        found, note = taped(case, True)
    except hr.ModelError:
        found, note = taped(case, "auto")
    assert not differing(expected, found), f"{case.text}: {note}"


@pytest.mark.filterwarnings("ignore:the model has .* with microbatches:UserWarning")
@given(st.integers(0, 2**32))
@settings(max_examples=40 if EVERY in os.environ else 4, deadline=None)
def test_a_random_model_in_microbatches_gives_the_bits_of_torch(seed: int) -> None:
    case = random_case(Random(seed))
    expected, _ = taped(case, False, microbatch=4)
    found, note = taped(case, "auto", microbatch=4)
    assert not differing(expected, found), f"{case.text}: {note}"


@pytest.mark.parametrize("number", range(len(LAYERS)))
def test_each_layer_is_replayed_with_the_bits_of_the_raw_loop(number: int) -> None:
    """The control, too: what random models compare is not torch with torch."""
    layers: list[Any] = [lambda: nn.Linear(WIDTH, WIDTH), LAYERS[number], lambda: nn.Linear(WIDTH, WIDTH)]
    case = Case(lambda: nn.Sequential(*[make() for make in layers]), OPTIMIZERS["momentum"], classes_of, 40, 8, "")
    found, note = taped(case, "auto" if number in NOT_RECORDED else True)
    assert ("replayed" in note) == (number not in NOT_RECORDED)
    assert not differing(by_hand(case), found)
