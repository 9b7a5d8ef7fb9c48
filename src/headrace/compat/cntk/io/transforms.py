"""Transforms of images, which belong to deserializers that are not offered."""

from .._native import not_offered

_NATIVE = "Transform images in a UserDeserializer, or natively with hr.map(table, fn)."
crop = not_offered("io.transforms.crop", _NATIVE)
scale = not_offered("io.transforms.scale", _NATIVE)
mean = not_offered("io.transforms.mean", _NATIVE)
color = not_offered("io.transforms.color", _NATIVE)
