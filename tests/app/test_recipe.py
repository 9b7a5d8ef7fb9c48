"""Recipes: which function of a file it is, what it takes, and values for that as files have them."""

import sys
from enum import Enum
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
import yaml
from torch import nn

import headrace as hr
from headrace.app.find import find_recipe
from headrace.app.parameters import MisfitError, as_type, check_parameters, parameters_of, plain, typed
from headrace.app.recipe import load_recipe

TYPED = '''
from pathlib import Path
from typing import Literal
import headrace as hr

def one(
    lr: float,
    kind: Literal["a", "b"] = "a",
    layers: list[int] = [1, 2],
    most: int | None = None,
    keep: int | Literal["all"] = 3,
    where: Path = Path("here"),
    loud: bool = False,
) -> hr.Recipe:
    """Trains.

    Args:
        lr: learning rate.
        kind: of what kind.
        layers: widths.
        most: at most.
        keep: how many.
        where: a place.
        loud: whether it is loud.
    """
'''


def written(name: str, text: str) -> str:
    Path(name).write_text(text)
    return name


def refused(name: str, arguments: dict[str, Any] | None = None) -> str:
    with pytest.raises(hr.ConfigError) as caught:
        load_recipe(name, arguments)
    return str(caught.value)


# --- the data ---------------------------------------------------------------------------------------------


def a_trainer() -> hr.Trainer:
    model = nn.Linear(2, 1)
    return hr.Trainer(model, hr.MSE(), torch.optim.SGD(model.parameters(), lr=0.1), batch_size=4)


def test_a_recipe_trains_on_what_its_function_returns() -> None:
    rows = torch.randn(8, 2), torch.randn(8, 1)
    made = hr.Recipe(a_trainer(), data=lambda: (rows, rows), fit={"epochs": 1, "progress": False}).open_data()
    assert (made.train, made.val, made.test) == (rows, rows, None)
    assert "val/loss" in made.run().last


@pytest.mark.parametrize(("parts", "count"), [((1, 2, 3, 4), 4), ((), 0)])
def test_a_function_that_returns_more_than_train_val_and_test_is_refused(parts: tuple[Any, ...], count: int) -> None:
    with pytest.raises(hr.ConfigError, match=f"returned {count} parts"):
        hr.Recipe(a_trainer(), data=lambda: parts).open_data()


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"data": [1]}, "is a function, got a list"),
        ({"data": list, "train": [1]}, "data= or train="),
        ({"data": list, "test": [1]}, "data= or test="),
    ],
)
def test_a_recipe_has_its_data_from_one_place(given: dict[str, Any], why: str) -> None:
    with pytest.raises(hr.ConfigError, match=why):
        hr.Recipe(a_trainer(), **given)


# --- which function ---------------------------------------------------------------------------------------


def test_the_only_function_that_returns_a_recipe_is_found_and_others_by_name(in_tmp_path: Path) -> None:
    two = "import headrace as hr\nfrom headrace import Recipe\ndef no(): ...\ndef one() -> hr.Recipe: ...\n"
    assert find_recipe(written("single.py", two)).__name__ == "one"
    assert find_recipe(written("text.py", f"from __future__ import annotations\n{two}")).__name__ == "one"
    written("both.py", two + "def other() -> Recipe: ...\n")
    assert find_recipe("both.py:other").__name__ == "other"
    assert "2 functions that return a Recipe: one, other. Say both.py:name." in refused("both.py")
    assert "unknown recipe 'othr'. Did you mean 'other'?" in refused("both.py:othr")
    assert "has no function that returns a Recipe" in refused(written("none.py", "def no(): ...\n"))


def test_what_a_module_imports_counts_only_if_it_has_nothing_else(in_tmp_path: Path) -> None:
    written("first.py", "import headrace as hr\ndef one() -> hr.Recipe: ...\n")
    own = "import headrace as hr\nfrom first import one\ndef two() -> hr.Recipe: ...\n"
    assert find_recipe(written("second.py", own)).__name__ == "two"
    assert find_recipe("second.py:one").__name__ == "one"
    assert find_recipe(written("third.py", "from first import one\n")).__name__ == "one"


def test_a_file_that_is_not_there_is_told_with_the_nearest_that_is(in_tmp_path: Path) -> None:
    written("digits.py", "")
    assert "digit.py is not a Python file with a recipe. Did you mean 'digits.py'?" in refused("digit.py")
    assert "is not a Python file with a recipe" in refused("nowhere/digits.py")
    assert "is not a Python file with a recipe" in refused(written("digits.txt", ""))


def test_a_recipe_finds_what_lies_beside_it(in_tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (in_tmp_path / "there").mkdir()
    written("there/beside_it.py", "WIDTH = 5\n")
    text = "import headrace as hr\nfrom beside_it import WIDTH\ndef one(width: int = WIDTH) -> hr.Recipe: ...\n"
    written("there/uses_it.py", text)
    assert parameters_of(find_recipe("there/uses_it.py"))["width"].default == 5


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("x = 1\nimport nowhere_at_all\n", ["No module named 'nowhere_at_all'", "line 2: import nowhere_at_all"]),
        ("def f(:\n", ["SyntaxError", "line 1: def f(:"]),
        ("def g():\n    return 1 / 0\ng()\n", ["ZeroDivisionError", "line 2: return 1 / 0"]),
    ],
)
def test_a_module_that_fails_to_import_is_told_with_the_line(in_tmp_path: Path, text: str, told: list[str]) -> None:
    said = refused(written("broken_recipe.py", text))
    assert all(each in said for each in ["broken_recipe.py cannot be imported", *told])
    assert "broken_recipe" not in sys.modules


def test_a_recipe_that_hides_a_module_of_python_is_refused(in_tmp_path: Path) -> None:
    import random

    assert "Give the recipe another name" in refused(written("random.py", "import headrace"))
    assert sys.modules["random"] is random


@pytest.mark.parametrize("name", ["yaml", "torch", "headrace"])
def test_a_recipe_that_hides_an_installed_module_is_refused(name: str, in_tmp_path: Path) -> None:
    module = import_module(name)
    said = refused(written(f"{name}.py", "import headrace as hr\ndef one() -> hr.Recipe: ...\n"))
    assert f"{name}.py has the same name as an installed module ({module.__file__}), which it would replace" in said
    assert sys.modules[name] is module


def test_recipes_of_one_name_in_two_directories_take_turns(in_tmp_path: Path) -> None:
    text = "import headrace as hr\ndef one(width: int = WIDTH) -> hr.Recipe: ...\n"
    for width, folder in enumerate(["here", "there"]):
        (in_tmp_path / folder).mkdir()
        written(f"{folder}/same.py", text.replace("WIDTH", str(width)))
    found = [find_recipe(f"{folder}/same.py") for folder in ("here", "there", "here")]
    assert [parameters_of(one)["width"].default for one in found] == [0, 1, 0]


# --- what it takes ----------------------------------------------------------------------------------------


def test_parameters_are_told_with_type_and_default(in_tmp_path: Path) -> None:
    found = parameters_of(find_recipe(written("typed_recipe.py", TYPED)))
    said = {name: each.type for name, each in found.items()}
    assert said["lr"] == "float"
    assert said["kind"] == "a|b"
    assert said["most"] == "int"
    assert said["keep"] == "int or all"
    assert (said["where"], said["layers"]) == ("Path", "list[int]")
    assert [name for name, each in found.items() if each.type == "bool"] == ["loud"]
    assert (found["lr"].default, found["layers"].default) == (None, [1, 2])


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("def one(\n    lr: float,\n    momentum=0.9,\n)", "line 3: the parameter 'momentum' of one has no type"),
        ("def one(lr: float, momentum=0.9)", "is an option of the command line. Write momentum: float = 0.9."),
        ("def one(lr: float, width: int = 3)", 'Write there, under "Args:", "width: what it is."'),
        (
            "def one(lr: float, width: int = 3)",
            "line 3: the parameter 'width' of one is not described in the docstring",
        ),
    ],
)
def test_a_parameter_without_type_or_word_is_told_with_its_line(in_tmp_path: Path, text: str, told: str) -> None:
    doc = '    """Trains.\n\n    Args:\n        lr: learning rate.\n    """\n'
    function = find_recipe(written("lacking.py", f"\nimport headrace as hr\n{text} -> hr.Recipe:\n{doc}"))
    with pytest.raises(hr.ConfigError) as caught:
        check_parameters(function)
    assert told in str(caught.value)
    assert "lacking.py" in str(caught.value)


def test_what_can_be_no_flag_is_refused(in_tmp_path: Path) -> None:
    text = "import headrace as hr\ndef one(**more: int) -> hr.Recipe: ...\ndef two(a: int, /) -> hr.Recipe: ...\n"
    for name in (f"{written('loose.py', text)}:one", "loose.py:two"):
        with pytest.raises(hr.ConfigError, match=r"cannot be (an option|options) of the command line"):
            check_parameters(find_recipe(name))


def test_plain_values_become_what_the_function_takes(in_tmp_path: Path) -> None:
    function = find_recipe(written("typed_recipe.py", TYPED))
    found = typed(function, {"lr": 1, "where": "there", "most": None, "keep": "all"})
    assert (found["lr"], str(found["where"]), found["keep"]) == (1.0, "there", "all")
    assert (found["kind"], found["layers"], found["loud"]) == ("a", [1, 2], False), "the defaults"


class Colour(Enum):
    RED = 1


KINDS = [
    (str | None, "null", None),
    (str | None, "3", "3"),
    (str, "null", "null"),
    (int | str, "3", 3),
    (str | int, 3, 3),
    (int, "0x10", 16),
    (float, "1e-3", 0.001),
    (float | None, None, None),
    (bool, "yes", True),
    (list[list[int]], "[[1, 2], [3]]", [[1, 2], [3]]),
    (tuple[int, str], "[1, b]", (1, "b")),
    (tuple[int, ...], [1, 2], (1, 2)),
    (Colour, "RED", Colour.RED),
]


@pytest.mark.parametrize(("kind", "given", "made"), KINDS, ids=str)
def test_a_value_becomes_its_type_and_goes_through_a_file(kind: Any, given: Any, made: Any) -> None:
    found = as_type(kind, given)
    assert (found, type(found)) == (made, type(made))
    assert as_type(kind, yaml.safe_load(yaml.safe_dump(plain(found)))) == made


@pytest.mark.parametrize(
    ("kind", "given"),
    [
        (int, "1.5"),
        (int, True),
        (bool, "1"),
        (str, 3),
        (list[int], "[a]"),
        (list[int], "3"),
        (tuple[int, str], "[1]"),
        (Colour, "GREEN"),
        (Literal["a", 1], "b"),
    ],
)
def test_a_value_of_another_type_is_a_misfit(kind: Any, given: Any) -> None:
    with pytest.raises(MisfitError):
        as_type(kind, given)


@pytest.mark.parametrize("kind", [hr.Trainer, "nowhere", Any, dict[str, int]])
def test_what_no_file_can_hold_can_be_no_flag(kind: Any) -> None:
    with pytest.raises(hr.ConfigError, match=r"cannot be (an option|options) of the command line"):
        as_type(kind, "x")


def test_values_that_do_not_fit_are_refused(in_tmp_path: Path) -> None:
    written("typed_recipe.py", TYPED)
    assert "has an unknown argument 'lrr'. Did you mean 'lr'?" in refused("typed_recipe.py", {"lrr": 1})
    assert '"kind"' in refused("typed_recipe.py", {"lr": 1, "kind": "c"})
    assert "required: lr" in refused("typed_recipe.py", {"kind": "a"})
    assert "has to be told lr" in refused("typed_recipe.py")
