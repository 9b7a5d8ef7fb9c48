"""What a worker can say to the others.

`Null` is alone, `TorchComm` speaks through torch.distributed, `SimComm` to virtual workers in the same process.
`here` gives the one of the worker that asks. A `Center` is where workers meet that do not wait for each other.
"""

from .base import Comm, Done, Null, Op, Pending
from .here import here, speaking_as

__all__ = ["Comm", "Done", "Null", "Op", "Pending", "here", "speaking_as"]
