"""The random state of a process: Python's, NumPy's and torch's, as plain values and tensors."""

import random
from collections.abc import Mapping
from hashlib import blake2b
from typing import Any

import numpy as np
import torch
from torch import Tensor


def capture(device: torch.device) -> dict[str, Any]:
    """Where the generators stand."""
    version, words, gauss = random.getstate()
    return {
        "python": [version, torch.tensor(words), gauss],
        "numpy": np.random.get_state(legacy=False),
        **capture_torch(device),
    }


def standing() -> tuple[object, ...]:
    """The state of the host's generators as comparable values: it shows whether numbers were drawn in between."""
    numbers: Any = np.random.get_state(legacy=True)
    return torch.get_rng_state().numpy().tobytes(), random.getstate(), numbers[1].tobytes(), *numbers[2:]


def restore(state: dict[str, Any], device: torch.device) -> None:
    """Sets the generators to where they stood; those of a device that was not there then stay as they are."""
    version, words, gauss = state["python"]
    random.setstate((version, tuple(words.tolist()), gauss))
    np.random.set_state(state["numpy"])
    restore_torch(state, device)


def seed(key: str, device: torch.device) -> None:
    """Sets the generators to where this key says, the same in every process."""
    number = int.from_bytes(blake2b(key.encode(), digest_size=7).digest())
    random.seed(number)
    np.random.seed(number % 2**32)
    torch.default_generator.manual_seed(number)
    if device.type == "cuda":
        with torch.cuda.device(device):
            torch.cuda.manual_seed(number)


def capture_torch(device: torch.device) -> dict[str, Tensor]:
    """Where torch's generators stand: what a forward pass may draw from."""
    state = {"torch": torch.get_rng_state()}
    if device.type == "cuda":
        state["cuda"] = torch.cuda.get_rng_state(device)
    return state


def restore_torch(state: Mapping[str, Any], device: torch.device) -> None:
    """As `restore`, torch's generators alone."""
    torch.set_rng_state(state["torch"])
    if device.type == "cuda" and "cuda" in state:
        torch.cuda.set_rng_state(state["cuda"], device)
