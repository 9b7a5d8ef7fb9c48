"""Writes the weights of a run in the format of the Hugging Face hub."""

from pathlib import Path
from typing import Any

from torch import nn

from ..errors import ModelError
from ..step.weights import load_weights


def save_pretrained(model: nn.Module, path: str | Path, *, run: str | Path | None = None, **options: Any) -> Path:
    """Writes a model of transformers or peft so that `from_pretrained` can read it: safetensors and a configuration.

    Args:
        model: a model with a method `save_pretrained`. A model of peft writes only its adapter.
        path: the directory.
        run: first load the best weights of this run, or the last if no callback marked a best one.
        options: those of the model's own `save_pretrained`, such as `max_shard_size`.
    """
    write = getattr(model, "save_pretrained", None)
    if write is None:
        raise ModelError(
            f"a {type(model).__name__} has no save_pretrained: only models of transformers, peft and the like have the "
            "hub's format. Use hr.load_weights and torch.save, or headrace export."
        )
    if run is not None:
        load_weights(model, run)
    write(str(path), **options)
    return Path(path)
