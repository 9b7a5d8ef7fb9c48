"""HALCON's operators, statement by statement of the reference of train_dl_model_batch."""

import math
import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import headrace as hr
import headrace.compat.halcon as ha
from headrace import vision

EXAMPLES = Path(__file__).parents[2] / "examples/compat"
KINDS = ("classification", "segmentation", "detection")


class Flat(nn.Module):
    """One linear layer over the pixels of 2x2 images."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.layer = nn.Linear(4, 3)

    def forward(self, images: Tensor) -> Any:
        return self.layer(images.flatten(1))


def flat(**params: Any) -> Any:
    size = {"image_width": 2, "image_height": 2, "image_num_channels": 1}
    return ha.create_dl_model("classification", [5, 7, 9], **size, network=Flat(), runtime="cpu", **params)


def images_of(count: int, seed: int = 0) -> list[dict[str, Any]]:
    drawn = torch.randn(count, 1, 2, 2, generator=torch.Generator().manual_seed(seed))
    return [{"image": image, "image_label_id": (5, 7, 9)[k % 3]} for k, image in enumerate(drawn)]


def small(kind: str, **params: Any) -> Any:
    torch.manual_seed(2)
    size = {"image_width": 16, "image_height": 16, "image_num_channels": 1}
    return ha.create_dl_model(kind, [3, 8], **{**size, "runtime": "cpu", **params})


def sample(kind: str, seed: int = 0) -> dict[str, Any]:
    found: dict[str, Any] = {"image": torch.randn(1, 16, 16, generator=torch.Generator().manual_seed(seed))}
    if kind == "classification":
        return {**found, "image_label_id": 8}
    if kind == "segmentation":
        return {**found, "segmentation_image": torch.full((16, 16), 3)}
    boxes = {"bbox_row1": [2], "bbox_col1": [2], "bbox_row2": [14], "bbox_col2": [14]}
    return {**found, **boxes, "bbox_label_id": [8]}


def by_hand(updates: list[list[dict[str, Any]]], rates: list[float], momentum: float, prior: float) -> Flat:
    """v ← μ v − λ ∇L, w ← w + v, with L the cross entropy and ½ α Σ w² of the weights that are no biases."""
    model = Flat()
    velocity = [torch.zeros_like(p) for p in model.parameters()]
    for samples, rate in zip(updates, rates, strict=True):
        logits = model(torch.stack([s["image"] for s in samples]))
        labels = torch.tensor([(s["image_label_id"] - 5) // 2 for s in samples])
        loss = nn.functional.cross_entropy(logits, labels) + prior / 2 * model.layer.weight.square().sum()
        gradients = torch.autograd.grad(loss, list(model.parameters()))
        with torch.no_grad():
            for weight, speed, gradient in zip(model.parameters(), velocity, gradients, strict=True):
                weight.add_(speed.mul_(momentum).sub_(gradient, alpha=rate))
    return model


def test_sgd_has_the_learning_rate_inside_the_velocity_and_the_prior_on_all_weights_but_biases() -> None:
    model, updates, rates = flat(batch_size=4, momentum=0.8, weight_prior=0.05), [], [0.5, 0.1, 0.02]
    for k, rate in enumerate(rates):
        ha.set_dl_model_param(model, "learning_rate", rate)
        updates.append(images_of(4, k))
        ha.train_dl_model_batch(model, updates[-1])
    expected = by_hand(updates, rates, 0.8, 0.05)
    for weight, wanted in zip(model._network.parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(weight.data, wanted.data)


def test_the_total_loss_is_that_before_the_update_and_the_sum_of_the_others() -> None:
    model, samples = flat(batch_size=3, weight_prior=0.5), images_of(3)
    network = Flat()
    result = ha.train_dl_model_batch(model, samples)
    logits = network(torch.stack([s["image"] for s in samples])).detach()
    assert result["cross_entropy"] == pytest.approx(float(nn.functional.cross_entropy(logits, torch.arange(3))))
    assert result["l2_prior"] == pytest.approx(0.25 * float(network.layer.weight.detach().square().sum()))
    assert result["total_loss"] == pytest.approx(result["cross_entropy"] + result["l2_prior"])


def test_class_weights_are_divided_by_their_mean_over_all_classes() -> None:
    samples, weights = images_of(4), torch.tensor([1.0, 2.0, 5.0])
    result = ha.train_dl_model_batch(flat(batch_size=4, class_weights=weights.tolist()), samples)
    logits = Flat()(torch.stack([s["image"] for s in samples]))
    labels = torch.tensor([0, 1, 2, 0])
    each = nn.functional.cross_entropy(logits, labels, reduction="none")
    assert result["total_loss"] == pytest.approx(3 * float((each.detach() * weights[labels] / 8).mean()))
    assert result["cross_entropy"] == result["total_loss"]


def test_class_weights_set_later_count_from_the_next_update_on_and_equal_ones_change_nothing() -> None:
    model, samples = flat(batch_size=3, learning_rate=0.0), images_of(3)
    assert ha.get_dl_model_param(model, "class_weights") == []
    plain = ha.train_dl_model_batch(model, samples)
    for weight in (1.0, 0.25):
        ha.set_dl_model_param(model, "class_weights", weight)
        assert ha.get_dl_model_param(model, "class_weights") == [weight] * 3
        assert ha.train_dl_model_batch(model, samples) == plain
    ha.set_dl_model_param(model, "class_weights", [1.0, 0.0, 0.0])
    first = nn.functional.cross_entropy(Flat()(samples[0]["image"][None]), torch.tensor([0]))
    assert ha.train_dl_model_batch(model, samples)["total_loss"] == pytest.approx(first.item())
    ha.set_dl_model_param(model, "class_weights", [])
    assert ha.train_dl_model_batch(model, samples) == plain


def test_a_batch_is_batch_size_times_batch_size_multiplier_samples_and_one_update() -> None:
    model, samples = flat(batch_size=2, batch_size_multiplier=3, learning_rate=0.1), images_of(6)
    for count in (2, 5, 7):
        with pytest.raises(hr.DataError, match=f"exactly .* 2 times 3, got {count}"):
            ha.train_dl_model_batch(model, images_of(count))
    ha.train_dl_model_batch(model, samples)
    expected = by_hand([samples], [0.1], 0.9, 0.0)
    torch.testing.assert_close(model._network.layer.weight.data, expected.layer.weight.data)


@pytest.mark.parametrize("weights", [[], [0.25, 0.25], [0.25, 0.9]])
def test_focal_and_huber_losses_are_sums_over_the_batch_and_huber_has_the_parameter_0_11(weights: list[float]) -> None:
    model = small("detection", batch_size=2, class_weights=weights)
    samples = [sample("detection"), sample("detection", 1)]
    network = vision.Detector(2, 1)
    batch = vision.ImageSamples("detection", [3, 8], channels=1).batch(samples)
    with torch.no_grad():
        model._network.class_head.bias.zero_()  # so that the background counts
        network.load_state_dict(model._network.state_dict())
        outputs = network(batch["image"])
        found = vision.match(outputs["anchors"], batch["bbox"][..., :-1], batch["bbox"][..., -1] >= 0, 0.5, 0.4)
    focal = huber = 0.0
    for image in range(2):
        for anchor in range(outputs["anchors"].shape[0]):
            positive = bool(found.positive[image, anchor])
            if not positive and not bool(found.negative[image, anchor]):
                continue
            for place in range(2):
                p = 1 / (1 + math.exp(-float(outputs["class_logits"][image, anchor, place])))
                y = positive and place == 1
                alpha = weights[place] if weights else 1.0
                p_t, alpha_t = (p, alpha) if y else (1 - p, 1 - alpha if weights else 1.0)
                focal -= alpha_t * (1 - p_t) ** 2 * math.log(p_t)
            if positive:
                goal = vision.encode(batch["bbox"][image, :1, :4], outputs["anchors"][anchor : anchor + 1])[0]
                for x in (outputs["box_codes"][image, anchor] - goal).abs().tolist():
                    huber += x * x / 0.22 if x <= 0.11 else x - 0.055
    assert huber > 0
    result = ha.train_dl_model_batch(model, samples)
    assert result["focal"] == pytest.approx(focal, rel=1e-4)
    assert result["huber"] == pytest.approx(huber, rel=1e-4)
    assert result["total_loss"] == pytest.approx(focal + huber, rel=1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_a_model_that_is_written_and_read_goes_on_to_the_same_losses(kind: str, tmp_path: Path) -> None:
    solver = "adam" if kind == "detection" else "sgd"
    model = small(kind, learning_rate=0.01, class_names=["a", "b"], solver_type=solver)
    samples = [sample(kind)]
    ha.train_dl_model_batch(model, samples)
    ha.write_dl_model(model, tmp_path / "model.hdl")
    other = ha.read_dl_model(tmp_path / "model.hdl")
    for _ in range(2):
        assert ha.train_dl_model_batch(other, samples) == ha.train_dl_model_batch(model, samples)
    assert ha.get_dl_model_param(other, "class_names") == ["a", "b"]


def test_the_classes_of_an_image_come_by_falling_confidence() -> None:
    model = flat(class_names=["x", "y", "z"])
    results = ha.apply_dl_model(model, images_of(5))
    logits = Flat()(torch.stack([s["image"] for s in images_of(5)]))
    assert len(results) == 5
    for result, row in zip(results, logits.detach().softmax(1).tolist(), strict=True):
        order = sorted(range(3), key=lambda k: -row[k])
        assert result["classification_class_ids"] == [(5, 7, 9)[k] for k in order]
        assert result["classification_class_names"] == ["xyz"[k] for k in order]
        assert result["classification_confidences"] == pytest.approx(sorted(row, reverse=True))


def test_pixels_get_the_class_of_the_highest_confidence() -> None:
    model = small("segmentation")
    [result] = ha.apply_dl_model(model, [{"image": np.zeros((16, 16), np.float32)}], ["segmentation_image"])
    assert list(result) == ["segmentation_image"]
    assert set(result["segmentation_image"].unique().tolist()) <= {3, 8}


def test_pixels_of_weight_0_and_ignored_classes_teach_nothing() -> None:
    seen = sample("segmentation")
    mask = seen["segmentation_image"].clone()
    mask[8:] = 8
    weights = torch.ones(16, 16)
    weights[8:] = 0
    ignored = torch.where(mask == 8, 255, mask)
    weighted = ha.train_dl_model_batch(
        small("segmentation"), [{**seen, "segmentation_image": mask, "weight_image": weights}]
    )
    left_out = ha.train_dl_model_batch(
        small("segmentation", ignore_class_ids=[255]), [{**seen, "segmentation_image": ignored}]
    )
    assert weighted["total_loss"] == pytest.approx(left_out["total_loss"])


def test_a_trained_detector_finds_its_box_by_confidence_and_class() -> None:
    model = small("detection", learning_rate=3e-3, solver_type="adam")
    for _ in range(60):
        ha.train_dl_model_batch(model, [sample("detection")])
    [result] = ha.apply_dl_model(model, [sample("detection")])
    assert result["bbox_class_id"] == [8]
    assert result["bbox_confidence"][0] > 0.5
    corners = [result[key][0] for key in ("bbox_row1", "bbox_col1", "bbox_row2", "bbox_col2")]
    assert corners == pytest.approx([2, 2, 14, 14], abs=1.5)


def test_the_methods_of_hdlmodel_do_what_the_operators_do(tmp_path: Path) -> None:
    one, other, samples = flat(), flat(), images_of(1)
    other.SetDlModelParam("learning_rate", 0.1)
    ha.set_dl_model_param(one, "learning_rate", 0.1)
    assert other.GetDlModelParam("learning_rate") == 0.1
    assert one.TrainDlModelBatch(samples) == ha.train_dl_model_batch(other, samples)
    one.WriteDlModel(tmp_path / "one")
    again = ha.HDlModel(tmp_path / "one", network=Flat())
    assert again.ApplyDlModel(samples) == ha.apply_dl_model(other, samples)


def test_a_detector_is_made_by_the_operator_of_its_name() -> None:
    given = {"image_dimensions": [16, 24, 1], "class_ids": [3, 8], "runtime": "cpu", "min_confidence": 0.2}
    model = ha.create_dl_model_detection("pretrained_dl_classifier_compact.hdl", 2, given)
    assert {name: ha.get_dl_model_param(model, name) for name in given} == given
    for odd, said in (
        ({}, "has no 'image_width'"),
        ({"image_dimensions": [16, 24, 1, 2]}, r"a width, a height and, by choice, channels\. Got \[16, 24, 1, 2\]"),
        ({"image_dimensions": 16}, "a width, a height and, by choice, channels"),
        ({"image_dimensions": [16, 24], "image_width": 8}, "has 'image_dimensions' and 'image_width'"),
    ):
        with pytest.raises(hr.ConfigError, match=said):
            ha.create_dl_model_detection("", 2, odd)


def test_the_example_and_its_native_twin_come_to_the_same_losses_and_weights() -> None:
    legacy, native = (runpy.run_path(str(EXAMPLES / f"halcon_{name}.py"))["main"]() for name in ("legacy", "native"))
    assert legacy["losses"] == native["losses"]
    assert legacy["classes"] == native["classes"]
    assert len(set(legacy["losses"])) == 10
    assert legacy["losses"][-1] < 0.5 * legacy["losses"][0]


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda m: ha.set_dl_model_param(m, "learning_rte", 1), "Did you mean 'learning_rate'"),
        (lambda m: ha.set_dl_model_param(m, "image_width", 4), "what a model is made with"),
        (lambda m: ha.set_dl_model_param(m, "batch_size", 0), "a whole number greater than 0, got 0"),
        (lambda m: ha.set_dl_model_param(m, "momentum", 1.0), "from 0 to below 1, got 1.0"),
        (lambda m: ha.set_dl_model_param(m, "class_weights", [1.0]), "1 values for 3 classes"),
        (lambda m: ha.get_dl_model_param(m, "gain"), "unknown parameter 'gain'"),
        (
            lambda m: ha.train_dl_model_batch(m, [{"image": torch.zeros(2, 2), "image_label_id": 6}]),
            "class_ids 5, 7, 9",
        ),
        (lambda m: ha.train_dl_model_batch(m, [{"image": torch.zeros(2, 2)}]), "sample 0 has no 'image_label_id'"),
        (lambda m: ha.train_dl_model_batch(7, []), "what create_dl_model or read_dl_model gave, got a int"),  # type: ignore[arg-type]
        (lambda m: ha.apply_dl_model(m, images_of(1), ["confidence"]), "unknown output 'confidence'"),
        (lambda m: ha.create_dl_model("counting", 2, image_width=2, image_height=2), "unknown type 'counting'"),
        (
            lambda m: small("detection", class_weights=[1.0, 2.0]),
            r"'class_weights' of a detector are from 0 to 1.* Got \[1.0, 2.0\]",
        ),
        (lambda m: ha.set_dl_model_param(small("detection"), "class_weights", 1.0), "give it to create_dl_model"),
    ],
)
def test_what_cannot_be_is_refused_in_a_sentence(call: Callable[[Any], Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        call(flat())


@pytest.mark.skipif(torch.cuda.is_available(), reason="the device is there")
def test_a_parameter_that_is_refused_leaves_the_model_as_it_was() -> None:
    model, twin, samples = flat(batch_size=3, learning_rate=0.1), flat(batch_size=3, learning_rate=0.1), images_of(3)
    ha.train_dl_model_batch(model, samples)
    ha.train_dl_model_batch(twin, samples)
    with pytest.raises(hr.HeadraceError):
        ha.set_dl_model_param(model, "runtime", "gpu")
    assert ha.get_dl_model_param(model, "runtime") == "cpu"
    for _ in range(2):  # its momentum too
        assert ha.train_dl_model_batch(model, samples) == ha.train_dl_model_batch(twin, samples)


def test_operators_have_the_spellings_of_other_languages() -> None:
    for name in ("T_train_dl_model_batch", "TrainDlModelBatch"):
        assert getattr(ha, name) is ha.train_dl_model_batch


def test_operators_that_are_not_offered_name_the_native_way() -> None:
    with pytest.raises(AttributeError, match=r"set_system is not offered here; the native way is hr.Trainer\(.*determ"):
        _ = ha.set_system
    with pytest.raises(AttributeError, match="ClearDlModel is not offered"):
        flat().ClearDlModel()


def test_a_file_that_is_no_model_of_ours_is_refused(tmp_path: Path) -> None:
    with pytest.raises(hr.RunError, match="there is no file"):
        ha.read_dl_model(tmp_path / "none.hdl")
    (tmp_path / "its.hdl").write_bytes(b"HALCON" * 20)
    with pytest.raises(hr.CheckpointError, match="no model that write_dl_model wrote"):
        ha.read_dl_model(tmp_path / "its.hdl")
