"""Operations along sequences, by CNTK's names."""

from ._native import lookup
from .ops.sequence import broadcast_as as broadcast_as
from .ops.sequence import delay as delay
from .ops.sequence import first as first
from .ops.sequence import future_value as future_value
from .ops.sequence import input as input
from .ops.sequence import input_variable as input_variable
from .ops.sequence import is_first as is_first
from .ops.sequence import is_last as is_last
from .ops.sequence import last as last
from .ops.sequence import past_value as past_value
from .ops.sequence import reduce_max as reduce_max
from .ops.sequence import reduce_sum as reduce_sum
from .ops.sequence import slice as slice
from .ops.sequence import softmax as softmax

__getattr__ = lookup("sequence")
