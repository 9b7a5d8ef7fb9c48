"""The short list of what a recorded pass may read, and the settings of torch by which it chooses operations."""

import builtins
import collections
import functools
import math
import operator
import os
import sys
import types
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import get_overridable_functions

PLAIN = {
    *(bool, int, float, complex, str, bytes, type(None), type(...), range),
    *(torch.dtype, torch.device, torch.memory_format, torch.layout),
}
"""Types of values that never change. Only these types count: a subclass may have attributes."""
CONTAINERS = {tuple, list, dict, set, frozenset, slice, torch.Size, collections.OrderedDict}
"""Types of values that a pass may make and use. Of sets that it reads, the content cannot be compared."""
TENSORS = {Tensor, nn.Parameter, nn.Buffer}


def _names(text: str) -> set[str]:
    return set(text.split())


BUILTINS = _names("""
    abs all any bool bytes complex dict divmod enumerate filter float frozenset int isinstance issubclass iter len list
    map max min next pow range reversed round set slice sorted str sum super tuple type zip
    None True False Ellipsis NotImplemented __debug__
""") | {name for name, value in vars(builtins).items() if isinstance(value, type) and issubclass(value, BaseException)}
READS_LENGTHS = _names("ctc_loss _ctc_loss tensor_split _pack_padded_sequence _pad_packed_sequence")
"""Functions whose results have sizes that depend on the numbers in a tensor; a recording takes them for constants."""
READS_MEMORY = READS_LENGTHS | _names("""
    item tolist numpy apply_ map_ map2_ data_ptr const_data_ptr storage storage_offset storage_type untyped_storage
    is_pinned is_shared is_set_to is_inference get_device hash_tensor pin_memory record_stream share_memory_ set_
    resize resize_ resize_as resize_as_ resize_as_sparse_ module_load is_distributed __array__ __dlpack__ __reduce_ex__
    backward register_hook register_post_accumulate_grad_hook requires_grad_ retain_grad
""")
"""Methods of tensors and functions of torch that read memory without an operation, or do more than compute."""
_FACTS = _names("""
    shape ndim dtype device layout requires_grad T mT H mH real imag nbytes itemsize is_cuda is_sparse
    new_zeros new_ones new_full new_empty
""")
_MAKERS = _names("""
    zeros ones full empty arange linspace logspace eye rand randn randint randperm rand_like randn_like randint_like
    tril_indices triu_indices is_tensor no_grad enable_grad finfo iinfo Size Tensor device
""")
_OF_BATCHES = {"rows", "fields"}
CHANGING = {"cursor", "ends_epoch", "samples", "macrobatch"}
"""Attributes of batches that differ from one to the next like it."""
_BY_TEXT = {"format", "format_map"}
"""Methods of texts that read attributes by names in a text."""


@functools.cache
def functions() -> frozenset[Any]:
    """Functions of torch that compute with tensors and nothing else, and those that make tensors."""
    spaces = (torch, torch.functional, nn.functional, torch.linalg, torch.fft, torch.special)
    found = [function for space in spaces for function in get_overridable_functions()[space]]
    found += [vars(torch)[name] for name in _MAKERS]
    found += [getattr(nn.functional, name) for name in ("tanh", "sigmoid")]
    found += [f for home in (math, operator) for f in vars(home).values() if callable(f) and not isinstance(f, type)]
    return frozenset(function for function in found if function.__name__ not in READS_MEMORY)


@functools.cache
def attributes() -> frozenset[str]:
    """Attributes of tensors, batches and plain values that may be read."""
    methods = {function.__name__ for function in get_overridable_functions()[Tensor]}
    plain = {name for kind in PLAIN | CONTAINERS for name in dir(kind)}
    found = (methods | _FACTS | _OF_BATCHES) - READS_MEMORY | plain - _BY_TEXT
    return frozenset(name for name in found if not name.startswith("_"))


def is_torch(home: str | None) -> bool:
    """Whether this is the name of a module of torch."""
    return (home or "").partition(".")[0] == "torch"


def is_trusted(home: str) -> bool:
    """Whether code of this module is torch's, ours or of a standard module they use, and depends on no other state."""
    return home.partition(".")[0] in _TRUSTED and not home.startswith(_NOT_TRUSTED)


def is_standard(home: str | None) -> bool:
    """Whether this is the name of a module that comes with Python."""
    return (home or "").partition(".")[0] in sys.stdlib_module_names - {"__main__"}


_TRUSTED = {
    *("torch", "headrace", "contextlib", "functools", "typing", "enum", "abc", "types", "collections", "weakref"),
    *("importlib", "logging"),
}
_NOT_TRUSTED = (
    *("torch.random", "torch.cuda.random", "torch.nn.utils.rnn", "torch.utils.checkpoint"),
    *("torch.distributed", "torch._dynamo", "torch.serialization", "torch.utils.data", "torch.multiprocessing"),
)


def functions_in(value: Any) -> list[types.FunctionType]:
    """The functions in an attribute of a class or a module: a function, a method, or those of a property."""
    inner = [value]
    if isinstance(value, staticmethod | classmethod):
        inner = [value.__func__]
    elif isinstance(value, property):
        inner = [value.fget, value.fset, value.fdel]
    return [each for each in inner if isinstance(each, types.FunctionType)]


def where(code: types.CodeType, line: int = 0) -> str:
    """A function, and where it is."""
    name = getattr(code, "co_qualname", code.co_name)
    return f"{name} ({os.path.basename(code.co_filename)}:{line or code.co_firstlineno})"


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
