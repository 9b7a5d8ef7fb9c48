"""How torch is set: what decides which operations it makes."""

import math
from typing import Any

import torch

_SMALLEST = math.ulp(0.0)


def plain_torch() -> bool:
    """Whether nobody listens to torch's operations or changes what they do."""
    return not (
        torch._C._len_torch_dispatch_stack()
        or torch._C._len_torch_function_stack()
        or torch._C._is_any_autocast_enabled()
        or torch._C._autograd._top_saved_tensors_default_hooks(True)
        or torch.is_anomaly_enabled()
    )


def settings() -> tuple[Any, ...]:
    """The settings of torch by which it chooses operations."""
    return (
        torch.get_default_dtype(),
        torch.are_deterministic_algorithms_enabled(),
        torch._C._get_flash_sdp_enabled(),
        torch._C._get_mem_efficient_sdp_enabled(),
        torch._C._get_math_sdp_enabled(),
        torch._C._get_mkldnn_enabled(),
        torch.backends.mha.get_fastpath_enabled(),
        _SMALLEST * 1.0 == 0.0,  # torch.set_flush_denormal
    )
