"""Names of CNTK's lower layer that programs import."""

from ._native import lookup
from .io.config import MinibatchSourceConfig as MinibatchSourceConfig
from .io.config import to_dictionary as to_dictionary
from .learners.schedules import MinibatchSizeSchedule, ParameterSchedule
from .logging.progress import ProgressWriter as ProgressWriter
from .variables import InferredDimension as InferredDimension

minibatch_size_schedule, training_double_parameter_schedule = MinibatchSizeSchedule, ParameterSchedule
__getattr__ = lookup("cntk_py")


def set_fixed_random_seed(value: int) -> None:
    """Seeds torch's generator, from which parameters and dropout are drawn."""
    import torch

    torch.manual_seed(value)


def force_deterministic_algorithms() -> None:
    """Lets torch use deterministic algorithms only."""
    import torch

    torch.use_deterministic_algorithms(True)
