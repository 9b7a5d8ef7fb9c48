"""Layers by CNTK's names."""

from .._native import lookup
from ..default_options import default_options as default_options
from ..default_options import default_options_for as default_options_for
from . import typing as typing
from .blocks import GRU as GRU
from .blocks import LSTM as LSTM
from .blocks import BlockFunction as BlockFunction
from .blocks import Constant as Constant
from .blocks import Input as Input
from .blocks import Parameter as Parameter
from .blocks import Placeholder as Placeholder
from .blocks import RNNStep as RNNStep
from .blocks import RNNUnit as RNNUnit
from .blocks import Stabilizer as Stabilizer
from .blocks import identity as identity
from .higher import Delay as Delay
from .higher import Fold as Fold
from .higher import For as For
from .higher import Recurrence as Recurrence
from .higher import RecurrenceFrom as RecurrenceFrom
from .higher import Sequential as Sequential
from .layers import Activation as Activation
from .layers import Dense as Dense
from .layers import Dropout as Dropout
from .layers import Embedding as Embedding
from .layers import Label as Label
from .layers import LayerNormalization as LayerNormalization
from .typing import ParameterTensor as ParameterTensor
from .typing import Sequence as Sequence
from .typing import SequenceOver as SequenceOver
from .typing import SparseTensor as SparseTensor
from .typing import Tensor as Tensor
from .typing import tensor as tensor

__getattr__ = lookup("layers")
