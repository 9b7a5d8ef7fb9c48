"""Transforms of images, which belong to deserializers that are not offered."""

from .._native import lookup

__getattr__ = lookup("io.transforms")
