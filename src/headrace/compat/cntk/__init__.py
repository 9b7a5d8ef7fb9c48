"""CNTK's names and semantics, for programs that were written for it: `import headrace.compat.cntk as C`.

It calls the public rooms of headrace; docs/compatibility.md lists where it differs from CNTK 2.7.
"""

from typing import Any

from . import axis as axis
from . import cntk_py as cntk_py
from . import core as core
from . import device as device
from . import distributed as distributed
from . import initializer as initializer
from . import io as io
from . import layers as layers
from . import learners as learners
from . import logging as logging
from . import losses as losses
from . import metrics as metrics
from . import ops as ops
from . import sequence as sequence
from . import train as train
from . import variables as variables
from ._native import lookup as _lookup_in
from .axis import Axis as Axis
from .core import NDArrayView as NDArrayView
from .core import Value as Value
from .core import asarray as asarray
from .core import asvalue as asvalue
from .default_options import default_options as default_options
from .default_options import default_options_for as default_options_for
from .device import DeviceDescriptor as DeviceDescriptor
from .device import all_devices as all_devices
from .device import cpu as cpu
from .device import gpu as gpu
from .device import use_default_device as use_default_device
from .io import MinibatchSource as MinibatchSource
from .ops.functions import Function as Function
from .train import CheckpointConfig as CheckpointConfig
from .train import Communicator as Communicator
from .train import CrossValidationConfig as CrossValidationConfig
from .train import DataUnit as DataUnit
from .train import Evaluator as Evaluator
from .train import TestConfig as TestConfig
from .train import Trainer as Trainer
from .train import TrainingSession as TrainingSession
from .train import minibatch_size_schedule as minibatch_size_schedule
from .train import training_session as training_session
from .variables import Constant as Constant
from .variables import FreeDimension as FreeDimension
from .variables import InferredDimension as InferredDimension
from .variables import Parameter as Parameter
from .variables import Record as Record
from .variables import Variable as Variable

__version__ = "2.7"
_lookup = _lookup_in("")
_SHARED = (ops, losses, metrics, learners, initializer)


def __getattr__(name: str) -> Any:
    for module in _SHARED:
        if not name.startswith("_") and hasattr(module, name):
            return getattr(module, name)
    return _lookup(name)


def __dir__() -> list[str]:
    return sorted({*globals(), *(name for module in _SHARED for name in dir(module) if not name.startswith("_"))})
