"""A model of HALCON's: a network with its parameters, its losses and its trainer, and the file that holds it."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import safetensors
import safetensors.torch
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ...arena.own_optimizers import MomentumSGD
from ...data.batch import Batch
from ...errors import CheckpointError, ConfigError, DataError, RunError, unknown
from ...loss.base import Loss
from ...loss.classes import CrossEntropy
from ...loss.elements import Huber, L2Prior
from ...loss.focal import Focal
from ...store.disk import write_file
from ...train.trainer import Trainer
from ...vision import NONE, Detection, Detector, ImageClassifier, ImageSamples, Segmenter
from .parameters import DEFAULTS, FRESH, OF_DETECTION, checked, not_offered


class _SumOfFocal(Focal):
    """Divided by nothing, also where it is reported."""

    def weight(self, batch: Batch) -> float:
        return batch.share


class _SumOfHuber(Huber):
    """Divided by nothing, also where it is reported."""

    def weight(self, batch: Batch) -> float:
        return batch.share


class HDlModel:
    """A model with its parameters, as `HDlModel` in C++ and C#; the handle of the operators."""

    _params: dict[str, Any]
    _trainer: Trainer

    def __init__(self, FileName: str | Path, *, network: nn.Module | None = None) -> None:
        document, tensors = _read(Path(FileName))
        self._make(document["params"], network)
        own = {name.removeprefix("model/"): t for name, t in tensors.items() if name.startswith("model/")}
        try:
            self._network.load_state_dict(own)
        except RuntimeError as error:
            raise CheckpointError(
                f"{FileName} is of another network. Read it with network= as it was made with: {error}"
            ) from None
        params = list(self._network.parameters())
        for name, tensor in tensors.items():
            if name.startswith("optimizer/"):
                _, place, key = name.split("/")
                self._trainer.optimizer.state[params[int(place)]][key] = tensor.to(params[int(place)].device)

    @classmethod
    def of(cls, params: Mapping[str, Any], network: nn.Module | None) -> "HDlModel":
        """A model of these parameters that has not been trained."""
        made = cls.__new__(cls)
        made._make(params, network)
        return made

    def TrainDlModelBatch(self, DLSampleBatch: Sequence[Mapping[str, Any]]) -> dict[str, float]:
        """One update; `total_loss`, and the losses that it is the sum of, as they were before the update."""
        samples = [DLSampleBatch] if isinstance(DLSampleBatch, Mapping) else list(DLSampleBatch)
        size, times = self._params["batch_size"], self._params["batch_size_multiplier"]
        if len(samples) != size * times:
            raise DataError(
                f"train_dl_model_batch takes exactly 'batch_size' times 'batch_size_multiplier' samples, {size} times "
                f"{times}, got {len(samples)}. Give {size * times} of them, or set these parameters."
            )
        if self._params["type"] == "segmentation":
            samples = [_weighted(sample) for sample in samples]
        means = self._trainer.step(self._samples.batch(samples), full_batch=True)
        heads = {name: 1.0 if term.training_only else float(term.coefficient) for name, term in self._terms.items()}
        parts = {name: float(means[name]) * times for name, times in heads.items()}
        return {"total_loss": float(means["total_loss"]), **parts}

    def ApplyDlModel(
        self, DLSampleBatch: Sequence[Mapping[str, Any]], Outputs: Sequence[str] = ()
    ) -> list[dict[str, Any]]:
        """A dict of results for every sample, of which there may be any number."""
        samples = [DLSampleBatch] if isinstance(DLSampleBatch, Mapping) else list(DLSampleBatch)
        images = self._samples.images(samples)
        answers = self._trainer.predict({"image": images}, batch_size=self._params["batch_size"])
        results = [self._result(answer) for answer in answers]
        wanted = [Outputs] if isinstance(Outputs, str) else list(Outputs)
        if odd := [key for key in wanted if key not in results[0]]:
            raise ConfigError(unknown("output", odd[0], results[0]))
        return [{key: result[key] for key in wanted or result} for result in results]

    def GetDlModelParam(self, GenParamName: str) -> Any:
        """The value of a parameter."""
        found = {**self._params, "num_classes": len(self._params["class_ids"])}
        found["image_dimensions"] = [found["image_width"], found["image_height"], found["image_num_channels"]]
        if GenParamName not in found:
            raise ConfigError(unknown("parameter", GenParamName, found))
        value = found[GenParamName]
        return list(value) if isinstance(value, list) else value

    def SetDlModelParam(self, GenParamName: str, GenParamValue: Any) -> None:
        """Sets a parameter, from the next update on; 'solver_type' and 'runtime' start the optimizer anew."""
        settable = [*DEFAULTS, *(OF_DETECTION if self._params["type"] == "detection" else ())]
        fixed = self._params["type"] == "detection" and GenParamName == "class_weights"
        if fixed or (GenParamName in self._params and GenParamName not in settable):
            raise ConfigError(f"{GenParamName!r} is what a model is made with, and stays: give it to create_dl_model.")
        if GenParamName not in settable:
            raise ConfigError(unknown("parameter", GenParamName, settable))
        value = checked(GenParamName, GenParamValue, len(self._params["class_ids"]))
        before = self._params
        self._params = {**before, GenParamName: value}
        try:
            if GenParamName in FRESH:
                self._trainer.release()
                self._start()
            else:
                self._apply()
        except BaseException:
            self._params = before
            raise

    def WriteDlModel(self, FileName: str | Path) -> None:
        """Writes weights, parameters and the optimizer's momenta, as safetensors."""
        self._trainer.release()
        tensors = {f"model/{name}": value for name, value in self._network.state_dict().items()}
        for place, param in enumerate(self._network.parameters()):
            for key, value in self._trainer.optimizer.state.get(param, {}).items():
                tensors[f"optimizer/{place}/{key}"] = torch.as_tensor(value)
        on_host = {name: value.detach().cpu().clone() for name, value in tensors.items()}
        metadata = {"halcon": json.dumps({"params": self._params})}
        write_file(Path(FileName), safetensors.torch.save(on_host, metadata))

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("_"):
            raise AttributeError(name)
        raise AttributeError(not_offered(name))

    def _make(self, params: Mapping[str, Any], network: nn.Module | None) -> None:
        self._params = dict(params)
        kind, ids, channels = params["type"], params["class_ids"], params["image_num_channels"]
        size = params["image_height"], params["image_width"]
        ignored = params.get("ignore_class_ids", [])
        self._samples = ImageSamples(kind, ids, channels=channels, size=size, ignore_class_ids=ignored)
        self._prior = L2Prior(params["weight_prior"])
        if kind == "detection":
            if max(params["class_weights"], default=0) > 1:
                raise ConfigError(
                    "'class_weights' of a detector are from 0 to 1: w is the weight of a class where it is, 1 - w "
                    f"where it is not. Got {params['class_weights']}."
                )
            focal = _SumOfFocal(2.0, alpha=params["class_weights"] or None, ignore_index=NONE, name="focal")
            shares = {key: params[key] for key in ("class_heads_weight", "bbox_heads_weight")}
            self._objective: Any = Detection(focal, _SumOfHuber(0.11, name="huber"), self._prior, **shares)
            terms: list[Loss] = [self._objective.focal, self._objective.huber, self._prior]
            self._terms = {term.name: term for term in terms}
            self._network = network or Detector(len(ids), channels)
        else:
            places: dict[str, Any] = {"ignore_index": NONE, "weight": "weight_image"} if kind == "segmentation" else {}
            self._objective = CrossEntropy(normalize="classes", **places) + self._prior
            made = Segmenter if kind == "segmentation" else ImageClassifier
            self._network = network or made(len(ids), channels)
        self._start()

    def _start(self) -> None:
        """A trainer with a new optimizer."""
        params = self._params
        weights = list(self._network.parameters())
        optimizer: Optimizer = MomentumSGD(weights) if params["solver_type"] == "sgd" else torch.optim.Adam(weights)
        device = "cuda" if params["runtime"] == "gpu" else "cpu"
        options: dict[str, Any] = {"device": device, "inputs": "image", "target": self._samples.target}
        self._trainer = Trainer(self._network, self._objective, optimizer, **options)
        if params["type"] != "detection":
            self._terms = self._trainer.objectives[""].loss  # type: ignore[attr-defined]
        self._apply()

    def _apply(self) -> None:
        """Hands the parameters to what uses them."""
        params, trainer = self._params, self._trainer
        for group in trainer.optimizer.param_groups:
            group["lr"] = params["learning_rate"]
            if params["solver_type"] == "sgd":
                group["momentum"] = params["momentum"]
            else:
                group["betas"], group["eps"] = (params["adam_beta1"], params["adam_beta2"]), params["adam_epsilon"]
        size, times = params["batch_size"], params["batch_size_multiplier"]
        trainer.batch_size, trainer.microbatch = size * times, size if times > 1 else None
        prior = next(term for term in self._terms.values() if isinstance(term, L2Prior))
        prior.coefficient = params["weight_prior"]
        if params["type"] == "detection":
            self._objective.score, self._objective.iou = params["min_confidence"], params["max_overlap"]
            self._objective.max_boxes = params["max_num_detections"]
        else:
            entropy = next(term for term in self._terms.values() if isinstance(term, CrossEntropy))
            weights = params["class_weights"]  # over their mean, so that equal ones change nothing
            unequal = len(set(weights)) > 1
            entropy.class_weights = torch.tensor(weights) if unequal else None
            entropy.coefficient = float(len(weights)) if unequal else 1.0

    def _result(self, answer: Tensor) -> dict[str, Any]:
        """What HALCON calls the answer of the model to one sample."""
        ids, names, kind = self._params["class_ids"], self._params["class_names"], self._params["type"]
        if kind == "segmentation":
            confidence, place = answer.softmax(0).max(0)
            return {"segmentation_image": torch.tensor(ids)[place], "segmentation_confidence": confidence}
        if kind == "classification":
            confidences, places = answer.softmax(0).sort(descending=True, stable=True)
            prefix, order = "classification_", places.tolist()
            found: dict[str, Any] = {}
            keys = "class_ids", "class_names", "confidences"
        else:
            answer = answer[answer[:, -1] != NONE]
            confidences, order = answer[:, -2], answer[:, -1].long().tolist()
            columns = self._samples.keys[1:-1]
            found = {key: answer[:, k].tolist() for k, key in enumerate(columns)}
            prefix, keys = "bbox_", ("class_id", "class_name", "confidence")
        found[prefix + keys[0]] = [ids[k] for k in order]
        if names:
            found[prefix + keys[1]] = [names[k] for k in order]
        return {**found, prefix + keys[2]: confidences.tolist()}


def _weighted(sample: Mapping[str, Any]) -> Mapping[str, Any]:
    """A sample for segmentation with a weight for every pixel: 1 where it has none."""
    if not isinstance(sample, Mapping) or "weight_image" in sample or "segmentation_image" not in sample:
        return sample
    return {**sample, "weight_image": torch.ones_like(torch.as_tensor(sample["segmentation_image"]), dtype=torch.float)}


def _read(path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    if not path.is_file():
        raise RunError(f"read_dl_model: there is no file {path}. It is what write_dl_model wrote.")
    try:
        with safetensors.safe_open(path, "pt") as file:
            document = json.loads((file.metadata() or {})["halcon"])
            return document, {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (safetensors.SafetensorError, KeyError, ValueError):
        raise CheckpointError(
            f"{path} is no model that write_dl_model wrote here. Files of HALCON itself (.hdl) are not read: make the "
            "model by create_dl_model, and train it."
        ) from None
