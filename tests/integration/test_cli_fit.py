"""`headrace fit` and `resume`: where values come from, what is refused, and how a training ends and goes on."""

import json
import os
import pickle
import signal
import subprocess
import sys
import warnings
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from kit.cli_parts import LIMIT_S, RECIPE, environment, headrace, process
from kit.forked import start, take_over, tell
from kit.sampled import sampled

import headrace as hr
from headrace.app.recipe import load_recipe
from headrace.step.weights import saved_weights


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("HEADRACE_")]:
        monkeypatch.delenv(name)
    (tmp_path / "sines.py").write_text(RECIPE)
    path = sys.path.copy()
    yield tmp_path
    sys.path[:] = path
    sys.modules.pop("sines", None)


def printed(capsys: Any, *words: object) -> dict[str, Any]:
    """What --print_config shows."""
    assert headrace("fit", "sines.py:small", *words, "--print_config") == 0
    said = capsys.readouterr()
    assert said.err == ""
    found: dict[str, Any] = yaml.safe_load(said.out)
    return found


def refused(capsys: Any, *words: object, status: int = 2) -> str:
    assert headrace(*words) == status
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.count("\n") == 1, "one sentence"
    assert "Traceback" not in said.err
    return str(said.err)


# --- where values come from -------------------------------------------------------------------------------


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
    monkeypatch.setenv("HEADRACE_CONFIG", "b.yaml")
    assert printed(capsys, "--config", "a.yaml")["arguments"]["lr"] == 0.3


def test_what_is_printed_can_be_fed_back_and_names_the_recipe(place: Path, capsys: Any) -> None:
    asked = printed(capsys, "--lr", "1e-3", "--checkpoint-every", "5 steps", "--checkpoint_every=10 steps")
    assert asked["fit"] == {"checkpoint_every": "10 steps"}, "both spellings, and the later counts"
    (place / "again.yaml").write_text(yaml.safe_dump(asked))
    assert headrace("fit", "--config", "again.yaml", "--print_config") == 0
    assert yaml.safe_load(capsys.readouterr().out) == asked
    assert headrace("fit", "--tested=false", "sines.py:small", "--print_config", "--config", "again.yaml") == 0
    assert yaml.safe_load(capsys.readouterr().out)["arguments"]["tested"] is False


def test_a_switch_stands_alone_or_says_false(capsys: Any) -> None:
    assert printed(capsys, "--tested", "false")["arguments"]["tested"] is False
    assert printed(capsys, "--no-tested")["arguments"]["tested"] is False
    assert printed(capsys, "--no_tested", "--lr", "1")["arguments"]["tested"] is False
    assert "unknown option '--no_width'" in refused(capsys, "fit", "sines.py:small", "--no-width")
    assert printed(capsys, "--tested", "--lr", "1")["arguments"] == printed(capsys, "--lr=1")["arguments"]


def test_help_shows_what_the_recipe_takes_and_what_fit_takes(capsys: Any) -> None:
    assert headrace("fit", "sines.py:small", "--help") == 0
    said = capsys.readouterr().out
    for word in ("--lr float", "learning rate (0.1)", "--kind sgd|adam", "--tested ", "--run str", "HEADRACE_LR=0.1"):
        assert word in said
    assert "(on, unless --no_tested)" in " ".join(said.split())
    assert headrace("fit", "--help") == 0
    assert "--lr float" not in capsys.readouterr().out
    assert headrace("resume", "--help") == 0
    said = capsys.readouterr().out
    assert "--recipe RECIPE" in said
    assert "--run " not in said
    assert "--resume " not in said


def test_the_help_of_everything_comes_at_once() -> None:
    """And the program is one: `python -m headrace`, in a new interpreter."""
    code = (
        "import runpy, sys\n"
        "late = {'torch', 'matplotlib', 'ray', 'headrace.app.rehearse', 'headrace.engine', 'torchmetrics'}\n"
        "for words in ([], ['--help'], ['predict', '--help'], ['runs', '--help'], ['--version']):\n"
        "    sys.argv[1:] = words\n"
        "    try: runpy.run_module('headrace', run_name='__main__')\n"
        "    except SystemExit as ended: assert not ended.code\n"
        "    assert not late & sys.modules.keys(), words\n"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, env=environment(), check=False)
    assert done.returncode == 0, done.stderr
    assert "predict" in done.stdout
    assert "rehearse" in done.stdout


# --- what is refused --------------------------------------------------------------------------------------


SLIPS = [
    ("--lrr 3", "unknown option '--lrr'. Did you mean '--lr'?"),
    ("--wid 3", "unknown option '--wid'. Did you mean '--width'?"),
    ("--batch-sizes 3", "unknown option '--batch_sizes'"),
    ("--lr high", "--lr: expected float, got 'high'."),
    ("--lr", "--lr: expected float, got nothing."),
    ("--xyz", "config, --engine"),
    ("--xyz", "--help, --json"),
    ("--xyz", "--print_config"),
    ("--epochs 0", "--epochs is greater than 0, got 0."),
    ("--steps -1", "--steps is greater than 0, got -1."),
    ("--minutes 0", "--minutes is greater than 0"),
    ("--workers 0", "--workers is greater than 0"),
    ("--keep 0 --run r", "--keep is greater than 0"),
    ("--engine loca", "--engine: expected local|processes|ray, got 'loca'."),
    ("--strategy dilco", "unknown strategy 'dilco'. Did you mean 'diloco'?"),
    ("--run sines.py", "--run sines.py: it is a file; name a directory."),
    ("--width 1.5", "--width: expected int, got '1.5'."),
    ("--kind adm", "--kind: expected sgd|adam, got 'adm'."),
    ("--resume perhaps", "--resume: expected auto|must|never, got 'perhaps'."),
    ("0.1", "'0.1' belongs to no option."),
    ("--json --progress bar", "Leave one out."),
    ("--override --resume never --run r", "Leave one out."),
    ("--config", "--config: expected a file, got nothing."),
    ("--config --lr 3", "--config: expected a file, got nothing."),
    ("--config=", "--config: expected a file, got nothing."),
    ("--config .", ". cannot be read: Is a directory."),
    ("--config nowhere.yaml", "nowhere.yaml cannot be read: No such file or directory"),
    ("--config list.yaml", "list.yaml does not hold keys with values"),
    ("--config broken.yaml", "broken.yaml is no YAML"),
    ("--config typo.yaml", "typo.yaml: unknown key 'widht'. Did you mean 'width'?"),
    ("--config wrong.yaml", "wrong.yaml: lr: expected float, got 'high'."),
]
OFTEN = (SLIPS[0], SLIPS[3], SLIPS[8], SLIPS[16], SLIPS[21], SLIPS[-2])


@pytest.mark.parametrize(("words", "told"), sampled(SLIPS, keep=OFTEN, of=5))
def test_what_makes_no_sense_is_said_in_a_sentence_that_names_who_said_it(
    place: Path, words: str, told: str, capsys: Any
) -> None:
    files = {"list": "[1, 2]", "broken": "a: [", "typo": "widht: 3", "wrong": "lr: high"}
    for name, text in files.items():
        (place / f"{name}.yaml").write_text(text)
    assert told in refused(capsys, "fit", "sines.py:small", *words.split())


FILED = """
import headrace as hr

def filed(file: str = "none.py", tested: bool = True) -> hr.Recipe:
    \"\"\"Trains on what a script makes.

    Args:
        file: the script.
        tested: a switch.
    \"\"\"
    from sines import small
    made = small()
    made.fit["run"] = "runs/own"
    return made
"""


@pytest.mark.parametrize(
    "words",
    [
        "filed.py --file make.py",
        "--file make.py filed.py",
        "--file=make.py filed.py",
        "--file make.py --epochs 3 filed.py",
        "--file make.py --tested true filed.py",
        "--run r.py --file=make.py --tested filed.py",
        "--file make.py --config filed.yaml",
        "--config filed.yaml --file make.py --tested true",
    ],
)
def test_what_an_option_is_given_is_not_the_recipe(words: str, place: Path, capsys: Any) -> None:
    (place / "filed.py").write_text(FILED)
    (place / "filed.yaml").write_text("recipe: filed.py\n")
    assert headrace("fit", *words.split(), "--print_config") == 0
    found = yaml.safe_load(capsys.readouterr().out)
    assert (found["recipe"], found["arguments"]) == (
        str(place / "filed.py"),
        {"file": "make.py", "tested": True},
    )


def test_a_recipe_that_cannot_be_told_from_a_value_has_to_come_first(place: Path, capsys: Any) -> None:
    (place / "filed.py").write_text(FILED)
    assert headrace("fit", "--tested", "filed.py", "--print_config") == 0
    assert yaml.safe_load(capsys.readouterr().out)["recipe"] == str(place / "filed.py")
    said = refused(capsys, "fit", "--file", "make.py", "--tested", "filed.py")
    assert "which is the recipe is not clear of --file make.py or --tested filed.py. Put RECIPE first." in said


@pytest.mark.takes_turns
def test_a_run_goes_on_with_its_recipe_whatever_its_options_are_given(place: Path, capsys: Any) -> None:
    (place / "filed.py").write_text(FILED)
    assert headrace("fit", "filed.py", "--file", "make.py", "--run", "r", "--json") == 0
    assert headrace("resume", "r", "--file", "make.py", "--epochs", "3", "--json") == 0
    assert [json.loads(line)["epoch"] for line in capsys.readouterr().out.splitlines()] == [2, 3]


def test_a_parameter_of_several_parts_is_said_part_by_part(place: Path, capsys: Any) -> None:
    text = """
from dataclasses import dataclass
import headrace as hr

@dataclass
class Net:
    width: int = 3
    depth: int = 2

def deep(net: Net = Net()) -> hr.Recipe:
    \"\"\"Trains.

    Args:
        net: the network.
    \"\"\"
    print("net", net)
    raise SystemExit(0)
"""
    (place / "deep.py").write_text(text)
    (place / "net.yaml").write_text("net: {width: 5}\nnet.depth: 6\n")
    assert headrace("fit", "deep.py", "--config", "net.yaml", "--net.depth", "7") == 0
    assert capsys.readouterr().out == "net Net(width=5, depth=7)\n"
    assert "'net.widht'. Did you mean 'net.width'?" in refused(capsys, "fit", "deep.py", "--net.widht", "3")
    assert "--net.width: expected int, got 'x'." in refused(capsys, "fit", "deep.py", "--net.width", "x")
    assert "'widht'" in refused(capsys, "fit", "deep.py", "--net", "{widht: 3}")


def test_a_list_is_written_as_is_said(place: Path, capsys: Any) -> None:
    doc = '"""Trains.\n\n    Args:\n        layers: widths.\n    """'
    made = "    print(layers)\n    raise SystemExit(0)\n"
    text = f"import headrace as hr\ndef deep(layers: list[int] = [1]) -> hr.Recipe:\n    {doc}\n{made}"
    (place / "listed.py").write_text(text)
    assert headrace("fit", "listed.py", "--layers", "[3, 4]") == 0
    assert capsys.readouterr().out == "[3, 4]\n"
    assert "as in --layers '[3, 4]'" in refused(capsys, "fit", "listed.py", "--layers", "x")
    assert "A list is written as in --layers '[3, 4]'." in refused(capsys, "fit", "listed.py", "--layers", "3", "4")
    assert headrace("fit", "listed.py", "--help") == 0
    assert "'[3, 4]'; [1]" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize("name", ["run", "resume", "config", "json", "epochs", "steps", "batch_size"])
def test_a_parameter_cannot_have_a_name_of_the_command_lines_own(name: str, place: Path, capsys: Any) -> None:
    doc = f'"""Trains.\n\n    Args:\n        {name}: what it is.\n    """'
    text = f"import headrace as hr\ndef own({name}: int = 1) -> hr.Recipe:\n    {doc}\n"
    (place / "own.py").write_text(text)
    if name in ("epochs", "steps", "batch_size"):
        assert headrace("fit", "own.py", "--print_config") == 0
    else:
        assert f"has a parameter '{name}', which the command line has itself. Rename" in refused(
            capsys, "fit", "own.py"
        )


@pytest.mark.parametrize(
    ("parameter", "told"),
    [
        ("x: torch.nn.Module = torch.nn.Linear(2, 2)", "Make it in the function."),
        ("x: object = object()", "Make it in the function."),
        ("x: hr.Length = '1 epoch'", "takes what can be no flag"),
    ],
)
def test_a_default_that_no_file_can_hold_is_refused(place: Path, parameter: str, told: str, capsys: Any) -> None:
    doc = '"""Trains.\n\n    Args:\n        x: what cannot be.\n    """'
    text = f"import torch\nimport headrace as hr\ndef odd({parameter}) -> hr.Recipe:\n    {doc}\n"
    (place / "odd_recipe.py").write_text(text)
    assert told in refused(capsys, "fit", "odd_recipe.py")


def test_slips_in_the_environment_are_told_and_what_is_not_near_is_left(
    capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADRACE_LRR", "3")
    assert "HEADRACE_LRR is in the environment. Did you mean HEADRACE_LR?" in refused(capsys, "fit", "sines.py:small")
    monkeypatch.delenv("HEADRACE_LRR")
    monkeypatch.setenv("HEADRACE_SOMETHING_ELSE", "3")
    monkeypatch.setenv("HEADRACE_TIMEOUT_S", "3")
    printed(capsys)
    monkeypatch.setenv("HEADRACE_LR", "high")
    assert "HEADRACE_LR: expected float, got 'high'." in refused(capsys, "fit", "sines.py:small")


WRONG = [
    ("fit", 2, "RECIPE is missing"),
    ("fit sine.py", 1, "Did you mean 'sines.py'?"),
    ("fit sines.py", 1, "2 functions that return a Recipe: small, passes"),
    ("fit sines.py:smal", 1, "Did you mean 'small'?"),
    ("fit sines.py:small --keep 2", 1, "--keep is about a run, and there is none. Say --run DIR."),
    ("fit sines.py:small --report --steps 1", 1, "--report is about a run, and there is none. Say --run DIR."),
    ("fit sines.py:passes --epochs 0", 1, "--epochs is greater than 0, got 0"),
    ("fit sines.py:small --checkpoint-every often --run r", 1, "--checkpoint_every"),
    ("fit sines.py:small --resume must --run nowhere", 1, "is no run"),
    ("resume", 2, "RUN comes first"),
    ("resume sines.py", 1, "sines.py is a file; name the directory of a run."),
    ("resume nowhere there", 2, "'there' is too much: RUN comes first, then options."),
    ("resume nowhere", 1, "there is no run nowhere"),
    ("resume .", 1, "is not a run: it has no run.json"),
    ("resume nowhere --recipe", 2, "--recipe: expected file.py, got nothing."),
    ("resume nowhere --recipe --lr 3", 2, "--recipe: expected file.py, got nothing."),
    ("resume nowhere --run there", 2, "leave --run and --resume out"),
]


@pytest.mark.parametrize(("words", "status", "told"), sampled(WRONG, keep=(WRONG[0], WRONG[1], WRONG[-2]), of=5))
def test_what_cannot_be_is_said_in_a_sentence(words: str, status: int, told: str, capsys: Any) -> None:
    assert told in refused(capsys, *words.split(), status=status)
    assert told in json.loads(refused(capsys, *words.split(), "--json", status=status))["error"]


# --- a training -------------------------------------------------------------------------------------------


def test_a_training_writes_down_its_recipe_and_says_what_comes_next(place: Path, capsys: Any) -> None:
    words = ["--lr", "0.05", "--width=6", "--epochs", "1", "--run", "runs/one", "--progress", "off"]
    assert headrace("fit", "sines.py:small", *words) == 0
    said = capsys.readouterr().out
    assert "test/accuracy" in said
    assert "headrace report runs/one" in said
    assert "headrace resume runs/one" in said
    document = yaml.safe_load((place / "runs/one/recipe.yaml").read_text())
    assert document == {
        "recipe": str(place / "sines.py:small"),
        "arguments": {"lr": 0.05, "width": 6, "kind": "adam", "tested": True},
        "fit": {"epochs": 1},
    }
    assert headrace("fit", "--config", "runs/one/recipe.yaml", "--run", "runs/two", "--json") == 0
    again = json.loads(capsys.readouterr().out)
    assert (again["step"], again["run"]) == (5, "runs/two")
    weights = [saved_weights(place / "runs" / name, "last").tensors["model.safetensors"] for name in ("one", "two")]
    assert all(torch.equal(value, weights[1][name]) for name, value in weights[0].items())
    assert weights[0]["0.weight"].shape == (6, 5)


def test_a_run_is_trained_on_from_where_it_stands(place: Path, capsys: Any) -> None:
    how = ["--lr", "0.05", "--run", "runs/one", "--json"]
    assert headrace("fit", "sines.py:small", *how, "--epochs", "1") == 0
    assert headrace("resume", "runs/one", "--epochs", "3", "--json") == 0
    first, on = (json.loads(line) for line in capsys.readouterr().out.splitlines())
    assert (first["step"], on["step"]) == (5, 15)
    assert yaml.safe_load((place / "runs/one/recipe.yaml").read_text())["fit"] == {"epochs": 3}
    whole = load_recipe("sines.py:small", {"lr": 0.05}).run(epochs=3, progress=False).last
    assert on["val/loss"] == whole["val/loss"]
    assert headrace("resume", "runs/one", "--lr", "0.5", "--json") == 1
    assert "lr" in json.loads(capsys.readouterr().err)["error"]
    assert headrace("fit", "sines.py:small", *how, "--width", "16") == 1
    said = json.loads(capsys.readouterr().err)["error"].splitlines()
    assert said[:2] == ["the recipe is given other values than the run has:", "  width: 8 in the run, 16 now"]
    assert said[2].startswith("Give those, or name another run.")
    assert yaml.safe_load((place / "runs/one/recipe.yaml").read_text())["arguments"]["width"] == 8


@pytest.mark.takes_turns
@pytest.mark.parametrize("recipe", ["small", "passes"])
def test_a_limit_to_go_on_to_takes_the_place_of_those_before(recipe: str, place: Path, capsys: Any) -> None:
    assert headrace("fit", f"sines.py:{recipe}", "--steps", "3", "--run", "r", "--progress", "off") == 0
    assert "headrace resume r --steps N" in capsys.readouterr().out
    assert "'--xyz'. Choose one of: --checkpoint_every" in (said := refused(capsys, "resume", "r", "--xyz"))
    assert "--recipe" in said
    assert "--resume" not in said
    assert "--run," not in said
    assert headrace("resume", "r", "--steps", "4", "--json") == 0
    assert json.loads(capsys.readouterr().out)["step"] == 4
    assert "go on with the new ones: override=True (--override)." in _whole(capsys, "resume", "r", "--epochs", "2")
    assert headrace("resume", "r", "--epochs", "2", "--override", "--json") == 0
    assert json.loads(capsys.readouterr().out)["step"] == 10


def _whole(capsys: Any, *words: object) -> str:
    assert headrace(*words) == 1
    return str(capsys.readouterr().err)


def test_a_parameter_that_is_called_as_an_option_is_the_recipes(place: Path, capsys: Any) -> None:
    assert headrace("fit", "sines.py:passes", "--epochs", "1", "--run", "r", "--json") == 0
    assert json.loads(capsys.readouterr().out)["epoch"] == 1
    assert yaml.safe_load((place / "r/recipe.yaml").read_text())["arguments"] == {"epochs": 1}
    assert headrace("resume", "r", "--epochs", "2", "--json") == 0
    assert json.loads(capsys.readouterr().out)["epoch"] == 2


def test_the_report_is_written_at_the_end_if_it_is_asked_for(place: Path, capsys: Any) -> None:
    assert headrace("fit", "sines.py:small", "--run", "r", "--report", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert Path(found["report"]).samefile(place / "r/report.html")


def test_a_run_of_a_script_is_told_apart_and_goes_on_with_the_recipe_that_is_named(place: Path, capsys: Any) -> None:
    load_recipe("sines.py:small").run(run="r", epochs=1, progress=False)
    assert "Run the script again, or name the recipe: --recipe file.py." in refused(capsys, "resume", "r", status=1)
    assert headrace("resume", "r", "--recipe", "sines.py:small", "--epochs", "2", "--json") == 0
    assert json.loads(capsys.readouterr().out)["epoch"] == 2
    (place / "r/recipe.yaml").write_text("recipe: [")
    assert "is no YAML" in refused(capsys, "resume", "r", status=2)


def test_a_run_that_was_killed_before_its_first_checkpoint_is_started_as_it_says(place: Path, capsys: Any) -> None:
    assert headrace("fit", "sines.py:small", "--run", "r", "--epochs", "1", "--json") == 0
    document = (place / "r/recipe.yaml").read_text()
    run = (place / "r/run.json").read_text()
    (place / "killed").mkdir()
    (place / "killed/run.json").write_text(run)
    assert "--recipe file.py" in refused_after(capsys, "resume", "killed")
    (place / "killed/recipe.yaml").write_text(document)
    said = refused_after(capsys, "resume", "killed")
    start = said.partition("Start it: headrace ")[2].split()
    assert headrace(*start, "--json") == 0
    assert json.loads(capsys.readouterr().out)["step"] == 5


def refused_after(capsys: Any, *words: object) -> str:
    capsys.readouterr()
    return refused(capsys, *words, status=1)


@pytest.mark.parametrize(
    ("option", "value", "argument", "told"),
    [
        ("checkpoint_every", "often", "checkpoint_every", ' is a number and a unit, as in "1 epoch" or "500 steps"'),
        ("checkpoint_every", "3 weeks", "checkpoint_every", "='3 weeks': unknown unit 'weeks'"),
        ("validate_every", "3 min", "validate_every", "='3 min': minutes differ from run to run"),
    ],
)
def test_an_error_names_its_argument_and_a_command_its_flag(
    option: str, value: str, argument: str, told: str, place: Path, capsys: Any
) -> None:
    with pytest.raises(hr.ConfigError) as caught:
        load_recipe("sines.py:small").run(**{option: value, "run": "r", "progress": False})
    assert caught.value.argument == argument
    assert str(caught.value).startswith(f"{argument}={told.removeprefix('=')}")
    said = refused(capsys, "fit", "sines.py:small", f"--{option}", value, "--run", "r", status=1)
    assert said.startswith(f"headrace: --{option}{told}")


def test_an_error_of_no_argument_and_one_that_is_sent_say_the_same() -> None:
    assert hr.ConfigError("of nothing in particular").argument == ""
    with pytest.raises(hr.ConfigError) as caught:
        hr.Length.parse("often", "log_every")
    again = pickle.loads(pickle.dumps(caught.value))
    assert (str(again), again.argument) == (str(caught.value), "log_every")


def test_a_run_in_use_is_left_alone(place: Path, capsys: Any) -> None:
    assert headrace("fit", "sines.py:small", "--run", "r", "--json") == 0
    capsys.readouterr()
    for info in load_recipe("sines.py:small").trainer.steps(_rows(), run="r2", epochs=1):
        if info.step == 1:
            assert headrace("fit", "sines.py:small", "--run", "r2", "--json") == 1
            assert "is in use by process" in json.loads(capsys.readouterr().err)["error"]


def _rows() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.zeros(16, 5), torch.zeros(16, dtype=torch.int64)


def test_several_workers_get_the_same_arguments(place: Path, capsys: Any) -> None:
    how = ["--workers", "2", "--strategy", "periodic:every=2 steps", "--width", "6", "--json"]
    assert headrace("fit", "sines.py:small", *how, "--run", "r") == 0
    assert headrace("resume", "r", "--epochs", "4", "--json") == 0
    first, on = (json.loads(line) for line in capsys.readouterr().out.splitlines())
    assert (first["epoch"], on["epoch"]) == (2, 4)
    assert yaml.safe_load((place / "r/recipe.yaml").read_text())["fit"]["workers"] == 2
    assert saved_weights(place / "r", "last").tensors["model.safetensors"]["0.weight"].shape == (6, 5)


def torchrun(place: str, words: list[str]) -> None:
    """Starts a command in two processes of torch's."""
    from torch.distributed.run import main

    os.chdir(place)
    take_over()
    main(["--standalone", "--nproc-per-node=2", "-m", "--", "headrace", *words])


@pytest.mark.slow
def test_workers_in_processes_and_under_torchrun_get_the_same_arguments(place: Path) -> None:
    how = ["fit", "sines.py:small", "--width", "6", "--epochs", "1", "--json"]
    found = []
    with process(place, *how, "--workers", "2", "--engine", "processes", "--run", "r") as child:
        assert child.ending(LIMIT_S) == 0, child.output
        found.append(json.loads(child.told[-1]))
    with start(torchrun, place, place, [*how, "--run", "t"], limit_s=LIMIT_S) as child:
        assert child.ending(LIMIT_S) == 0, child.output
        found.append(json.loads(child.told[-1]))
    one, other = found
    assert one["step"] == other["step"] == 5
    assert one["val/loss"] == pytest.approx(other["val/loss"])
    assert (place / "r/recipe.yaml").is_file()
    assert (place / "t/recipe.yaml").is_file()


@pytest.mark.takes_turns
@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_training_that_is_ended_early_goes_on_bit_for_bit(place: Path, number: int, status: int) -> None:
    with process(place, "fit", "sines.py:small", "--run", "r", "--epochs", "3", GATE="7") as child:
        child.until("there")
        child.send(number)
        child.say("go on")
        assert (child.ending(), child.told) == (status, ["there"])
        assert "headrace: ended early: headrace resume r goes on from there" in child.output
        assert "Traceback" not in child.output
    assert headrace("resume", "r", "--json") == 0
    load_recipe("sines.py:small").run(run="whole", epochs=3, progress=False)
    found, whole = (saved_weights(place / name, "last") for name in ("r", "whole"))
    assert found.step == whole.step == 15
    expected = whole.tensors["model.safetensors"]
    assert all(torch.equal(value, expected[name]) for name, value in found.tensors["model.safetensors"].items())


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_how_to_go_on_is_said_of_a_run_that_the_recipe_names(workers: int, place: Path) -> None:
    (place / "filed.py").write_text(FILED)
    how = ["--workers", workers, "--engine", "processes"] if workers > 1 else []
    with process(place, "fit", "filed.py", *how, GATE="3") as child:
        child.until("there", LIMIT_S)
        child.send(signal.SIGINT)
        for _ in range(workers):
            child.say("go on")
        assert child.ending() == 130
        assert "headrace: ended early: headrace resume runs/own goes on from there\n" in child.output


def test_ctrl_c_before_the_training_is_no_traceback(place: Path) -> None:
    (place / "waits.py").write_text("import os\nprint('there', flush=True)\nos.read(0, 1)\n")
    with process(place, "fit", "waits.py") as child:
        child.until("there")
        child.send(signal.SIGINT)
        assert child.ending() == 130
        assert child.output == "headrace: interrupted\n"


def test_what_a_recipe_passes_to_fit_stays(place: Path, capsys: Any) -> None:
    made = load_recipe("sines.py:small")
    assert isinstance(made, hr.Recipe)
    assert headrace("fit", "sines.py:small", "--steps", "3", "--run", "r", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["step"], found["why"]) == (3, "3 steps reached")


# --- what is printed --------------------------------------------------------------------------------------

PRINTING = [
    "--help",
    "fit --help",
    "runs --help",
    "--version",
    "completion bash",
    "fit sines.py:small --print_config",
    "fit sines.py:small --steps 1 --progress plain --run r",
    "rehearse sines.py:small --workers 2 --strategy diloco --strategy synchronous --steps 2",
    "runs r --json",
    "checkpoint list r",
    "fit nowhere.py",
    "fit --xyz",
]


def print_for_nobody(place: str) -> None:
    """Each command, with a standard output and a standard error that nobody reads."""
    for at_once in (True, False):
        os.chdir(place)
        place += "/again"
        for line in PRINTING:
            reading, writing = os.pipe()
            os.close(reading)
            for number in (1, 2):
                os.dup2(writing, number)
            os.close(writing)
            with (
                open(1, "w", closefd=False) as out,
                open(2, "w", closefd=False) as errors,
                redirect_stdout(out),
                redirect_stderr(errors),
            ):
                out.reconfigure(write_through=at_once)
                try:
                    tell(f"{line}: {headrace(*line.split())}")
                except BaseException as error:
                    tell(f"{line}: {error!r}")


@pytest.mark.slow
def test_a_reader_that_has_left_is_no_error_and_ends_no_work(place: Path) -> None:
    (place / "out").mkdir()
    (place / "again").mkdir()
    (place / "again" / "sines.py").write_text(RECIPE)
    with start(print_for_nobody, place / "out", place) as child:
        assert child.ending() == 0
    assert child.told == [f"{line}: {('nowhere' in line) + 2 * ('xyz' in line)}" for line in PRINTING] * 2
    assert (place / "rehearsal.png").is_file()
    assert (place / "again" / "rehearsal.png").is_file()


def test_a_command_leaves_how_warnings_are_shown_as_it_was(capsys: Any) -> None:
    before, handler = warnings.formatwarning, signal.getsignal(signal.SIGTERM)
    for words, status in (("--version", 0), ("fit nowhere.py", 1), ("fit --xyz", 2), ("runs .", 0)):
        assert headrace(*words.split()) == status
        assert warnings.formatwarning is before
    assert signal.getsignal(signal.SIGTERM) == handler
