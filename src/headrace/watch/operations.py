"""Counts the floating-point operations of a forward pass."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.backends import mha
from torch.utils.flop_counter import FlopCounterMode, sdpa_flop_count

from ..errors import ConfigError

Shape = Sequence[int]


def operations_of(forward: Callable[[], Any]) -> int:
    """The operations of what `forward` calls: products of matrices, convolutions, recurrent layers and attention.

    Torch's fast path for transformers in eval mode is one operation, which cannot be counted: it is not used here.
    """
    fast = mha.get_fastpath_enabled()
    mha.set_fastpath_enabled(False)
    try:
        with FlopCounterMode(display=False, custom_mapping=_MORE) as counter:
            forward()
    finally:
        mha.set_fastpath_enabled(fast)
    if not (found := counter.get_total_flops()):
        raise ConfigError(
            "Timer: flops='auto' has found no operation that it can count in a forward pass. Give their number: "
            "flops=6 * parameters is usual for a dense model."
        )
    return int(found)


def _recurrent(inputs: Shape, *others: Any, out_val: Any = None, **_: Any) -> int:
    """Of a recurrent layer: each of its matrices is multiplied at each position."""
    given = [*others[:2]] if isinstance(others[0], torch.Size) else others[0]
    matrices = [shape for shape in given if len(shape) == 2]
    return 2 * torch.Size(inputs[:-1]).numel() * sum(torch.Size(shape).numel() for shape in matrices)


def _attention(query: Shape, key: Shape, value: Shape, *_: Any, out_val: Any = None, **__: Any) -> int:
    return int(sdpa_flop_count(query, key, value))


_MORE = {
    torch.ops.aten.mkldnn_rnn_layer: _recurrent,
    torch.ops.aten._cudnn_rnn: _recurrent,
    torch.ops.aten.miopen_rnn: _recurrent,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: _attention,
}
"""Operations that torch's counter does not know."""
