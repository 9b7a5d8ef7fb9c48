"""The reference networks take images of any size, with any norm."""

from typing import Any

import pytest
import torch

from headrace import vision


@pytest.mark.parametrize("size", [(7, 13), (16, 16), (33, 20)])
@pytest.mark.parametrize("norm", ["group", "batch", "none"])
def test_outputs_fit_images_of_any_size(size: tuple[int, int], norm: Any) -> None:
    images = torch.zeros(2, 1, *size)
    assert vision.ImageClassifier(4, 1, widths=(4, 8), norm=norm)(images).shape == (2, 4)
    assert vision.Segmenter(5, 1, widths=(4, 8, 8), norm=norm)(images).shape == (2, 5, *size)
    outputs = vision.Detector(3, 1, widths=(4, 4, 8, 8), anchors=vision.Anchors(strides=(4, 8)), norm=norm)(images)
    count = len(outputs["anchors"])
    assert [outputs[key].shape for key in ("class_logits", "box_codes")] == [(2, count, 3), (2, count, 4)]
