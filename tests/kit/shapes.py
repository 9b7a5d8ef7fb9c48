"""Drawn images of shapes, as the recipes of images have them."""

from pathlib import Path

from kit.imports import module_at

draw_shapes = module_at(Path(__file__).parents[2] / "recipes" / "shapes.py").draw_shapes
