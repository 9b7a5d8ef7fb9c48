"""Settings of a loss that change between two updates are in effect from the next one on, wholly."""

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from kit.sampled import each
from kit.stand_ins import Through, through
from torch import Tensor, nn

import headrace as hr

N, K = 23, 5
GENERATOR = torch.Generator().manual_seed(4)
X = torch.randn(N, K, dtype=torch.float64, generator=GENERATOR)
Y = torch.arange(N) % K
ANSWERS = torch.randint(2, (N, K), generator=GENERATOR).double()
R = torch.rand(N, dtype=torch.float64, generator=GENERATOR)
W = torch.tensor([0.5, 2.0, 0.0, 1.25, 3.0], dtype=torch.float64)
ONES = [1.0] * K

_CE, _BCE, _FOCAL, _HUBER = hr.CrossEntropy, hr.BinaryCrossEntropy, hr.Focal, hr.Huber
CHANGES: dict[str, tuple[hr.Loss, str, Any]] = {
    "weights met": (_CE(class_weights=ONES), "class_weights", W),
    "weights by classes": (_CE(class_weights=ONES, normalize="classes"), "class_weights", W),
    "weights from none on": (_CE(), "class_weights", W),
    "no weights any more": (_CE(class_weights=W), "class_weights", None),
    "what weights are divided by": (_CE(class_weights=W), "normalize", "classes"),
    "an ignored label": (_CE(), "ignore_index", 2),
    "another ignored label": (_CE(ignore_index=1), "ignore_index", 2),
    "smoothing": (_CE(), "label_smoothing", 0.2),
    "rows": (_CE(), "row_weight", "r"),
    "sums": (_CE(), "reduce", "sum"),
    "a coefficient": (hr.MSE(), "coefficient", 0.25),
    "gamma": (_FOCAL(), "gamma", 0.5),
    "focal weights": (_FOCAL(class_weights=ONES), "class_weights", W),
    "delta": (_HUBER(0.1), "delta", 2.0),
    "form": (_HUBER(0.1), "form", "classic"),
    "positive": (_BCE(), "positive_weight", W.tolist()),
    "elements": (_BCE(), "element_weight", W),
    "a function": (hr.RowMean(F.mse_loss), "fn", F.l1_loss),
}


def still(loss: Any, model: nn.Module, **options: Any) -> hr.Trainer:
    return through(loss, model, rate=0.0, inputs="x", **options)


def data(loss: hr.Loss) -> dict[str, Tensor]:
    return {"x": X, "y": Y if isinstance(loss, _CE | _FOCAL) else ANSWERS, "r": R}


def one_update(trainer: hr.Trainer, streams: dict[str, Tensor]) -> tuple[dict[str, Any], float]:
    """What it reports, and where it takes the weight."""
    trainer.optimizer.param_groups[0]["lr"] = 0.1
    losses = trainer.step(streams)
    trainer.release()
    return losses, next(trainer.model.parameters()).item()


@pytest.mark.parametrize(("what", "microbatch"), each(CHANGES, [None, 7]))
def test_a_setting_is_in_effect_from_the_next_update_on(what: str, microbatch: int | None) -> None:
    loss, name, value = CHANGES[what]
    loss, streams = copy.deepcopy(loss), data(loss)
    trainer = still(loss, Through(), microbatch=microbatch)
    before = trainer.step(streams)
    setattr(loss, name, value)
    made = copy.deepcopy(CHANGES[what][0])
    setattr(made, name, value)
    got = one_update(trainer, streams)
    assert got == one_update(still(made, Through(), microbatch=microbatch), streams)
    assert (got[0] != before) == (what != "sums")  # they are reported as means
    assert got[1] != one_update(still(copy.deepcopy(CHANGES[what][0]), Through(), microbatch=microbatch), streams)[1]


@pytest.mark.parametrize("normalize", ["met", "classes"])
def test_class_weights_may_change_in_place_and_have_as_many_numbers_as_there_are_outputs(normalize: Any) -> None:
    loss = hr.CrossEntropy(class_weights=ONES, normalize=normalize)
    trainer = still(loss, Through())  # whose outputs are float64, and the weights are not
    trainer.step((X, Y))
    assert loss.class_weights is not None
    loss.class_weights.copy_(W)
    expected = one_update(still(hr.CrossEntropy(class_weights=W.float(), normalize=normalize), Through()), data(loss))
    assert one_update(trainer, data(loss)) == expected
    loss.class_weights = torch.ones(K + 1)
    with pytest.raises(hr.ConfigError, match="class_weights= has 6 numbers, the model 5 outputs"):
        trainer.step((X, Y))


def test_an_ignored_label_is_looked_for_again_in_rows_that_were_looked_through_before() -> None:
    loss = hr.CrossEntropy(ignore_index=-1)
    trainer = still(loss, Through(), batch_size=8, order="none")
    for info, part in zip(trainer.steps((X, Y), epochs=1), range(0, N, 8), strict=True):
        expected = F.cross_entropy(X[part : part + 8], Y[part : part + 8], ignore_index=loss.ignore_index or 0)
        assert info.losses["total_loss"] == pytest.approx(expected.item())
        loss.ignore_index = 2


def test_metrics_go_by_what_the_outputs_are_now() -> None:
    loss, shares = hr.BinaryCrossEntropy(), torch.linspace(0.01, 0.4, N, dtype=torch.float64)
    trainer, streams = still(loss, Through(), metrics="accuracy"), {"x": shares, "y": torch.ones(N).double()}
    assert trainer.validate(streams)["val/accuracy"] == 1
    loss.inputs = "probs"
    assert trainer.validate(streams)["val/accuracy"] == 0


def test_one_loss_may_serve_several_trainers_with_one_target() -> None:
    loss = hr.MSE()
    streams = {"x": X, "near": X + 1, "far": X + 10}
    first, second = still(loss, Through(), target="near"), still(loss, Through(), target="near")
    assert [trainer.validate(streams)["val/loss"] for trainer in (first, second)] == pytest.approx([1.0, 1.0])
    loss.coefficient = (torch.tensor(0.5) * loss).coefficient  # type: ignore[operator]  # of both
    assert [trainer.validate(streams)["val/loss"] for trainer in (first, second)] == pytest.approx([0.5, 0.5])
    with pytest.raises(hr.ConfigError, match=r"this MSE was given to a trainer with target='near', and is now"):
        still(loss, Through(), target="far")

    class Size(hr.Objective):
        def terms(self, model: nn.Module, batch: hr.Batch) -> dict[str, hr.Term]:
            return {"size": hr.Term(self.call(model, batch).square().sum(), float(batch.rows))}

    size = Size()
    for _ in range(2):
        still(size, Through())
    with pytest.raises(hr.ConfigError, match=r"this Size was given to a trainer with inputs='x' and target='y'"):
        still(size, Through(), target="z")
