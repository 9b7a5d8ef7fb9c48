"""Recipes: which function of a file it is, what it takes, and values for that as files have them."""

import sys
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

import pytest
import yaml
from kit import small

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
ONE = "import headrace as hr\ndef one() -> hr.Recipe: ...\n"
FILES = {
    "single.py": f"{ONE}def no(): ...\n",
    "text.py": f"from __future__ import annotations\n{ONE}",
    "both.py": f"{ONE}from headrace import Recipe\ndef other() -> Recipe: ...\n",
    "second.py": "import headrace as hr\nfrom single import one\ndef two() -> hr.Recipe: ...\n",
    "third.py": "from single import one\n",
    "none.py": "def no(): ...\n",
    "digits.txt": "",
    "missing.py": "x = 1\nimport nowhere_at_all\n",
    "broken.py": "def f(:\n",
    "fails.py": "def g():\n    return 1 / 0\ng()\n",
    **{f"{name}.py": ONE for name in ("random", "yaml", "torch", "headrace")},
    "typed_recipe.py": TYPED,
}


@pytest.fixture(autouse=True)
def files(in_tmp_path: Path) -> None:
    for name, text in FILES.items():
        Path(name).write_text(text)


# --- the data ---------------------------------------------------------------------------------------------


def test_a_recipe_trains_on_what_its_function_returns() -> None:
    rows = small.data(8)
    made = hr.Recipe(small.trainer(), data=lambda: (rows, rows), fit={"epochs": 1, "progress": False}).open_data()
    assert (made.train, made.val, made.test) == (rows, rows, None)
    assert "val/loss" in made.run().last
    made = hr.Recipe(small.trainer(), data=lambda: hr.split(rows, 0.5, 0.25, 0.25)).open_data()
    assert [len(part) for part in (made.train, made.val, made.test)] == [4, 2, 2]


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"data": [1]}, "is a function, got a list"),
        ({"data": list, "train": [1]}, "data= or train="),
        ({"data": list, "test": [1]}, "data= or test="),
        ({"data": lambda: (1, 2, 3, 4)}, "returned 4 parts"),
        ({"data": lambda: ()}, "returned 0 parts"),
    ],
)
def test_a_recipe_has_its_data_from_one_place(given: dict[str, Any], why: str) -> None:
    with pytest.raises(hr.ConfigError, match=why):
        hr.Recipe(small.trainer(), **given).open_data()


# --- which function ---------------------------------------------------------------------------------------


def test_the_only_function_of_a_file_that_returns_a_recipe_is_found_and_others_by_name() -> None:
    found = {name: find_recipe(name).__name__ for name in ("single.py", "text.py", "both.py:other", "second.py")}
    assert found == {"single.py": "one", "text.py": "one", "both.py:other": "other", "second.py": "two"}
    assert find_recipe("second.py:one").__name__ == "one", "it imports that"
    assert find_recipe("third.py").__name__ == "one", "and this has nothing else"


INSTALLED = "has the same name as an installed module ({}), which it would replace. Give the recipe another name"
WRONG = [
    ("both.py", ["2 functions that return a Recipe: one, other. Say both.py:name."]),
    ("both.py:othr", ["unknown recipe 'othr'. Did you mean 'other'?"]),
    ("none.py", ["has no function that returns a Recipe"]),
    ("singl.py", ["singl.py is not a Python file with a recipe: it does not exist."]),
    ("nowhere/digits.py", ["is not a Python file with a recipe"]),
    ("digits.txt", ["is not a Python file with a recipe"]),
    ("random.py", ["is called as a module of Python's own. Give the recipe another name"]),
    *((f"{name}.py", [INSTALLED.format(import_module(name).__file__)]) for name in ("yaml", "torch", "headrace")),
    ("typed_recipe.py", ["one lacks what is required: lr."]),
]


@pytest.mark.parametrize(("name", "told"), WRONG)
def test_a_file_that_is_no_recipe_is_refused_and_no_module_is_replaced(name: str, told: list[str]) -> None:
    before = dict(sys.modules)
    with pytest.raises(hr.ConfigError) as caught:
        load_recipe(name)
    assert all(each in str(caught.value) for each in told)
    assert all(sys.modules[each] is module for each, module in before.items())


FAILING = {
    "missing.py": (ModuleNotFoundError, "nowhere_at_all"),
    "broken.py": (SyntaxError, "broken.py"),
    "fails.py": (ZeroDivisionError, "division by zero"),
}


@pytest.mark.parametrize("name", FAILING)
def test_a_file_that_fails_is_no_module_and_its_error_is_shown_as_it_is(name: str) -> None:
    kind, told = FAILING[name]
    with pytest.raises(kind, match=told):
        load_recipe(name)
    assert Path(name).stem not in sys.modules


def test_a_recipe_finds_what_lies_beside_it_and_recipes_of_one_name_take_turns() -> None:
    text = "import headrace as hr\nfrom beside_it import WIDTH\ndef one(width: int = WIDTH + {}) -> hr.Recipe: ...\n"
    for k, folder in enumerate(["here", "there"]):
        Path(folder).mkdir()
        Path(folder, "beside_it.py").write_text("WIDTH = 5\n")
        Path(folder, "same.py").write_text(text.format(k))
    found = [find_recipe(f"{folder}/same.py") for folder in ("here", "there", "here")]
    assert [parameters_of(one)["width"].default for one in found] == [5, 6, 5]


# --- what it takes ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("def one(\n    lr: float,\n    momentum=0.9,\n)", "line 3: the parameter 'momentum' of one has no type"),
        ("def one(lr: float, momentum=0.9)", "is an option of the command line. Write momentum: float = 0.9."),
        ("def one(lr: float, width: int = 3)", 'Write there, under "Args:", "width: what it is."'),
        ("def one(lr: float, width: int = 3)", "line 3: the parameter 'width' of one is not described in the docs"),
        ("def one(**lr: int)", "cannot be options of the command line"),
        ("def one(lr: int, /)", "cannot be options of the command line"),
    ],
)
def test_a_parameter_that_can_be_no_option_is_told_with_its_line(text: str, told: str) -> None:
    doc = '    """Trains.\n\n    Args:\n        lr: learning rate.\n    """\n'
    Path("lacking.py").write_text(f"\nimport headrace as hr\n{text} -> hr.Recipe:\n{doc}")
    with pytest.raises(hr.ConfigError) as caught:
        check_parameters(find_recipe("lacking.py"))
    assert told in str(caught.value)
    assert "lacking.py" in str(caught.value)


def test_plain_values_become_what_the_function_takes_and_others_are_refused() -> None:
    function = find_recipe("typed_recipe.py")
    found = typed(function, {"lr": 1, "where": "there", "most": None, "keep": "all"})
    assert (found["lr"], str(found["where"]), found["keep"]) == (1.0, "there", "all")
    for given, told in (
        ({"lrr": 1}, "has an unknown argument 'lrr'. Did you mean 'lr'?"),
        ({"lr": 1, "kind": "c"}, '"kind"'),
        ({"kind": "a"}, "required: lr"),
    ):
        with pytest.raises(hr.ConfigError, match=told.replace("?", r"\?")):
            typed(function, given)


KINDS: list[tuple[Any, Any, Any]] = [
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
]
MISFITS = [
    (int, "1.5"),
    (int, True),
    (bool, "1"),
    (str, 3),
    (list[int], "[a]"),
    (list[int], "3"),
    (tuple[int, str], "[1]"),
    (Literal["a", 1], "b"),
]


def test_a_value_becomes_its_type_and_goes_through_a_file_or_is_a_misfit() -> None:
    for kind, given, made in KINDS:
        found = as_type(kind, given)
        assert (found, type(found)) == (made, type(made)), kind
        assert as_type(kind, yaml.safe_load(yaml.safe_dump(plain(found)))) == made
    for kind, given in MISFITS:
        with pytest.raises(MisfitError):
            as_type(kind, given)
    for kind in (hr.Trainer, "nowhere", Any, dict[str, int]):
        with pytest.raises(hr.ConfigError, match=r"cannot be (an option|options) of the command line"):
            as_type(kind, "x")
