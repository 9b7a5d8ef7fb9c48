"""Objectives of one's own, each a real case and each compared with the same thing written by hand."""

from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from kit.small import Parts, stop_and_resume
from torch import Tensor, nn

import headrace as hr

ROWS, BATCH = 96, 32
GENERATOR = torch.Generator().manual_seed(0)
X = torch.randn(ROWS, 8, generator=GENERATOR)
Y = torch.randint(0, 4, (ROWS,), generator=GENERATOR)


def net(*sizes: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for a, b in pairwise(sizes):
        layers += [nn.Linear(a, b), nn.Tanh()]
    return nn.Sequential(*layers[:-1])


class Distil(hr.Objective):
    """Learns from labels and from a frozen teacher."""

    splits = True
    reads = "classes"

    def __init__(self, teacher: nn.Module) -> None:
        self.teacher = teacher.eval().requires_grad_(False)

    def terms(self, model: nn.Module, batch: hr.Batch) -> hr.Terms:
        student, rows = self.call(model, batch), float(batch.rows)
        teacher = self.teacher(batch["x"]).log_softmax(dim=1)
        soft = F.kl_div(student.log_softmax(dim=1), teacher, log_target=True, reduction="sum")
        hard = F.cross_entropy(student, batch["y"], reduction="sum")
        terms = hr.Terms(soft=hr.Term(soft, rows, coefficient=0.5), hard=hr.Term(hard, rows))
        terms.outputs = student
        return terms

    def weights(self, batch: hr.Batch) -> dict[str, Any]:
        return {"soft": float(batch.rows), "hard": float(batch.rows)}


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("microbatch", [None, 10])
def test_an_objective_has_a_term_of_ours_of_its_outputs_and_a_prior_whose_weight_is_not_known(
    microbatch: int | None, known: bool
) -> None:
    prior_of, other_of = hr.L2Prior(0.2), 0.5 * hr.CrossEntropy(label_smoothing=0.1, target="z")

    class More(Distil):
        def terms(self, model: nn.Module, batch: hr.Batch) -> hr.Terms:
            terms = super().terms(model, batch)
            terms["cross_entropy"] = other_of.term(model, terms.outputs, batch)
            if model.training and not known:
                terms["l2_prior"] = prior_of.term(model, None, batch)
            return terms

        def weights(self, batch: hr.Batch) -> dict[str, Any]:
            return {**super().weights(batch), "cross_entropy": other_of.weight(batch)} if known else {}

    torch.manual_seed(2)
    teacher, ours = net(8, 32, 4), net(8, 4)
    raw = net(8, 4)
    raw.load_state_dict(ours.state_dict())
    data = {"x": X, "y": Y, "z": Y.flip(0)}
    optimizer = torch.optim.SGD(ours.parameters(), lr=0.1)
    trainer = hr.Trainer(ours, More(teacher), optimizer, microbatch=microbatch, inputs="x", metrics="accuracy")
    losses = {name: float(value) for name, value in trainer.step(data).items()}
    trainer.release()
    student, target = raw(X), teacher(X).log_softmax(dim=1)
    soft = F.kl_div(student.log_softmax(dim=1), target, log_target=True, reduction="batchmean")
    hard, other = F.cross_entropy(student, Y), F.cross_entropy(student, Y.flip(0), label_smoothing=0.1)
    prior: Any = 0.0 if known else 0.1 * next(raw.parameters()).square().sum()
    (0.5 * soft + hard + 0.5 * other + prior).backward()
    for p, q in zip(ours.parameters(), raw.parameters(), strict=True):
        assert q.grad is not None
        torch.testing.assert_close(p, q - 0.1 * q.grad, rtol=1e-5, atol=1e-6)
    shown = {"soft": soft, "hard": hard, "cross_entropy": other} | ({} if known else {"l2_prior": prior})
    assert losses == pytest.approx(
        {"total_loss": losses["total_loss"], **{k: v.item() for k, v in shown.items()}}, rel=1e-5
    )
    assert losses["total_loss"] == pytest.approx((0.5 * soft + hard + 0.5 * other + prior).item(), rel=1e-5)
    assert trainer.validate(data).keys() >= {"val/loss/soft", "val/loss/cross_entropy", "val/accuracy"}
    assert "val/loss/l2_prior" not in trainer.validate(data)


@pytest.mark.parametrize("names", [["a"], ["a", "b", "c"]])
def test_weights_of_other_terms_than_there_are_is_refused(names: list[str]) -> None:
    class Unlike(hr.Objective):
        splits = True

        def weights(self, batch: hr.Batch) -> dict[str, float]:
            return dict.fromkeys(names, float(batch.rows))

        def terms(self, model: nn.Module, batch: hr.Batch) -> dict[str, hr.Term]:
            loss = F.cross_entropy(self.call(model, batch), batch["y"], reduction="sum")
            return dict.fromkeys("ab", hr.Term(loss, float(batch.rows)))

    with pytest.raises(hr.ConfigError, match=rf"gives {', '.join(names)}, and terms\(\) gives a, b\."):
        hr.Trainer(nn.Linear(8, 4), Unlike(), partial(torch.optim.SGD, lr=0.1), microbatch=4).step((X, Y))


DATA = {"z": torch.randn(ROWS, 3, generator=GENERATOR), "x": X}


def gan() -> nn.Module:
    return Parts(lambda self, z: self.generator(z), generator=net(3, 16, 8), critic=net(8, 16, 1))


class Judge(hr.Objective):
    """The critic tells real rows from made ones."""

    splits = True

    def terms(self, model: Any, batch: hr.Batch) -> dict[str, hr.Term]:
        made = model.generator(batch["z"]).detach()
        rows = float(batch.rows)
        real, fake = model.critic(batch["x"]), model.critic(made)
        return {"real": hr.Term(F.softplus(-real).sum(), rows), "made": hr.Term(F.softplus(fake).sum(), rows)}


class Fool(hr.Objective):
    """The generator wants its rows to be taken for real."""

    splits = True

    def terms(self, model: Any, batch: hr.Batch) -> dict[str, hr.Term]:
        loss = F.softplus(-model.critic(model.generator(batch["z"]))).sum()
        return {"fool": hr.Term(loss, float(batch.rows))}


def make_gan(model: nn.Module, every: Any = "3 steps", **options: Any) -> hr.Trainer:
    critic, generator = (
        torch.optim.Adam(model.get_submodule(n).parameters(), lr=1e-3) for n in ("critic", "generator")
    )
    return hr.Trainer(
        model,
        loss={"critic": Judge(), "generator": Fool()},
        optimizer={"critic": critic, "generator": (generator, every)},
        batch_size=BATCH,
        **options,
    )


def test_one_of_two_optimizers_is_used_at_every_third_step_also_after_a_resume(tmp_path: Path) -> None:
    """That the weights are those of a loop by hand, a journey of `test_practitioners.py` shows."""

    def make() -> hr.Trainer:
        torch.manual_seed(6)
        return make_gan(gan())

    seen = [(info.step, *info.losses) for info in make().steps(DATA, epochs=3)]
    assert [step for step, *names in seen if "generator" in names] == [3, 6, 9]
    stop_and_resume(make, [1, 2, 3, 4, 8], tmp_path, DATA, every="1 step", epochs=3)
    with pytest.raises(hr.CheckpointError, match=r"optimizer.generator.every: 3 in the run, 2 now"):
        make_gan(gan(), "2 steps").fit(DATA, epochs=3, run=tmp_path / "resumed", progress=False)


@pytest.mark.filterwarnings("error")
def test_an_optimizer_that_is_not_used_yet_has_its_schedule() -> None:
    trainer = make_gan(gan())
    trainer.schedule = hr.Schedule(lambda o: torch.optim.lr_scheduler.StepLR(o, 2, gamma=0.5), every="1 step")
    trainer.fit(DATA, steps=4, progress=False)
    assert [o.param_groups[0]["lr"] for o in trainer.optimizers.values()] == [2.5e-4, 2.5e-4]


@pytest.mark.parametrize("strategy", [hr.Synchronous, partial(hr.Periodic, "2 steps"), partial(hr.Elastic, "2 steps")])
def test_workers_use_an_optimizer_at_the_same_steps(strategy: Any) -> None:
    def train() -> tuple[list[Tensor], list[int]]:
        torch.manual_seed(6)
        model = gan()
        trainer = make_gan(model, strategy=strategy())
        steps = trainer.steps(DATA, epochs=3)
        used = [info.step for info in steps if "generator" in info.losses]
        return [p.detach() for p in model.parameters()], used

    weights, used = hr.launch(train, workers=2)
    assert used
    assert all(step % 3 == 0 for step in used)
    if strategy is hr.Synchronous:
        for p, q in zip(weights, train()[0], strict=True):
            torch.testing.assert_close(p, q, rtol=0, atol=1e-6)


BOTH = {"critic": Judge(), "generator": Fool()}
EVERY: list[tuple[Any, str]] = [
    ("2 epochs", r"\['generator'\]= takes a torch optimizer, or one with the steps.*got \(a \w+, '2 epochs'\)"),
    ("often", r"optimizer\['generator'\]= is a number and a unit"),
    ("0 steps", r"is greater than 0"),
]


def test_steps_between_uses_of_an_optimizer_that_cannot_be_are_refused() -> None:
    for every, message in EVERY:
        with pytest.raises(hr.ConfigError, match=message):
            make_gan(gan(), every)
    optimizers = {name: (torch.optim.SGD(net(2, 2).parameters(), 0.1), "2 steps") for name in BOTH}
    with pytest.raises(hr.ConfigError, match="no optimizer= is used at each step"):
        hr.Trainer(gan(), BOTH, optimizers)


class Gives(hr.Objective):
    """Returns what it is told to make of a mean and of a sum."""

    def __init__(self, give: Any) -> None:
        self.give = give

    def terms(self, model: nn.Module, batch: hr.Batch) -> Any:
        each = F.cross_entropy(model(batch["x"]), batch["y"], reduction="none")
        return self.give(each.mean(), each.sum())


@pytest.mark.parametrize(
    ("give", "message"),
    [
        (lambda mean, _: mean, r"Gives.terms\(\) returns terms by name, got a Tensor. Return .*hr.Term"),
        (lambda mean, _: {"ce": mean}, "got 'ce': a Tensor"),
        (lambda mean, _: {"ce": hr.Term("3.0", 1.0)}, "term 'ce': sum must be a single number, got a str"),
        (lambda mean, _: {"ce": hr.Term(mean.repeat(2), 1.0)}, r"term 'ce': .* got shape \[2\]"),
    ],
)
def test_an_objective_that_returns_no_terms_is_told_what_to_return(give: Any, message: str) -> None:
    trainer = hr.Trainer(model := net(8, 4), Gives(give), torch.optim.SGD(model.parameters(), 0.1))
    for attempt in (lambda: trainer.fit((X, Y), epochs=1, progress=False), lambda: trainer.validate((X, Y))):
        with pytest.raises(hr.ConfigError, match=message):
            attempt()


def test_terms_that_are_scored_may_be_numbers_and_those_that_are_trained_are_tensors() -> None:
    numbers = Gives(lambda mean, total: {"far": hr.Term(total.item(), ROWS)})
    model, sgd = net(8, 4), partial(torch.optim.SGD, lr=0.1)
    scores = hr.Trainer(model, hr.CrossEntropy(), sgd, batch_size=ROWS, eval_loss=numbers).validate((X, Y))
    assert scores["val/loss"] == pytest.approx(F.cross_entropy(model(X), Y).item())
    with pytest.raises(
        hr.ConfigError, match=r"'far': sum must be a single number, got a float\. Return it as a tensor"
    ):
        hr.Trainer(model, numbers, sgd).step((X, Y))
