"""Samples as dicts become batches, and what is wrong with one is said with its number and key."""

import math
from typing import Any

import numpy as np
import pytest
import torch

import headrace as hr
from headrace import vision

Dict = dict[str, Any]


def classified(**other: Any) -> Dict:
    return {"image": torch.zeros(3, 8, 12), "image_label_id": 5} | other


def segmented(**other: Any) -> Dict:
    return {"image": np.zeros((3, 8, 12), np.uint8), "segmentation_image": np.full((8, 12), 5)} | other


def detected(**other: Any) -> Dict:
    boxes: Dict = {"bbox_row1": [1.0, 2], "bbox_col1": [1.0, 3], "bbox_row2": [4, 8], "bbox_col2": [5, 12]}
    return {"image": torch.zeros(3, 8, 12), **boxes, "bbox_label_id": [7, 5]} | other


EMPTY: Dict = {"bbox_row1": [], "bbox_col1": [], "bbox_row2": [], "bbox_col2": [], "bbox_label_id": []}
MAKERS = {"classification": classified, "segmentation": segmented, "detection": detected}


def schema(task: Any = "detection", **options: Any) -> vision.ImageSamples:
    return vision.ImageSamples(task, [5, 7], ignore_class_ids=[255], **options)


def test_labels_become_the_classes_of_the_model() -> None:
    found = schema("classification").batch([classified(), classified(image_label_id=np.int32(7))])
    assert found["image_label_id"].tolist() == [0, 1]
    assert (found["image"].dtype, tuple(found["image"].shape)) == (torch.float32, (2, 3, 8, 12))


def test_masks_become_classes_and_ignored_pixels_are_none() -> None:
    mask = np.full((8, 12), 5)
    mask[2, 3], mask[4, 5] = 255, 7
    found = schema("segmentation").batch([segmented(), segmented(segmentation_image=mask)])
    assert found["segmentation_image"][1, [2, 4, 0], [3, 5, 0]].tolist() == [vision.NONE, 1, 0]
    assert "weight_image" not in found
    weights = schema("segmentation").batch([segmented(weight_image=np.full((8, 12), 0.5))])["weight_image"]
    assert weights.unique().tolist() == [0.5]


def test_boxes_are_rows_filled_up_with_nothing() -> None:
    found = schema().batch([detected(), detected(**EMPTY), detected(bbox_label_id=[255, 5])])["bbox"]
    assert found[0].tolist() == [[1, 1, 4, 5, 1], [2, 3, 8, 12, 0]]
    assert found[1, :, -1].tolist() == [-1, -1]
    assert found[2].tolist() == [[2, 3, 8, 12, 0], [0, 0, 0, 0, -1]]
    assert schema().batch([detected(**EMPTY)])["bbox"].tolist() == [[[0, 0, 0, 0, -1]]]


def test_images_of_one_channel_may_leave_it_out() -> None:
    found = vision.ImageSamples("classification", 2, channels=1).batch(
        [{"image": torch.ones(4, 5), "image_label_id": 1}]
    )
    assert tuple(found["image"].shape) == (1, 1, 4, 5)


BAD: dict[str, tuple[str, Any, str]] = {
    "missing": ("classification", {"image": torch.zeros(3, 8, 12)}, "sample 1 has no 'image_label_id'"),
    "missing-box": (
        "detection",
        {k: v for k, v in detected().items() if k != "bbox_col2"},
        "sample 1 has no 'bbox_col2'",
    ),
    "no-dict": ("classification", [1, 2], "sample 1 is a list. A sample is a dict with image, image_label_id"),
    "size": (
        "classification",
        classified(image=torch.zeros(3, 8, 13)),
        "sample 1, 'image': it has 8 rows and 13 columns, expected 8 and 12, as sample 0",
    ),
    "channels": ("classification", classified(image=torch.zeros(1, 8, 12)), r"sample 1, 'image': expected 3 channels"),
    "turned": ("classification", classified(image=torch.zeros(8, 12, 3)), "Put channels first"),
    "pixels": (
        "classification",
        classified(image=torch.full((3, 8, 12), math.nan)),
        "sample 1, 'image'.*finite, got nan",
    ),
    "no-image": ("classification", classified(image="cat.png"), "sample 1, 'image': there is no tensor of a str"),
    "label": ("classification", classified(image_label_id=6), r"sample 1, 'image_label_id': .* 5, 7, 255, got 6"),
    "half": ("classification", classified(image_label_id=5.5), "sample 1, 'image_label_id': labels are whole numbers"),
    "labels": ("classification", classified(image_label_id=[5, 7]), "sample 1, 'image_label_id': expected one label"),
    "mask": (
        "segmentation",
        segmented(segmentation_image=np.eye(8, 12) + 5),
        r"sample 1, 'segmentation_image', place \[0, 0\]: .*, got 6 \(8 such values\)",
    ),
    "mask-size": (
        "segmentation",
        segmented(segmentation_image=np.zeros((8, 8))),
        r"sample 1, 'segmentation_image': expected the shape \[8, 12\]",
    ),
    "weights": (
        "segmentation",
        segmented(weight_image=np.ones((8, 12))),
        "sample 0 has no 'weight_image', sample 1 has one",
    ),
    "box-label": ("detection", detected(bbox_label_id=[7, 8]), r"sample 1, 'bbox_label_id', place \[1\]: .* got 8"),
    "area": ("detection", detected(bbox_row2=[4, 2.0]), "sample 1, box 1: it has no area .*bbox_row2=2"),
    "outside": ("detection", detected(bbox_col2=[5, 12.5]), "sample 1, box 1: it reaches out of the image of 8 rows"),
    "before": ("detection", detected(bbox_row1=[-1.0, 2]), "sample 1, box 0: it reaches out"),
    "nan": ("detection", detected(bbox_row1=[1.0, math.nan]), "sample 1, box 1: its numbers are not finite"),
    "counts": ("detection", detected(bbox_row1=[1.0]), "sample 1: each key of boxes .* bbox_row1: 1, bbox_col1: 2"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_is_wrong_with_a_sample_is_said_with_its_number_and_key(name: str) -> None:
    task, bad, said = BAD[name]
    with pytest.raises(hr.DataError, match=said):
        schema(task).batch([MAKERS[task](), bad])
