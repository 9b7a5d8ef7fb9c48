"""Several optimizers on one loss: one forward, one backward, one guard and one clip, each with its parameters."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from kit.plain_loop import plain_loop
from kit.small import same as equal
from torch import Tensor, nn
from torch.optim import SGD, Adafactor, AdamW, Muon, Optimizer

import headrace as hr

ROWS, BATCH, STEPS = 203, 32, 14
X = torch.randn(ROWS, 20, generator=torch.Generator().manual_seed(1))
Y = X[:, :5].argmax(1)
Make = Callable[[nn.Module], list[Optimizer]]


def network() -> Any:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(20, 31), nn.LayerNorm(31), nn.ReLU(), nn.Dropout(0.1), nn.Linear(31, 17), nn.ReLU(), nn.Linear(17, 5)
    )


def matrices(model: nn.Module) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
    """The matrices of a model, and its other parameters."""
    params = list(model.parameters())
    return [p for p in params if p.ndim == 2], [p for p in params if p.ndim != 2]


def muon_and_adamw(model: nn.Module) -> list[Optimizer]:
    some, others = matrices(model)
    return [Muon(some, lr=0.02, momentum=0.9), AdamW(others, lr=1e-2)]


def three(model: nn.Module) -> list[Optimizer]:
    some, others = matrices(model)
    return [SGD(others, lr=0.1, momentum=0.9), Adafactor(some[:1], lr=0.05), AdamW(some[1:], lr=1e-2)]


def by_hand(make: Make, **clip: Any) -> tuple[nn.Module, list[Optimizer]]:
    model = network()
    optimizers = make(model)
    torch.manual_seed(7)
    values = (lambda: nn.utils.clip_grad_value_(model.parameters(), **clip)) if clip else (lambda: None)
    return plain_loop(model, optimizers, (X, Y), BATCH, steps=STEPS, clip=values), optimizers


def trainer(make: Make = muon_and_adamw, **options: Any) -> hr.Trainer:
    model = network()
    made = hr.Trainer(model, nn.CrossEntropyLoss(), make(model), batch_size=BATCH, **options)
    torch.manual_seed(7)
    return made


@pytest.mark.parametrize("clip", [{}, {"clip_value": 1e-3}], ids=["unclipped", "clipped"])
@pytest.mark.parametrize("how", [{"tape": False}, {"tape": True}, {"arena": False}], ids=str)
@pytest.mark.parametrize("make", [muon_and_adamw, three])
def test_weights_and_states_are_those_of_the_loop_with_several_optimizers(
    make: Make, how: dict[str, Any], clip: dict[str, float]
) -> None:
    (model, optimizers), ours = by_hand(make, **clip), trainer(make, **how, **clip)
    ours.fit((X, Y), steps=STEPS, progress=False)
    assert equal(ours.model, model)
    members = ours.optimizer.members  # type: ignore[attr-defined]
    for found, expected in zip(members, optimizers, strict=True):
        a, b = found.state_dict()["state"], expected.state_dict()["state"]
        assert a.keys() == b.keys()
        assert all(torch.equal(torch.as_tensor(a[k][n]), torch.as_tensor(b[k][n])) for k in b for n in b[k])
    assert ("replayed" in ours.tape_note) == how.get("tape", False)
    if clip:
        assert not equal(model, by_hand(make)[0])


def test_matrices_are_views_of_a_vector_and_adamw_steps_one_parameter() -> None:
    ours = trainer()
    ours.step((X[:BATCH], Y[:BATCH]))
    muon, adamw = ours.optimizer.members  # type: ignore[attr-defined]
    assert [param.shape for param in muon.state] == [(31, 20), (17, 31), (5, 17)]
    assert len({param.untyped_storage().data_ptr() for param in muon.state}) == 1
    assert len(adamw.state) == 1
    ours.release()
    assert len(adamw.state) == 5


def test_one_norm_of_all_gradients_is_clipped() -> None:
    def sgd(model: nn.Module) -> list[Optimizer]:
        some, others = matrices(model)
        return [SGD(some, lr=1.0), SGD(others, lr=1.0)]

    ours, before = trainer(sgd, clip_norm=0.1), network()
    ours.step((X[:BATCH], Y[:BATCH]))
    moved = [p.detach() - q.detach() for p, q in zip(ours.model.parameters(), before.parameters(), strict=True)]
    assert torch.cat([each.flatten() for each in moved]).norm().item() == pytest.approx(0.1, rel=1e-4)


def _weights(strategy: hr.Strategy) -> list[Tensor]:
    ours = trainer(strategy=strategy)
    ours.fit((X, Y), steps=STEPS, progress=False)
    return [param.detach() for param in ours.model.parameters()]


@pytest.mark.filterwarnings("ignore:the model has:UserWarning")
def test_two_workers_have_the_bits_of_one_where_batches_are_cut_into_parts() -> None:
    one = _weights(hr.Synchronous(parts=2))
    two = hr.launch(_weights, hr.Synchronous(parts=2), workers=2)
    assert all(map(torch.equal, one, two))


def test_rates_of_all_follow_a_schedule() -> None:
    ours = trainer(schedule=lambda progress: 0.5)
    ours.fit((X, Y), steps=2, progress=False)
    assert [group["lr"] for group in ours.optimizer.param_groups] == [0.01, 0.005]
    by_torch = trainer(schedule=hr.Schedule(lambda o: torch.optim.lr_scheduler.ExponentialLR(o, 0.5), every="1 step"))
    by_torch.fit((X, Y), steps=2, progress=False)
    assert [group["lr"] for group in by_torch.optimizer.param_groups] == [0.005, 0.0025]


def test_a_factory_may_give_several_and_a_copy_finds_a_rate() -> None:
    def make(params: Any) -> list[Optimizer]:
        params = list(params)
        return [Muon([p for p in params if p.ndim == 2]), AdamW([p for p in params if p.ndim != 2])]

    model = network()
    ours = hr.Trainer(model, nn.CrossEntropyLoss(), make, batch_size=BATCH)
    before = [param.detach().clone() for param in model.parameters()]
    assert ours.find_lr((X, Y), steps=20).suggestion
    assert all(map(torch.equal, before, model.parameters()))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda m: [SGD(m.parameters(), lr=1), AdamW(m[0].parameters())], "both have the parameter '0.weight'"),
        (lambda m: [SGD(m[0].parameters(), lr=1), AdamW(m[1].parameters())], "no optimizer has '4.weight'"),
        (lambda m: [SGD(m.parameters(), lr=1), "AdamW"], r"a list, as in \[muon, adamw\]; got \[SGD, str\]"),
        (lambda m: [], r"got \[\]"),
        (lambda m: [SGD(m[:4].parameters(), lr=1), torch.optim.LBFGS(m[4:].parameters())], "LBFGS"),
    ],
)
def test_overlaps_and_parameters_that_nobody_has_are_refused(make: Any, message: str) -> None:
    model = network()
    with pytest.raises(hr.HeadraceError, match=message):
        hr.Trainer(model, nn.CrossEntropyLoss(), make(model))


def test_frozen_parameters_may_be_in_none_of_them_until_they_are_thawed() -> None:
    model = network()
    model[0].requires_grad_(False)
    rest = list(model[1:].parameters())
    ours = hr.Trainer(model, nn.CrossEntropyLoss(), [SGD(rest[:2], lr=0.1), SGD(rest[2:], lr=0.1)], batch_size=BATCH)
    ours.fit((X, Y), steps=2, progress=False)
    assert equal(model[0], network()[0])
    ours.release()
    model[0].requires_grad_(True)  # thawed after the trainer was made
    before = copy.deepcopy(model)
    with pytest.raises(hr.ModelError, match="no optimizer has '0\\.weight'"):
        ours.fit((X, Y), steps=2, progress=False)
    assert equal(model, before)
