"""HALCON's operators for deep learning models: made, trained a batch at a time, applied, written and read.

`import headrace.compat.halcon as ha`, then `ha.train_dl_model_batch(handle, samples)`, or the methods of `HDlModel` in
the spelling of C++ and C#. Samples are dicts with HALCON's keys. Natively, all of this is `headrace.vision` and
`hr.Trainer.step`.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import nn

from ...errors import ConfigError, unknown
from .model import HDlModel
from .parameters import DEFAULTS, MADE_WITH, OF_DETECTION, checked, not_offered

__all__ = [
    "HDlModel",
    "apply_dl_model",
    "create_dl_model",
    "create_dl_model_detection",
    "get_dl_model_param",
    "read_dl_model",
    "set_dl_model_param",
    "train_dl_model_batch",
    "write_dl_model",
]


def create_dl_model(
    type: str,
    class_ids: Any,
    *,
    image_width: int,
    image_height: int,
    image_num_channels: int = 3,
    network: nn.Module | None = None,
    **gen_params: Any,
) -> HDlModel:
    """A model of 'classification', 'segmentation' or 'detection' that learns from scratch.

    `class_ids` are the labels, or their number. `gen_params` are those of `set_dl_model_param`; for segmentation
    `ignore_class_ids`, too, and for detection `instance_type` ('rectangle1'), `class_weights`, `bbox_heads_weight` and
    `class_heads_weight`. `network` is one of your own with the outputs of
    `vision.ImageClassifier`, `vision.Segmenter` or `vision.Detector`.
    """
    if type not in MADE_WITH:
        raise ConfigError(f"{unknown('type', type, MADE_WITH)} Others of HALCON's types are not offered.")
    ids = list(range(class_ids)) if isinstance(class_ids, int) else [int(each) for each in class_ids]
    known = {**DEFAULTS, **MADE_WITH[type], **(OF_DETECTION if type == "detection" else {})}
    if odd := [name for name in gen_params if name not in known]:
        raise ConfigError(unknown("parameter", odd[0], known))
    given = {name: checked(name, value, len(ids)) for name, value in gen_params.items()}
    sizes = {"image_width": image_width, "image_height": image_height, "image_num_channels": image_num_channels}
    sizes = {name: checked(name, value, len(ids)) for name, value in sizes.items()}
    return HDlModel.of({**known, **sizes, **given, "type": type, "class_ids": ids}, network)


def create_dl_model_detection(
    backbone: str | nn.Module, num_classes: int, dlmodel_detection_param: Mapping[str, Any]
) -> HDlModel:
    """A model of 'detection'; `backbone` is a network of your own, or the name of one of HALCON's.

    A network that learns from scratch stands in place of HALCON's. Classes are 0, 1, … unless `class_ids` are among the
    parameters; the image is `image_dimensions`, or `image_width`, `image_height` and `image_num_channels`.
    """
    params = {"class_ids": num_classes, **dlmodel_detection_param}
    names = ("image_width", "image_height", "image_num_channels")
    if (size := params.pop("image_dimensions", None)) is not None:
        if twice := [name for name in names if name in params]:
            raise ConfigError(f"dlmodel_detection_param has 'image_dimensions' and {twice[0]!r}. Leave one out.")
        if not isinstance(size, Sequence) or not 2 <= len(size) <= 3:
            raise ConfigError(f"'image_dimensions' are a width, a height and, by choice, channels. Got {size!r}.")
        params |= dict(zip(names, size, strict=False))
    if missing := [name for name in names[:2] if name not in params]:
        raise ConfigError(f"dlmodel_detection_param has no {missing[0]!r}. Give it, or 'image_dimensions'.")
    return create_dl_model("detection", network=None if isinstance(backbone, str) else backbone, **params)


def read_dl_model(file_name: str | Path, *, network: nn.Module | None = None) -> HDlModel:
    """A model as `write_dl_model` wrote it; `network` is one of your own like the one it was made with."""
    return HDlModel(file_name, network=network)


def write_dl_model(dlmodel_handle: HDlModel, file_name: str | Path) -> None:
    """Writes weights, parameters and the optimizer's momenta, as safetensors."""
    _model(dlmodel_handle).WriteDlModel(file_name)


def get_dl_model_param(dlmodel_handle: HDlModel, gen_param_name: str) -> Any:
    """The value of a parameter."""
    return _model(dlmodel_handle).GetDlModelParam(gen_param_name)


def set_dl_model_param(dlmodel_handle: HDlModel, gen_param_name: str, gen_param_value: Any) -> None:
    """Sets a parameter, from the next update on; 'solver_type' and 'runtime' start the optimizer anew."""
    _model(dlmodel_handle).SetDlModelParam(gen_param_name, gen_param_value)


def train_dl_model_batch(dlmodel_handle: HDlModel, dlsample_batch: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """One update; `total_loss`, and the losses that it is the sum of, as they were before the update."""
    return _model(dlmodel_handle).TrainDlModelBatch(dlsample_batch)


def apply_dl_model(
    dlmodel_handle: HDlModel, dlsample_batch: Sequence[Mapping[str, Any]], outputs: Sequence[str] = ()
) -> list[dict[str, Any]]:
    """A dict of results for every sample, of which there may be any number; only `outputs`, if there are any."""
    return _model(dlmodel_handle).ApplyDlModel(dlsample_batch, outputs)


def __getattr__(name: str) -> Any:
    """An operator in the spelling of another language: `T_train_dl_model_batch`, `TrainDlModelBatch`."""
    snake = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name.removeprefix("T_")).lower()
    if snake in __all__ and name != snake:
        return globals()[snake]
    raise AttributeError(not_offered(name))


def _model(handle: Any) -> HDlModel:
    if not isinstance(handle, HDlModel):
        raise ConfigError(
            f"dlmodel_handle is what create_dl_model or read_dl_model gave, got a {type(handle).__name__}."
        )
    return handle
