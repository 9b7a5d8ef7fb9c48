"""Parameters of HALCON's models: what there are, what they start as, what they may be."""

import math
from collections.abc import Callable
from numbers import Integral, Real
from typing import Any

import numpy as np
import torch

from ...errors import ConfigError
from ...length import as_count

DEFAULTS: dict[str, Any] = {
    "learning_rate": 0.001,
    "momentum": 0.9,
    "weight_prior": 0.0,
    "batch_size": 1,
    "batch_size_multiplier": 1,
    "solver_type": "sgd",
    "adam_beta1": 0.9,
    "adam_beta2": 0.999,
    "adam_epsilon": 1e-8,
    "class_weights": [],
    "class_names": [],
    "runtime": "gpu" if torch.cuda.is_available() else "cpu",
}
"""Parameters that may be set at any time, of models of every type."""
OF_DETECTION: dict[str, Any] = {"min_confidence": 0.5, "max_overlap": 0.5, "max_num_detections": 100}
MADE_WITH: dict[str, dict[str, Any]] = {
    "classification": {},
    "segmentation": {"ignore_class_ids": []},
    "detection": {"instance_type": "rectangle1", "bbox_heads_weight": 1.0, "class_heads_weight": 1.0},
}
"""What a model of a type is made with besides its classes and images, and keeps."""
FRESH = ("solver_type", "runtime")
"""Parameters with which the optimizer starts anew."""


def _real(value: Any, below: float = math.inf) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool) and 0 <= float(value) < below


_RULES: dict[str, tuple[str, Callable[[Any], Any]]] = {
    **dict.fromkeys(
        (
            "batch_size",
            "batch_size_multiplier",
            "max_num_detections",
            "image_width",
            "image_height",
            "image_num_channels",
        ),
        ("a whole number greater than 0", as_count),
    ),
    **dict.fromkeys(
        ("learning_rate", "weight_prior", "adam_epsilon", "bbox_heads_weight", "class_heads_weight"),
        ("a number that is not negative", _real),
    ),
    **dict.fromkeys(("momentum", "adam_beta1", "adam_beta2"), ("a number from 0 to below 1", lambda v: _real(v, 1.0))),
    **dict.fromkeys(("min_confidence", "max_overlap"), ("a number from 0 to 1", lambda v: _real(v) and v <= 1)),
    "solver_type": ("'sgd' or 'adam'", ("sgd", "adam").__contains__),
    "runtime": ("'cpu' or 'gpu'", ("cpu", "gpu").__contains__),
    "instance_type": ("'rectangle1': boxes along rows and columns", ("rectangle1",).__contains__),
}


def checked(name: str, value: Any, classes: int) -> Any:
    """The value of a parameter as it is kept; raises on one that cannot be."""
    if name in ("class_weights", "class_names"):
        value = np.asarray(value).tolist() if not isinstance(value, str) else value
        value = value if isinstance(value, list) else [value] * classes
        if value and len(value) != classes:
            raise ConfigError(f"{name!r} has {len(value)} values for {classes} classes. Give one for each.")
        if name == "class_weights" and not (all(map(_real, value)) and (sum(value) or not value)):
            raise ConfigError(f"'class_weights' are numbers that are not negative, not all 0, got {value!r}.")
    elif name in _RULES:
        wanted, fits = _RULES[name]
        if not fits(value):
            raise ConfigError(f"{name!r} is {wanted}, got {value!r}.")
    if isinstance(value, tuple):
        return list(value)
    return int(value) if isinstance(value, Integral) else float(value) if isinstance(value, Real) else value


_NATIVE = {
    "train_dl_model_anomaly_dataset": "hr.Trainer with a model of your own",
    "set_system": "hr.Trainer(..., deterministic=True)",
    "gen_dl_samples": "a list of dicts, see vision.ImageSamples",
    "train_dl_model": "hr.Trainer(...).fit(...)",
    "evaluate_dl_model": "hr.Trainer(...).validate(...)",
}


def not_offered(name: str) -> str:
    """One sentence for a name of HALCON's that does not exist here."""
    native = _NATIVE.get(name, "headrace.vision and hr.Trainer")
    return f"HALCON's {name} is not offered here; the native way is {native}."
