"""Workers, started and supervised: virtual ones here, processes, or a Ray cluster."""

from .job import Job, Result
from .launch import launch
from .network import Network

__all__ = ["Job", "Network", "Result", "launch"]
