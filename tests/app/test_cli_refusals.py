"""What the command line refuses, in one sentence that names the flag, the file or the variable."""

import json
import pickle
from pathlib import Path
from typing import Any

import pytest
from kit.cli_parts import printed, refused

import headrace as hr
from headrace.app.recipe import load_recipe, merged

pytest_plugins = ["kit.cli_place"]
pytestmark = pytest.mark.usefixtures("place")

SLIPS = [
    ("--lrr 3", "Unknown option: --lrr. Did you mean --lr?"),
    ("--batch-sizes 3", "Unknown option: --batch-sizes."),
    ("--lr high", "Invalid value for --lr: expected float, got 'high'."),
    ("--lr", "--lr requires an argument."),
    ("--width 1.5", "Invalid value for --width: expected int, got '1.5'."),
    ("--epochs 2.0", "Invalid value for --epochs: expected int, got '2.0'."),
    ("--steps -1", 'Invalid value "-1" for --steps. Must be >= 1.'),
    ("--minutes 0", "--minutes. Must be > 0."),
    ("--workers 0", "--workers. Must be >= 1."),
    ("--engine loca", "--engine: expected local|processes|ray, got 'loca'."),
    ("--strategy dilco", "unknown strategy 'dilco'. Did you mean 'diloco'?"),
    ("--kind adm", "--kind: expected sgd|adam, got 'adm'."),
    ("--no-width", "Unknown option: --no-width."),
    ("--tested false", "Unused Tokens: ['false']."),
    ("--tested=perhaps", "perhaps"),
    ("--config --lr 3", "--config requires an argument."),
    ("--config .", ". cannot be read: Is a directory."),
    ("--config nowhere.yaml", "nowhere.yaml cannot be read: No such file or directory"),
    ("--config list.yaml", "list.yaml does not hold keys with values"),
    ("--config broken.yaml", "broken.yaml is no YAML"),
    ("--config typo.yaml", "typo.yaml: unknown key 'widht'. Did you mean 'width'?"),
    ("--config wrong.yaml", "wrong.yaml: lr: expected float, got 'high'."),
    ("--config kind.yaml", "kind.yaml: strategy: unknown strategy 'dilco'. Did you mean 'diloco'?"),
    ("--config none.yaml", "none.yaml: workers: Must be >= 1."),
]
WRONG = [
    *((f"fit sines.py:small {words}", 2, told) for words, told in SLIPS),
    ("fit", 2, "RECIPE"),
    ("fit sine.py", 1, "sine.py is not a Python file with a recipe: it does not exist."),
    ("fit sines.py", 1, "2 functions that return a Recipe: small, passes"),
    ("fit sines.py:smal", 1, "Did you mean 'small'?"),
    ("fit sines.py:small --keep 2", 1, "--keep is about a run, and there is none. Say --run DIR."),
    ("fit sines.py:small --device nonsense", 1, "device='nonsense' is not a device"),
    ("fit sines.py:small --run sines.py", 1, "sines.py is a file; name the directory of a run."),
    ("fit sines.py:small --keep 0 --run r", 1, "--keep is"),
    ("fit sines.py:small --override --resume never --run r", 1, "Leave one out."),
    ("fit sines.py:passes --epochs 0", 1, "--epochs is greater than 0, got 0"),
    ("fit sines.py:small --resume must --run nowhere", 1, "is no run"),
    ("fit --config list.yaml", 2, "RECIPE comes first, as in headrace fit RECIPE --config list.yaml"),
    ("fit --lr 3", 2, "RECIPE comes first, as in headrace fit RECIPE --lr 3. (headrace fit --help"),
    ("resume --epochs 3", 2, "RUN comes first, as in headrace resume RUN --epochs 3. (headrace resume --help"),
    ("resume", 2, "RUN"),
    ("resume sines.py", 1, "sines.py is a file; name the directory of a run."),
    ("resume nowhere --recipe", 1, "there is no run nowhere"),
    ("resume .", 1, "is not a run: it has no run.json"),
    ("checkpont list r", 2, 'Unknown command "checkpont". Did you mean "checkpoint"?'),
    ("checkpoint exprt r", 2, 'Unknown command "exprt". Did you mean "export"?'),
    ("checkpoint list r --js", 2, "--js"),
    ("checkpoint list", 2, "RUN"),
]


@pytest.mark.parametrize(("words", "status", "told"), WRONG)
def test_what_cannot_be_is_said_in_a_sentence(words: str, status: int, told: str, place: Path, capsys: Any) -> None:
    files = {"list": "[1, 2]", "broken": "a: [", "typo": "widht: 3", "wrong": "lr: high"}
    files |= {"kind": "strategy: dilco", "none": "workers: 0"}
    for name, text in files.items():
        (place / f"{name}.yaml").write_text(text)
    said = refused(capsys, *words.split(), status=status)
    assert told in said
    assert ("--help" in said) == (status == 2)
    if "--json" not in words:
        assert told in json.loads(refused(capsys, *words.split(), "--json", status=status))["error"]


def test_slips_in_the_environment_are_told_and_what_is_not_near_is_left(
    capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADRACE_SOMETHING_ELSE", "3")
    monkeypatch.setenv("HEADRACE_TIMEOUT_S", "3")
    printed(capsys)
    for name, value, told in (
        ("HEADRACE_LRR", "3", "HEADRACE_LRR is in the environment. Did you mean HEADRACE_LR?"),
        ("HEADRACE_LR", "high", "HEADRACE_LR: expected float, got 'high'."),
    ):
        with monkeypatch.context() as patch:
            patch.setenv(name, value)
            assert told in refused(capsys, "fit", "sines.py:small", status=2)


@pytest.mark.parametrize(
    ("option", "value", "argument", "told"),
    [
        ("checkpoint_every", "often", "every", ' is a number and a unit, as in "1 epoch" or "500 steps"'),
        ("checkpoint_every", "3 weeks", "every", "='3 weeks': unknown unit 'weeks'"),
        ("validate_every", "3 min", "validate_every", "='3 min': minutes differ from run to run"),
    ],
)
def test_an_error_names_its_argument_and_a_command_its_flag(
    option: str, value: str, argument: str, told: str, place: Path, capsys: Any
) -> None:
    with pytest.raises(hr.ConfigError) as caught:
        load_recipe("sines.py:small").run(**merged({}, {option: value, "run": "r", "progress": False}))
    again = pickle.loads(pickle.dumps(caught.value))  # as a worker sends it
    assert (caught.value.argument, again.argument, str(again)) == (argument, argument, str(caught.value))
    assert str(caught.value).startswith(f"{argument}={told.removeprefix('=')}")
    said = refused(capsys, "fit", "sines.py:small", f"--{option}", value, "--run", "r")
    assert said.startswith(f"headrace: --{option.replace('_', '-')}{told}")
