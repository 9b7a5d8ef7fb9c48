"""Metrics by CNTK's names: what is measured, for every sample."""

from ._native import lookup
from .losses import classification_error as classification_error

__getattr__ = lookup("metrics")
