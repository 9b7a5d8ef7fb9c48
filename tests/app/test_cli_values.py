"""`headrace fit`: where the values of its options come from, and which of its words is the recipe."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from kit.cli_parts import FILED, headrace, plain, printed, refused

from headrace.app.cli.of_recipe import RESERVED

pytest_plugins = ["kit.cli_place"]
pytestmark = pytest.mark.usefixtures("place")


# --- where values come from -----------------------------------------------------------------------------


def test_flags_go_before_files_before_the_environment_before_defaults(
    place: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert printed(capsys) == {
        "recipe": str(place / "sines.py:small"),
        "arguments": {"lr": 0.1, "width": 8, "kind": "adam", "tested": True},
        "fit": {},
    }
    monkeypatch.setenv("HEADRACE_LR", "0.2")
    monkeypatch.setenv("HEADRACE_WIDTH", "2")
    monkeypatch.setenv("HEADRACE_EPOCHS", "7")
    found = printed(capsys)
    assert (found["arguments"]["lr"], found["arguments"]["width"], found["fit"]) == (0.2, 2, {"epochs": 7})
    (place / "a.yaml").write_text("lr: 0.3\nwidth: 3\nkind: sgd\n")
    (place / "b.yaml").write_text("arguments: {lr: 0.4}\nfit: {epochs: 8}\n")
    found = printed(capsys, "--config", "a.yaml", "--config=b.yaml")
    assert found["arguments"] == {"lr": 0.4, "width": 3, "kind": "sgd", "tested": True}
    assert found["fit"] == {"epochs": 8}
    found = printed(capsys, "--lr=0.5", "--epochs", "9", "--config", "a.yaml", "--config", "b.yaml")
    assert (found["arguments"]["lr"], found["arguments"]["width"], found["fit"]) == (0.5, 3, {"epochs": 9})


def test_what_is_printed_can_be_fed_back_and_names_the_recipe(place: Path, capsys: Any) -> None:
    asked = printed(capsys, "--lr", "1e-3", "--checkpoint-every", "5 steps", "--checkpoint_every=10 steps")
    assert asked["fit"] == {"checkpoint_every": "10 steps"}, "both spellings, and the later counts"
    (place / "again.yaml").write_text(yaml.safe_dump(asked))
    assert headrace("fit", "sines.py:small", "--config", "again.yaml", "--print_config") == 0
    assert yaml.safe_load(capsys.readouterr().out) == asked
    assert headrace("fit", "sines.py:small", "--config", "again.yaml", "--tested=false", "--print_config") == 0
    assert yaml.safe_load(capsys.readouterr().out)["arguments"]["tested"] is False


def test_a_switch_stands_alone_or_says_false(place: Path, capsys: Any) -> None:
    for off in ("--tested=false", "--no-tested", "--no_tested"):
        assert printed(capsys, off, "--lr", "1")["arguments"]["tested"] is False
    assert printed(capsys, "--tested", "--lr", "1")["arguments"] == printed(capsys, "--lr=1")["arguments"]
    doc = '"""Trains.\n\n    Args:\n        gentle: a switch.\n    """'
    (place / "own.py").write_text(f"import headrace as hr\ndef own(gentle: bool = False) -> hr.Recipe:\n    {doc}\n")
    (place / "on.yaml").write_text("gentle: true\n")
    for words, gentle in (([], True), (["--no-gentle"], False), (["--gentle"], True)):
        assert headrace("fit", "own.py", "--config", "on.yaml", *words, "--print-config") == 0
        assert yaml.safe_load(capsys.readouterr().out)["arguments"] == {"gentle": gentle}


def test_what_an_option_is_given_is_not_the_recipe(place: Path, capsys: Any) -> None:
    (place / "filed.py").write_text(FILED)
    (place / "other.yaml").write_text("recipe: sines.py\n")
    assert headrace("fit", "filed.py", "--config", "other.yaml", "--file", "make.py", "--print-config") == 0
    found = yaml.safe_load(capsys.readouterr().out)
    assert (found["recipe"], found["arguments"]) == (str(place / "filed.py"), {"file": "make.py", "tested": True})
    for value in ("2020-01-01", "yes"):  # which YAML takes for a date and for true
        (place / "other.yaml").write_text(f"file: {value}\n")
        assert "other.yaml: file: expected" in refused(capsys, "fit", "filed.py", "--config", "other.yaml", status=2)


# --- parameters of a recipe -----------------------------------------------------------------------------


def test_a_list_is_written_as_is_said(place: Path, capsys: Any) -> None:
    doc = '"""Trains.\n\n    Args:\n        layers: widths.\n    """'
    made = "    print(layers)\n    raise SystemExit(0)\n"
    text = f"import headrace as hr\ndef deep(layers: list[int] = [1]) -> hr.Recipe:\n    {doc}\n{made}"
    (place / "listed.py").write_text(text)
    assert headrace("fit", "listed.py", "--layers", "[3, 4]") == 0
    assert capsys.readouterr().out == "[3, 4]\n"
    assert "as in --layers '[3, 4]'" in refused(capsys, "fit", "listed.py", "--layers", "x", status=2)
    assert "Unused Tokens: ['4']." in refused(capsys, "fit", "listed.py", "--layers", "[3]", "4", status=2)
    assert headrace("fit", "listed.py", "--help") == 0
    assert "--layers list[int] widths [default: [1]]" in plain(capsys.readouterr().out)


PARAMETERS = [
    *(
        (f"{name}: int = 1", f"has a parameter '{name}', which the command line has itself. Rename")
        for name in RESERVED
    ),
    *((f"{name}: int = 1", "") for name in ("epochs", "steps", "batch_size")),
    ("x: torch.nn.Module = torch.nn.Linear(2, 2)", "Make it in the function."),
    ("x: object = object()", "Make it in the function."),
    ("x: hr.Length = '1 epoch'", "x is a Length, which cannot be an option of the command line"),
]


@pytest.mark.parametrize(("parameter", "told"), PARAMETERS)
def test_a_parameter_has_a_name_of_its_own_and_a_default_that_a_file_can_hold(
    parameter: str, told: str, place: Path, capsys: Any
) -> None:
    doc = f'"""Trains.\n\n    Args:\n        {parameter.partition(":")[0]}: what it is.\n    """'
    (place / "own.py").write_text(
        f"import torch\nimport headrace as hr\ndef own({parameter}) -> hr.Recipe:\n    {doc}\n"
    )
    if told:
        assert told in refused(capsys, "fit", "own.py")
    else:
        assert headrace("fit", "own.py", "--print_config") == 0


@pytest.mark.parametrize("name", ["monitor", "trials"])
def test_a_parameter_that_is_called_as_an_option_of_one_command_is_refused_there(
    name: str, place: Path, capsys: Any
) -> None:
    doc = f'"""Trains.\n\n    Args:\n        {name}: what it is.\n    """'
    (place / "own.py").write_text(f"import headrace as hr\ndef own({name}: int = 1) -> hr.Recipe:\n    {doc}\n")
    assert headrace("fit", "own.py", f"--{name}", "2", "--print-config") == 0
    capsys.readouterr()
    said = refused(capsys, "sweep", "own.py", f"--{name}", "1,2")
    assert f"has a parameter {name!r}, which the command line has itself. Rename it." in said


def test_a_parameter_without_a_default_may_be_given_anywhere_and_is_asked_for(
    place: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    doc = '"""Trains.\n\n    Args:\n        rate: what it is.\n    """'
    (place / "own.py").write_text(f"import headrace as hr\ndef own(rate: float) -> hr.Recipe:\n    {doc}\n")
    assert "--rate requires an argument." in refused(capsys, "fit", "own.py", status=2)
    monkeypatch.setenv("HEADRACE_RATE", "0.5")
    assert headrace("fit", "own.py", "--print-config") == 0
    assert yaml.safe_load(capsys.readouterr().out)["arguments"] == {"rate": 0.5}
