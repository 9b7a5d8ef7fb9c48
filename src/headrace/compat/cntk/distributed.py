"""Distributed learners, by CNTK's names."""

from .train.distributed import BlockMomentumLearner as BlockMomentumLearner
from .train.distributed import Communicator as Communicator
from .train.distributed import DistributedLearner as DistributedLearner
from .train.distributed import WorkerDescriptor as WorkerDescriptor
from .train.distributed import block_momentum_distributed_learner as block_momentum_distributed_learner
from .train.distributed import data_parallel_distributed_learner as data_parallel_distributed_learner
from .train.distributed import mpi_communicator as mpi_communicator
