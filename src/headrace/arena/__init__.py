"""A model as a few flat vectors: values and gradients.

An optimizer that works element by element gives the same result on one long vector as on a hundred small
tensors, for a fraction of the calls. So parameters are *stored* in one vector per (optimizer group, dtype,
device), and the optimizer is handed the longest runs of it that behave alike, usually one.

`Arena` does this for one optimizer; its `release` makes model and optimizer ordinary again. `Buffers` keeps
the copy of a model's buffers that undoes a failed step. `states` speaks of optimizers by parameter names.
"""

from .arena import ELEMENTWISE, Arena
from .buffers import Buffers
from .homes import names_of, owners, plain_name
from .replica import Replica
from .states import by_name, check_state, is_plain, load_state

__all__ = [
    "ELEMENTWISE",
    "Arena",
    "Buffers",
    "Replica",
    "by_name",
    "check_state",
    "is_plain",
    "load_state",
    "names_of",
    "owners",
    "plain_name",
]
