"""A recipe: everything that a training needs, put together by one typed function.

`find` finds the function, `parameters` reads what it takes, and `recipe` runs it. `of_run` makes it again from what a
run has kept, `data` reads a file as its training data were, and `answers` makes columns of what its model says.
"""

from .find import find_recipe, located
from .of_run import PARTS, read_file, recipe_file, recipe_of
from .parameters import Parameter, check_parameters, parameters_of, parser_of, typed
from .recipe import LIMITS, RECIPE_FILE, Recipe, Trained, Training, follow, load_recipe, merged, run_recipe

__all__ = [
    "LIMITS",
    "PARTS",
    "RECIPE_FILE",
    "Parameter",
    "Recipe",
    "Trained",
    "Training",
    "check_parameters",
    "find_recipe",
    "follow",
    "load_recipe",
    "located",
    "merged",
    "parameters_of",
    "parser_of",
    "read_file",
    "recipe_file",
    "recipe_of",
    "run_recipe",
    "typed",
]
