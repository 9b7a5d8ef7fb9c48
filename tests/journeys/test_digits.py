"""The digits recipe learns to read, and takes its arguments."""

from pathlib import Path

import pytest
from kit.imports import module_at

RECIPE = Path(__file__).parents[2] / "recipes" / "digits.py"


@pytest.mark.slow
def test_the_digits_recipe_reaches_97_percent_on_digits_that_it_has_never_seen() -> None:
    recipe = module_at(RECIPE).digits()
    untrained = recipe.trainer.test(recipe.test)["test/accuracy"]
    history = recipe.run(progress=False)
    assert untrained < 0.5  # the control
    assert history.last["test/accuracy"] >= 0.97
    assert history.last["test/f1"] >= 0.97
    assert len(recipe.train[1]) + len(recipe.val[1]) + len(recipe.test[1]) == 1797
    short = module_at(RECIPE).digits(epochs=1, batch_size=200, width=4)
    assert short.run(progress=False).last["step"] == 7
