"""What watches a training: callbacks see everything and ask for little; the loop alone acts."""

from .answers import Answers
from .average import EMA, SWA
from .base import HOOKS, Callback, Callbacks
from .best import BestModel, EarlyStopping
from .csv import CSV
from .freeze import Freeze
from .hooks import Lambda
from .logfile import LogFile
from .mlflow import MLflow
from .profile import Profile
from .progress import Progress
from .rates import LearningRateMonitor
from .tensorboard import TensorBoard
from .timer import Timer
from .wandb import WandB

__all__ = [
    "CSV",
    "EMA",
    "HOOKS",
    "SWA",
    "Answers",
    "BestModel",
    "Callback",
    "Callbacks",
    "EarlyStopping",
    "Freeze",
    "Lambda",
    "LearningRateMonitor",
    "LogFile",
    "MLflow",
    "Profile",
    "Progress",
    "TensorBoard",
    "Timer",
    "WandB",
]
