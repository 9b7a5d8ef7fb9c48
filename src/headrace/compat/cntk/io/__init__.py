"""Data by CNTK's names: sources, deserializers, streams."""

from .._native import lookup
from . import transforms as transforms
from .deserializers import CTFDeserializer as CTFDeserializer
from .deserializers import UserDeserializer as UserDeserializer
from .memory import MinibatchSourceFromData as MinibatchSourceFromData
from .memory import UserMinibatchSource as UserMinibatchSource
from .sources import MinibatchSource as MinibatchSource
from .streams import DEFAULT_RANDOMIZATION_WINDOW_IN_CHUNKS as DEFAULT_RANDOMIZATION_WINDOW_IN_CHUNKS
from .streams import FULL_DATA_SWEEP as FULL_DATA_SWEEP
from .streams import INFINITELY_REPEAT as INFINITELY_REPEAT
from .streams import MinibatchData as MinibatchData
from .streams import StreamConfiguration as StreamConfiguration
from .streams import StreamDef as StreamDef
from .streams import StreamDefs as StreamDefs
from .streams import StreamInformation as StreamInformation
from .text import _is_tensor as _is_tensor
from .text import sequence_to_cntk_text_format as sequence_to_cntk_text_format

__getattr__ = lookup("io")
