"""Layers by CNTK's names."""

from .._native import lookup
from ..default_options import default_options as default_options
from ..default_options import default_options_for as default_options_for
from . import blocks, higher, layers
from . import typing as typing

__getattr__ = lookup("layers", blocks, higher, layers, typing)
