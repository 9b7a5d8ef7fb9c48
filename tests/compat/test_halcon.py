"""HALCON's operators for deep learning, statement by statement."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import headrace as hr
from headrace.compat import halcon as hc

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


class Small(nn.Module):
    """Logits of the mean of an image."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(3, 2)

    def forward(self, images: Tensor) -> Tensor:
        return self.layer(images.mean((2, 3)))  # type: ignore[no-any-return]


def classifier(**params: Any) -> hc.HDlModel:
    options = {"image_width": 8, "image_height": 8, "class_ids": [3, 7], "weight_prior": 0.0, **params}
    return hc.create_dl_model("classification", Small(), **options)


def samples(count: int) -> list[dict[str, Any]]:
    draw = torch.Generator().manual_seed(1)
    return [{"image": torch.randn(3, 8, 8, generator=draw), "image_label_id": (3, 7)[k % 2]} for k in range(count)]


def by_hand(model: nn.Module, batches: list[list[dict[str, Any]]], rate: float, momentum: float, prior: float) -> float:
    """Steps with the rate inside the velocity, ½ α Σ w² of all weights but biases; the last total loss."""
    velocity = {name: torch.zeros_like(p) for name, p in model.named_parameters()}
    total = torch.zeros(())
    for batch in batches:
        images = torch.stack([sample["image"] for sample in batch])
        labels = torch.tensor([(3, 7).index(sample["image_label_id"]) for sample in batch])
        model.zero_grad()
        total = nn.functional.cross_entropy(model(images), labels) + prior / 2 * model.layer.weight.square().sum()  # type: ignore[operator, union-attr]
        total.backward()
        with torch.no_grad():
            for name, param in model.named_parameters():
                velocity[name] = momentum * velocity[name] - rate * param.grad
                param += velocity[name]
    return total.item()


def test_a_batch_is_one_update_and_its_losses_are_named() -> None:
    handle = classifier(learning_rate=0.1, momentum=0.8, weight_prior=0.3, batch_size=4)
    twin, batches = Small(), [samples(4), samples(4)]
    found = [hc.train_dl_model_batch(handle, batch) for batch in batches][-1]
    assert found["total_loss"] == pytest.approx(by_hand(twin, batches, 0.1, 0.8, 0.3), abs=1e-6)
    assert {"cross_entropy", "l2_prior"} < found.keys()
    handle._ready().release()
    torch.testing.assert_close(handle.network.state_dict(), twin.state_dict())


def test_a_multiplier_takes_as_many_samples_more_and_the_update_is_that_of_all_of_them() -> None:
    one, several = classifier(batch_size=8), classifier(batch_size=2)
    hc.set_dl_model_param(several, "batch_size_multiplier", 4)
    hc.train_dl_model_batch(one, samples(8))
    hc.train_dl_model_batch(several, samples(8))
    for handle in (one, several):
        handle._ready().release()
    torch.testing.assert_close(one.network.state_dict(), several.network.state_dict())
    with pytest.raises(hr.HeadraceError, match="batch_size=2 times batch_size_multiplier=4, 8 samples; got 7"):
        hc.train_dl_model_batch(several, samples(7))


def test_hyperparameters_are_in_effect_from_the_next_batch_on() -> None:
    handle = classifier(batch_size=4, learning_rate=0.1)
    hc.train_dl_model_batch(handle, samples(4))
    before = {name: value.clone() for name, value in handle.network.state_dict().items()}
    for name, value in {"learning_rate": 0.0, "momentum": 0.0}.items():
        hc.set_dl_model_param(handle, name, value)
        assert hc.get_dl_model_param(handle, name) == value
    hc.train_dl_model_batch(handle, samples(4))
    torch.testing.assert_close(dict(handle.network.state_dict()), before)
    hc.set_dl_model_param(handle, "batch_size", 2)
    hc.train_dl_model_batch(handle, samples(2))


def test_any_number_of_samples_is_classified_the_most_likely_class_first() -> None:
    handle = classifier(batch_size=4, class_names=["apple", "pear"])
    found = hc.apply_dl_model(handle, samples(5))
    assert len(found) == 5
    first = found[0]
    assert sorted(first["classification_class_ids"]) == [3, 7]
    assert first["classification_confidences"] == sorted(first["classification_confidences"], reverse=True)
    assert {"apple", "pear"} == set(first["classification_class_names"])
    assert list(hc.apply_dl_model(handle, samples(1), ["classification_class_ids"])[0]) == ["classification_class_ids"]


def test_segmentation_gives_an_image_of_class_ids() -> None:
    handle = hc.create_dl_model("segmentation", image_width=16, image_height=16, class_ids=[2, 5], batch_size=2)
    images = [{"image": torch.randn(3, 16, 16), "segmentation_image": torch.full((16, 16), 5)} for _ in range(2)]
    assert hc.train_dl_model_batch(handle, images)["total_loss"] > 0
    found = hc.apply_dl_model(handle, images)[0]["segmentation_image"]
    assert found.shape == (16, 16)
    assert set(found.unique().tolist()) <= {2, 5}


def test_detection_has_a_focal_and_a_huber_loss_and_gives_boxes() -> None:
    params = {"image_width": 64, "image_height": 64, "batch_size": 2, "min_confidence": 0.0, "max_num_detections": 3}
    handle = hc.create_dl_model_detection("pretrained_dl_classifier_compact.hdl", 2, params)
    box = {"bbox_row1": [8.0], "bbox_col1": [8.0], "bbox_row2": [30.0], "bbox_col2": [28.0], "bbox_label_id": [1]}
    images = [{"image": torch.randn(3, 64, 64), **box} for _ in range(2)]
    found = hc.train_dl_model_batch(handle, images)
    assert {"total_loss", "focal_loss", "huber_loss", "l2_prior"} <= found.keys()
    result = hc.apply_dl_model(handle, images)[0]
    assert {"bbox_row1", "bbox_col2", "bbox_class_id", "bbox_confidence"} <= result.keys()
    assert len(result["bbox_row1"]) <= 3


def test_a_model_that_was_written_is_read_with_its_parameters(tmp_path: Path) -> None:
    handle = classifier(batch_size=4, learning_rate=0.02)
    hc.train_dl_model_batch(handle, samples(4))
    hc.write_dl_model(handle, tmp_path / "model.hdl")
    again = hc.read_dl_model(tmp_path / "model.hdl", Small())
    assert hc.get_dl_model_param(again, "learning_rate") == 0.02
    assert hc.apply_dl_model(again, samples(3)) == hc.apply_dl_model(handle, samples(3))


def test_the_names_of_other_languages_do_the_same() -> None:
    handle = classifier(batch_size=2)
    handle.SetDlModelParam("learning_rate", 0.5)
    assert handle.GetDlModelParam("learning_rate") == 0.5
    assert handle.GetDlModelParam("image_dimensions") == [8, 8, 3]
    assert handle.TrainDlModelBatch(samples(2))["total_loss"] > 0
    assert len(handle.ApplyDlModel(samples(3))) == 3


def test_what_is_not_offered_or_cannot_be_is_refused() -> None:
    with pytest.raises(hr.HeadraceError, match="type 'ocr_detection'"):
        hc.create_dl_model("ocr_detection", class_ids=[0])
    with pytest.raises(hr.HeadraceError, match="parameter 'learn_rate'"):
        classifier(learn_rate=1)
    with pytest.raises(hr.HeadraceError, match="set when the model is created"):
        hc.set_dl_model_param(classifier(), "class_ids", [0])
    with pytest.raises(hr.HeadraceError, match="a handle is what"):
        hc.train_dl_model_batch({}, [])  # type: ignore[arg-type]
    with pytest.raises(hr.HeadraceError, match="image_label_id"):
        hc.train_dl_model_batch(classifier(batch_size=1), [{"image": torch.zeros(3, 8, 8)}])
