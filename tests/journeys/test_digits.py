"""The digits recipe learns to read."""

from pathlib import Path

import pytest
from kit.imports import module_at

import headrace as hr

RECIPE = Path(__file__).parents[2] / "recipes" / "digits.py"


@pytest.mark.slow
def test_the_digits_recipe_reaches_97_percent_on_digits_that_it_has_never_seen() -> None:
    recipe = module_at(RECIPE).digits()
    assert isinstance(recipe, hr.Recipe)
    untrained = recipe.trainer.test(recipe.test)["test/accuracy"]
    history = recipe.run(progress=False)
    assert untrained < 0.5  # the control
    assert history.last["test/accuracy"] >= 0.97
    assert history.last["test/f1"] >= 0.97
    assert len(recipe.train[1]) + len(recipe.val[1]) + len(recipe.test[1]) == 1797


@pytest.mark.slow
def test_the_arguments_of_the_recipe_and_of_the_run_take_effect() -> None:
    recipe = module_at(RECIPE).digits(epochs=1, batch_size=200, width=4)
    assert recipe.run(progress=False).last["step"] == 7
    assert recipe.run(progress=False, epochs=2).last["step"] == 14


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
def test_the_same_seed_gives_the_same_model(seed: int) -> None:
    digits = module_at(RECIPE).digits
    first, second = (digits(epochs=1, width=4, seed=seed).run(progress=False).last for _ in range(2))
    assert first == second
