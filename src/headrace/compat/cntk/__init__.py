"""CNTK's names and semantics, for programs that were written for it: `import headrace.compat.cntk as C`.

It calls the public rooms of headrace; docs/compatibility.md lists where it differs from CNTK 2.7.
"""

from types import SimpleNamespace

import torch

from . import axis as axis
from . import core as core
from . import default_options as _default_options
from . import device as device
from . import initializer as initializer
from . import io as io
from . import layers as layers
from . import learners as learners
from . import logging as logging
from . import losses as losses
from . import ops as ops
from . import train as train
from . import variables as variables
from ._native import add_module, complete
from ._native import lookup as _lookup
from .default_options import default_options as default_options

__version__ = "2.7"
_LOWER = SimpleNamespace(
    MinibatchSourceConfig=io.sources.MinibatchSourceConfig,
    to_dictionary=io.sources.to_dictionary,
    minibatch_size_schedule=learners.schedules.MinibatchSizeSchedule,
    training_double_parameter_schedule=learners.schedules.ParameterSchedule,
    ProgressWriter=logging.ProgressWriter,
    InferredDimension=variables.InferredDimension,
    set_fixed_random_seed=lambda seed: torch.manual_seed(seed),
    force_deterministic_algorithms=lambda: torch.use_deterministic_algorithms(True),
)
"""Names of CNTK's lower layer that programs import."""
add_module("metrics", losses)
add_module("sequence", ops.sequence)
add_module("distributed", train.distributed)
add_module("cntk_py", _LOWER)
add_module("io.transforms")
add_module("layers.typing")
complete(__name__)
_PLACES = (ops, losses, learners, initializer, axis, core, _default_options, device, io, train, variables)
__getattr__ = _lookup("", *_PLACES)


def __dir__() -> list[str]:
    return sorted({*globals(), *(name for module in _PLACES for name in dir(module) if not name.startswith("_"))})
