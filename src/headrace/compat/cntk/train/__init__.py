"""Training by CNTK's names: trainer, session, distributed learners."""

from . import distributed as distributed
from . import trainer as trainer
from .distributed import Communicator as Communicator
from .trainer import Evaluator as Evaluator
from .trainer import Trainer as Trainer
from .training_session import CheckpointConfig as CheckpointConfig
from .training_session import CrossValidationConfig as CrossValidationConfig
from .training_session import DataUnit as DataUnit
from .training_session import TestConfig as TestConfig
from .training_session import TrainingSession as TrainingSession
from .training_session import minibatch_size_schedule as minibatch_size_schedule
from .training_session import training_session as training_session
