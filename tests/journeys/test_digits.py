"""The digits recipe takes its arguments; the README's demo trains it to its end."""

from pathlib import Path

import pytest
from kit.imports import module_at

RECIPE = Path(__file__).parents[2] / "recipes" / "digits.py"


@pytest.mark.slow
def test_the_digits_recipe_knows_nothing_at_first_and_takes_its_arguments() -> None:
    recipe = module_at(RECIPE).digits(epochs=1, batch_size=200, width=4)
    assert recipe.trainer.test(recipe.test)["test/accuracy"] < 0.5
    assert len(recipe.train[1]) + len(recipe.val[1]) + len(recipe.test[1]) == 1797
    assert recipe.run(progress=False).last["step"] == 7
