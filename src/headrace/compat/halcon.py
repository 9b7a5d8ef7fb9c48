"""HALCON's deep-learning operators on models of torch: create, set, train a batch, apply, write and read.

`handle = create_dl_model("classification", image_width=32, image_height=32, class_ids=[0, 1, 2])`, then
`train_dl_model_batch(handle, samples)` and `apply_dl_model(handle, samples)`. The networks are small ones, of
`headrace.vision`, unless `network=` is one of your own. `HDlModel` has the same by the names of C++ and C#.
"""

import json
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from ..arena.momentum import MomentumSGD
from ..errors import ConfigError, CorruptError, DataError, unknown
from ..loss.classes import CrossEntropy, Focal
from ..loss.elements import Huber, L2Prior
from ..train.trainer import Trainer
from ..vision.detection import NONE, Detection, Detector
from ..vision.networks import ImageClassifier, Segmenter
from ..vision.samples import PARALLEL, ROTATED, ImageSamples

TYPES = ("classification", "segmentation", "detection")
H_MSG_TRUE = 2
"""What operators return where they succeed, in C."""
_DEFAULTS: dict[str, Any] = {
    "image_width": 64,
    "image_height": 64,
    "image_num_channels": 3,
    "class_ids": None,
    "class_names": None,
    "ignore_class_ids": [],
    "class_weights": None,
    "class_weight_normalization": "classes",
    "class_heads_weight": 1.0,
    "bbox_heads_weight": 1.0,
    "instance_type": "rectangle1",
    "learning_rate": 0.001,
    "momentum": 0.9,
    "weight_prior": 0.0005,
    "batch_size": 1,
    "batch_size_multiplier": 1,
    "min_confidence": 0.5,
    "max_overlap": 0.5,
    "max_num_detections": 100,
    "runtime": "cpu",
}
_SETTABLE = (
    "learning_rate",
    "momentum",
    "weight_prior",
    "batch_size",
    "batch_size_multiplier",
    "runtime",
    "class_names",
)
_told: set[str] = set()


class HDlModel:
    """A model with its hyperparameters: what a handle stands for."""

    def __init__(self, type: str, network: nn.Module | None = None, **params: Any) -> None:
        if type not in TYPES:
            raise ConfigError(f"{unknown('type', type, TYPES)} Other types of HALCON's are not offered.")
        for name in params:
            if name not in _DEFAULTS:
                raise ConfigError(unknown("parameter", name, _DEFAULTS))
        self._params = {**_DEFAULTS, **params, "type": type}
        if not self._params["class_ids"]:
            raise ConfigError("class_ids= lists the ids of the classes, as in [0, 1, 2].")
        ids = self._params["class_ids"] = [int(each) for each in self._params["class_ids"]]
        names = self._params["class_names"] = list(self._params["class_names"] or map(str, ids))
        if len(names) != len(ids):
            raise ConfigError(f"class_names= has {len(names)} names for {len(ids)} class_ids. Give one for each.")
        channels, rotated = self._params["image_num_channels"], self._params["instance_type"] == "rectangle2"
        self._samples = ImageSamples(
            type,  # type: ignore[arg-type]
            ids,
            channels=channels,
            size=(self._params["image_height"], self._params["image_width"]),
            ignore_class_ids=self._params["ignore_class_ids"],
            rotated=rotated,
        )
        if network is None:
            kind = {"classification": ImageClassifier, "segmentation": Segmenter, "detection": Detector}[type]
            network = kind(len(ids), channels)
        self.network = network
        self._prior = L2Prior(self._params["weight_prior"])
        self._trainer: Trainer | None = None
        _hint("create_dl_model", "hr.Trainer with a network of headrace.vision")

    def GetDlModelParam(self, name: str) -> Any:
        """A hyperparameter, or a fact of the model."""
        if name == "num_classes":
            return len(self._params["class_ids"])
        if name == "image_dimensions":
            return [self._params[f"image_{each}"] for each in ("width", "height", "num_channels")]
        if name not in self._params:
            raise ConfigError(unknown("parameter", name, [*self._params, "num_classes", "image_dimensions"]))
        return self._params[name]

    def SetDlModelParam(self, name: str, value: Any) -> None:
        """Sets a hyperparameter, in effect from the next batch on."""
        if name not in _SETTABLE:
            made = (
                f"{name!r} is set when the model is created"
                if name in self._params
                else unknown("parameter", name, _SETTABLE)
            )
            raise ConfigError(f"{made}. What can be set: {', '.join(_SETTABLE)}.")
        if name in ("batch_size", "batch_size_multiplier") and (not isinstance(value, int) or value < 1):
            raise ConfigError(f"{name} is a whole number above 0, got {value!r}.")
        if name in ("learning_rate", "momentum", "weight_prior") and not float(value) >= 0:
            raise ConfigError(f"{name} is a number that is not negative, got {value!r}.")
        if name == "runtime" and value not in ("cpu", "gpu"):
            raise ConfigError(f"runtime is 'cpu' or 'gpu', got {value!r}.")
        self._params[name] = value
        if name == "runtime" and self._trainer is not None:
            self._trainer.release()
            self._trainer = None
        self._apply_params()

    def TrainDlModelBatch(self, samples: Sequence[Mapping[str, Any]]) -> dict[str, float]:
        """One update on just batch_size · batch_size_multiplier samples: the total loss, and each of its parts."""
        wanted = self._params["batch_size"] * self._params["batch_size_multiplier"]
        if isinstance(samples, Mapping) or len(samples) != wanted:
            came = "a single dict" if isinstance(samples, Mapping) else f"{len(samples)} samples"
            raise DataError(
                f"a batch has batch_size={self._params['batch_size']} times batch_size_multiplier="
                f"{self._params['batch_size_multiplier']}, {wanted} samples; got {came}."
            )
        losses = self._ready().step(self._samples.batch(samples), exact=True)
        return {name: float(value) for name, value in losses.items()}

    def ApplyDlModel(self, samples: Sequence[Mapping[str, Any]], outputs: Sequence[str] = ()) -> list[dict[str, Any]]:
        """What the model says of each sample, of any number: by confidence, the best first."""
        images = self._samples.images(samples)
        found = self._ready().predict(
            {"image": images}, batch_size=self._params["batch_size"] * self._params["batch_size_multiplier"]
        )
        results = [self._result(each) for each in found]
        for name in outputs:
            if name not in results[0]:
                raise ConfigError(unknown("output", name, results[0]))
        return [{name: each[name] for name in outputs or each} for each in results]

    def WriteDlModel(self, path: str | Path) -> None:
        """Writes weights and hyperparameters into one file."""
        tensors = {name: value.detach().cpu().contiguous() for name, value in self.network.state_dict().items()}
        save_file(tensors, str(path), metadata={"headrace.halcon": json.dumps(self._params)})

    @classmethod
    def ReadDlModel(cls, path: str | Path, network: nn.Module | None = None) -> "HDlModel":
        """A model that was written; its own `network`, if it was made with one."""
        with safe_open(str(path), "pt") as file:
            params = (file.metadata() or {}).get("headrace.halcon")
            if params is None:
                raise CorruptError(f"{path} holds weights, and no model that write_dl_model has written.")
            model = cls(network=network, **json.loads(params))
            model.network.load_state_dict({name: file.get_tensor(name) for name in file.keys()})  # noqa: SIM118
        return model

    def _ready(self) -> Trainer:
        if self._trainer is None:
            params = self._params
            self._optimizer = MomentumSGD(self.network.parameters(), params["learning_rate"], params["momentum"])
            self._trainer = Trainer(
                self.network,
                self._loss(),
                self._optimizer,
                batch_size=params["batch_size"] * params["batch_size_multiplier"],
                microbatch=params["batch_size"] if params["batch_size_multiplier"] > 1 else None,
                inputs="image",
                target=self._samples.target,
                device="cuda" if params["runtime"] == "gpu" else "cpu",
            )
        return self._trainer

    def _loss(self) -> Any:
        params, ignored = self._params, NONE if self._params["ignore_class_ids"] else None
        if params["type"] == "detection":
            return Detection(
                Focal(
                    2.0,
                    class_weights=params["class_weights"],
                    ignore_index=NONE,
                    normalize="positives",
                    name="focal_loss",
                ),
                Huber(0.11, name="huber_loss"),
                self._prior,
                class_heads_weight=params["class_heads_weight"],
                bbox_heads_weight=params["bbox_heads_weight"],
                score=params["min_confidence"],
                iou=params["max_overlap"],
                most=params["max_num_detections"],
            )
        weights = params["class_weights"]
        options = {"normalize": params["class_weight_normalization"]} if weights is not None else {}
        pixels = "weight_image" if params["type"] == "segmentation" and params.get("weight_image") else None
        return CrossEntropy(class_weights=weights, ignore_index=ignored, weight=pixels, **options) + self._prior

    def _apply_params(self) -> None:
        """What has been set is in effect from the next batch on."""
        self._prior.coefficient = self._params["weight_prior"]
        if self._trainer is None:
            return
        for group in self._optimizer.param_groups:
            group["lr"], group["momentum"] = self._params["learning_rate"], self._params["momentum"]
        multiplier = self._params["batch_size_multiplier"]
        self._trainer.batch_size = self._params["batch_size"] * multiplier
        self._trainer.microbatch = self._params["batch_size"] if multiplier > 1 else None

    def _result(self, output: Tensor) -> dict[str, Any]:
        ids, names, kind = self._params["class_ids"], self._params["class_names"], self._params["type"]
        if kind == "classification":
            confidences, order = output.softmax(0).sort(descending=True)
            places = order.tolist()
            return {
                "classification_class_ids": [ids[k] for k in places],
                "classification_class_names": [names[k] for k in places],
                "classification_confidences": confidences.tolist(),
            }
        if kind == "segmentation":
            confidence, best = output.softmax(0).max(0)
            return {"segmentation_image": torch.tensor(ids)[best.cpu()], "segmentation_confidence": confidence}
        rows = output[output[:, -1] != NONE]
        keys = ROTATED if self._params["instance_type"] == "rectangle2" else PARALLEL
        places = rows[:, -1].long().tolist()
        return {
            **{key: rows[:, k].tolist() for k, key in enumerate(keys)},
            "bbox_class_id": [ids[k] for k in places],
            "bbox_class_name": [names[k] for k in places],
            "bbox_confidence": rows[:, -2].tolist(),
        }


def create_dl_model(type: str, network: nn.Module | None = None, **params: Any) -> HDlModel:
    """A model of one of the three types, with these parameters."""
    return HDlModel(type, network, **params)


def create_dl_model_detection(backbone: Any, num_classes: int, params: Mapping[str, Any]) -> HDlModel:
    """A detection model. `backbone` is a network with the outputs of `vision.Detector`, or the name of one of HALCON's,
    in whose place that stands."""
    network = backbone if isinstance(backbone, nn.Module) else None
    return HDlModel("detection", network, **{"class_ids": list(range(num_classes)), **params})


def train_dl_model_batch(handle: HDlModel, samples: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """One update: `total_loss` and each of its parts."""
    return _handle(handle).TrainDlModelBatch(samples)


def apply_dl_model(
    handle: HDlModel, samples: Sequence[Mapping[str, Any]], outputs: Sequence[str] = ()
) -> list[dict[str, Any]]:
    """What the model says of each sample."""
    return _handle(handle).ApplyDlModel(samples, outputs)


def get_dl_model_param(handle: HDlModel, name: str) -> Any:
    """A hyperparameter."""
    return _handle(handle).GetDlModelParam(name)


def set_dl_model_param(handle: HDlModel, name: str, value: Any) -> None:
    """Sets a hyperparameter."""
    _handle(handle).SetDlModelParam(name, value)


def write_dl_model(handle: HDlModel, path: str | Path) -> None:
    """Writes a model into a file."""
    _handle(handle).WriteDlModel(path)


def read_dl_model(path: str | Path, network: nn.Module | None = None) -> HDlModel:
    """Reads a model from a file."""
    return HDlModel.ReadDlModel(path, network)


def _handle(handle: Any) -> HDlModel:
    if not isinstance(handle, HDlModel):
        raise ConfigError(f"a handle is what create_dl_model or read_dl_model gives, got a {type(handle).__name__}.")
    return handle


def _hint(name: str, native: str) -> None:
    if name not in _told:
        _told.add(name)
        warnings.warn(f"halcon.{name}: natively, {native}.", DeprecationWarning, stacklevel=4)
