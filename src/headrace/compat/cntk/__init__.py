"""CNTK's names and semantics, for programs that were written for it: `import headrace.compat.cntk as C`.

It calls the public rooms of headrace; docs/compatibility.md lists where it differs from CNTK 2.7.
"""

from . import axis as axis
from . import cntk_py as cntk_py
from . import core as core
from . import default_options as _default_options
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
from ._native import lookup as _lookup
from .default_options import default_options as default_options

__version__ = "2.7"
_PLACES = (ops, losses, metrics, learners, initializer, axis, core, _default_options, device, io, train, variables)
__getattr__ = _lookup("", *_PLACES)


def __dir__() -> list[str]:
    return sorted({*globals(), *(name for module in _PLACES for name in dir(module) if not name.startswith("_"))})
