"""What the command line prints: its help, and nothing wrong where nobody reads what it prints."""

import os
import re
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import pytest
from kit.cli_parts import LIMIT_S, RECIPE, environment, headrace, plain
from kit.forked import start, tell

pytest_plugins = ["kit.cli_place"]
pytestmark = pytest.mark.usefixtures("place")


def test_help_shows_what_the_recipe_takes_and_what_fit_takes(capsys: Any) -> None:
    def page(*words: str) -> str:
        assert headrace(*words, "--help") == 0
        return plain(capsys.readouterr().out)

    said = page("fit", "sines.py:small")
    for shown in (
        "--lr float learning rate [default: 0.1]",
        "--kind sgd|adam of the optimizer [default: adam]",
        "--tested --no-tested whether there are test data [default: True]",
        "--run str directory to save",
        "HEADRACE_LR=0.1",
        "RECIPE file.py or file.py:function",
    ):
        assert shown in said
    assert "--lr float" not in page("fit")
    said = page("resume")
    assert "--recipe STR file.py or file.py:function" in said
    assert "--run " not in said
    assert "--resume " not in said


def test_the_help_of_everything_comes_at_once() -> None:
    """And the program is one: `python -m headrace`, in a new interpreter."""
    code = (
        "import runpy, sys\n"
        "late = {'torch', 'numpy', 'matplotlib', 'ray', 'headrace.app.rehearse', 'headrace.engines', 'torchmetrics'}\n"
        "helps = 'fit', 'checkpoint', 'checkpoint export', 'predict'\n"
        "for words in [[], ['--help'], ['checkpoint'], ['--version'], *([*h.split(), '--help'] for h in helps)]:\n"
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


PRINTING = [
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


def test_a_reader_that_has_left_is_no_error_and_ends_no_work(place: Path) -> None:
    (place / "out").mkdir()
    (place / "again").mkdir()
    (place / "again" / "sines.py").write_text(RECIPE)
    with start(print_for_nobody, place / "out", place) as child:
        assert child.ending() == 0
    assert child.told == [f"{line}: {('nowhere' in line) + 2 * ('xyz' in line)}" for line in PRINTING] * 2


def test_a_shell_can_complete_commands_and_options(in_tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(in_tmp_path))
    assert headrace("--install-completion", "--shell", "bash") == 0
    (script,) = in_tmp_path.rglob("completions/headrace")
    assert {"sweep", "--checkpoint-every", "--install-completion"} <= set(re.findall(r"[\w-]+", script.read_text()))
