"""What a shell offers on the way through a command line: commands, options, recipes and runs, at once."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pexpect
import pytest

import headrace as hr
from headrace.app.cli import main
from headrace.app.cli.commands import commands
from headrace.app.cli.complete import candidates

RECIPES = """
from typing import Literal
import headrace as hr
raise AssertionError("a recipe is read, never run")

def digits(lr: float = 0.1, kind: Literal["wide", "deep"] = "wide", *, flip: bool = False) -> hr.Recipe: ...
"""
SOURCE = str(Path(hr.__file__).parents[1])


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with recipes, other programs, and runs."""
    monkeypatch.chdir(tmp_path)
    for run in ("runs/first", "runs/second", "more/deep/third"):
        (tmp_path / run).mkdir(parents=True)
        (tmp_path / run / "run.json").write_text("{}")
    (tmp_path / "runs/first/recipe.yaml").write_text(f"recipe: {tmp_path}/digits.py:digits\narguments: {{}}\n")
    (tmp_path / "digits.py").write_text(RECIPES)
    (tmp_path / "two.py").write_text("def a() -> Recipe: ...\ndef b() -> 'headrace.Recipe': ...\ndef c() -> int: ...\n")
    (tmp_path / "other.py").write_text("print('Recipe')\n")
    (tmp_path / "broken.py").write_text("def a(-> Recipe\n")
    (tmp_path / ".hidden").mkdir()
    return tmp_path


def test_a_command_comes_first() -> None:
    assert candidates("headrace ") == sorted(commands())
    assert candidates("headrace re") == ["rehearse", "report", "resume"]
    assert candidates("headrace --") == ["--help", "--version"]
    assert candidates("headrace nothing ") == []
    assert candidates("") == sorted(commands())


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("headrace fit ", ["digits.py", "more/", "runs/", "two.py"]),
        ("headrace fit .h", [".hidden/"]),
        ("headrace fit two.py:", ["two.py:a", "two.py:b"]),
        ("headrace fit nowhere/", []),
        ("headrace checkpoint ", ["export", "list", "verify"]),
        ("headrace checkpoint l", ["list"]),
        ("headrace checkpoint export runs/first --to ", ["onnx", "safetensors", "torch"]),
        ("headrace checkpoint export runs/first --to=s", ["--to=safetensors"]),
        ("headrace checkpoint list r", ["runs/"]),
        ("headrace checkpoint list runs/", ["runs/first", "runs/second"]),
        ("headrace fit digits.py --run more/", ["more/deep/"]),
        ("headrace completion ", ["bash", "fish", "zsh"]),
        ('headrace fit "dig', ["digits.py"]),
    ],
)
def test_recipes_runs_and_choices_where_they_belong(line: str, found: list[str]) -> None:
    assert candidates(line) == found


def test_the_parameters_of_a_recipe_are_options_and_it_is_not_run() -> None:
    assert set(candidates("headrace fit digits.py --")) >= {"--lr", "--kind", "--flip", "--run", "--epochs", "--config"}
    assert set(candidates("headrace fit two.py:a --")) & {"--lr", "--kind", "--flip"} == set()
    assert candidates("headrace fit digits.py --kind ") == ["deep", "wide"]
    assert candidates("headrace fit digits.py --kind=w") == ["--kind=wide"]
    assert candidates("headrace fit digits.py --resume ") == ["auto", "must", "never"]
    assert candidates("headrace fit digits.py --flip --l") == ["--lr"], "a switch has no value"
    assert candidates("headrace fit --epochs 3 digits.py --l") == ["--lr"]


def test_a_run_knows_the_recipe_it_was_made_with() -> None:
    assert candidates("headrace resume runs/first --ki") == ["--kind"]
    assert candidates("headrace resume runs/second --ki") == []
    assert candidates("headrace resume runs/first --re") == ["--recipe", "--report"], "where it goes on is said already"
    assert candidates("headrace resume runs/first --recipe di") == ["digits.py"]


def test_a_shell_that_parts_words_gets_the_last_part() -> None:
    assert candidates("headrace fit two.py:", ":=") == ["a", "b"]
    assert candidates("headrace fit digits.py --kind=", " \t:=") == ["deep", "wide"]


def test_every_command_can_be_completed() -> None:
    for name in commands():
        assert "--help" in candidates(f"headrace {name} --")


def test_nothing_heavy_is_imported() -> None:
    program = (
        "import sys; from headrace.app.cli.complete import candidates as c; assert c('headrace fit digits.py --l');"
        "print([m for m in ('torch', 'numpy', 'yaml', 'docstring_parser', 'rich') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], env=os.environ | {"PYTHONPATH": SOURCE}, capture_output=True, text=True
    )
    assert done.stdout == "[]\n", done.stderr


def test_a_shell_that_is_not_named_is_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion"]) == 1
    assert "say which shell" in capsys.readouterr().err
    assert main(["completion", "bsh"]) == 2
    assert "Did you mean 'bash'?" in capsys.readouterr().err


def start(shell: str) -> str:
    """What a shell's own start-up file has: the command as a function here, and the script."""
    command = f'headrace() {{ PYTHONPATH={SOURCE} {sys.executable} -m headrace "$@"; }}'
    return f'{command}\neval "$(headrace completion {shell})"\n'


@pytest.mark.takes_turns
@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("headrace fi", ["fit"]),
        ("headrace fit digits.py --ki", ["--kind"]),
        ("headrace fit digits.py --kind=", ["deep", "wide"]),
        ("headrace fit two.py:", ["a", "b"]),
        ("headrace predict runs/first nothing", []),
    ],
)
def test_bash_gets_them_as_it_wants_them(line: str, found: list[str]) -> None:
    words = line.replace(":", " : ").replace("=", " = ").split() + ([""] if line[-1] in ":= " else [])
    program = start("bash") + (
        f"COMP_LINE='{line}' COMP_POINT=${{#COMP_LINE}}; COMP_POINT=${{#COMP_LINE}}\n"
        f"COMP_WORDS=({' '.join(word or chr(39) * 2 for word in words)}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))\n"
        "_headrace; printf '%s\\n' \"${COMPREPLY[@]}\""
    )
    done = subprocess.run(["bash", "--norc", "-c", program], capture_output=True, text=True, timeout=30)
    assert done.stderr == ""
    assert done.stdout.split() == found


BASH = ["--norc", "-i"], "PS1='> '; bind 'set bell-style none'; bind 'set enable-bracketed-paste off'"
ZSH = ["-f", "-i"], "PS1='> '; unset zle_bracketed_paste; autoload -U compinit; compinit -u -D"


@pytest.mark.takes_turns
@pytest.mark.parametrize(("shell", "how"), [("bash", BASH), ("zsh", ZSH)])
def test_the_tab_key_completes_in_a_terminal(shell: str, how: tuple[list[str], str], home: Path) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    arguments, settings = how
    (home / "rc").write_text(f"{settings}\n{start(shell)}")
    child = pexpect.spawn(
        shell,
        arguments,
        cwd=str(home),
        encoding="utf-8",
        timeout=30,
        dimensions=(24, 120),
        env=os.environ | {"TERM": "dumb"},
    )
    try:
        child.sendline(". ./rc; echo rea''dy")
        child.expect("ready")
        child.send("true; headrace chec\t")
        child.expect("kpoint ")
        child.send("l\t")
        child.expect("ist ")
        child.send("more/\t")
        child.expect("deep/")
        child.send("\t")
        child.expect("third ")
    finally:
        child.close(force=True)


def test_fish_gets_them_as_it_wants_them(home: Path) -> None:
    if shutil.which("fish") is None:
        pytest.skip("fish is not installed")
    command = f"function headrace; env PYTHONPATH={SOURCE} {sys.executable} -m headrace $argv; end"
    program = f"{command}\nheadrace completion fish | source\n"
    for line, found in [
        ("headrace fi", ["fit"]),
        ("headrace fit digits.py --ki", ["--kind"]),
        ("headrace fit digits.py --kind ", ["deep", "wide"]),
        ("headrace predict runs/first digi", ["digits.py"]),
    ]:
        done = subprocess.run(
            ["fish", "--no-config", "-c", f"{program}complete -C '{line}'"], capture_output=True, text=True, timeout=30
        )
        assert done.stdout.split() == found, done.stderr
