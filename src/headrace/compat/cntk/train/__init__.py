"""Training by CNTK's names: trainers, sessions, workers."""

from .._native import lookup
from . import distributed as distributed
from . import trainer as trainer
from . import training_session as sessions
from .training_session import training_session as training_session

__getattr__ = lookup("train", trainer, sessions, distributed)
