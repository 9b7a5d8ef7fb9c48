"""What a person sees: lines in a file, a bar on a terminal, drawn by time and cleared away at the end."""

import io
import re
import sys
from contextlib import suppress
from typing import Any

import pytest
import torch
from kit.screens import screen
from kit.small import Clock
from torch import Tensor, nn

import headrace as hr
from headrace.watch import progress as display
from headrace.watch.progress import Bar

X = torch.randn(200, 4, generator=torch.Generator().manual_seed(1))
Y = X.sum(dim=1, keepdim=True)

HIDE, ESCAPE = "\x1b[?25l", "\x1b"


def make(batch_size: int = 10) -> hr.Trainer:
    model = nn.Linear(4, 1)
    return hr.Trainer(model, hr.MSE(), torch.optim.SGD(model.parameters(), lr=0.01), batch_size=batch_size)


def test_plain_progress_is_one_line_an_epoch_on_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    history = make().fit((X, Y), (X, Y), epochs=3, progress="plain")
    out, err = capsys.readouterr()
    *epochs, last = err.splitlines()
    assert out == ""
    assert len(epochs) == 3
    for row, line in zip(history, epochs, strict=True):
        assert line.startswith(f"epoch {row['epoch']}/3  ")
        assert f"train/loss {row['train/loss']:.4g}" in line
        assert f"val/loss {row['val/loss']:.4g}" in line
        assert "samples/s" in line
    assert last.startswith("ended after 60 steps, 600 samples, ")
    assert "3 epochs reached" in last


def test_plain_lines_follow_the_reports(capsys: pytest.CaptureFixture[str]) -> None:
    options: Any = {"progress": "plain", "log_every": "2 steps", "validate_every": "4 steps"}
    history = make().fit((X, Y), (X, Y), steps=9, **options)
    lines = capsys.readouterr().err.splitlines()
    told = {int(line.split()[1]): line for line in lines if line.startswith("step")}
    assert [*told] == [row["step"] for row in history.rows] == [2, 4, 6, 8, 9]
    assert f"train/loss {history.rows[0]['train/loss']:.4g}" in told[2]
    assert "val/loss" not in told[2]
    assert told[4].count("val/loss") == told[4].count("train/loss") == 1
    assert len(lines) == len(told) + 1  # and the last one


@pytest.mark.parametrize("call", ["fit", "steps"])
def test_no_progress_prints_nothing(call: str, capfd: pytest.CaptureFixture[str]) -> None:
    trainer = make()
    if call == "fit":
        trainer.fit((X, Y), (X, Y), epochs=2, progress=False)
    else:
        list(trainer.steps((X, Y), (X, Y), epochs=2))
    assert capfd.readouterr() == ("", "")


def a_term_with_a_name_that_is_longer_than_narrow_terminals(outputs: Tensor, target: Tensor) -> Tensor:
    return (outputs - target).square().mean()


def bars(text: str) -> list[str]:
    """Every bar that was drawn, without colours."""
    parts = re.split(r"\r|\n|\x1b\[[0-9]*[KA]", re.sub(r"\x1b\[[0-9;]*m", "", text))
    return [part for part in parts if re.match(r"epoch \d", part) and "train/loss" not in part]


class Terminal(io.StringIO):
    """A terminal that keeps all that it is sent."""

    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


class Ascii(Terminal):
    encoding = "ascii"


class Unheard(Terminal):
    def write(self, text: str) -> int:
        raise BrokenPipeError


@pytest.fixture
def user(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """The environment of somebody at a terminal, where a bar is drawn after every step."""
    for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "CI"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {"TERM": "xterm-256color", "COLUMNS": "80", "LINES": "24"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(display, "BAR_S", 0.0)
    monkeypatch.setattr(display.Bar, "period", 0.0)
    monkeypatch.setattr(display.Progress, "each_step", True)
    return monkeypatch


def shown_on(file: Terminal, style: str = "auto") -> str:
    loss = hr.MSE() + 0.5 * hr.RowMean(a_term_with_a_name_that_is_longer_than_narrow_terminals)
    model = nn.Linear(4, 1)
    trainer = hr.Trainer(model, loss, torch.optim.SGD(model.parameters(), lr=0.01), batch_size=10)
    trainer.fit((X, Y), epochs=2, progress=False, callbacks=[display.Progress(style, file)])
    return file.getvalue()


@pytest.mark.parametrize("style", ["bar", "plain"])
@pytest.mark.parametrize("limit", [{"epochs": 2}, {"steps": 25}])
def test_the_scores_of_a_test_are_said_once(style: str, limit: dict[str, int], user: pytest.MonkeyPatch) -> None:
    file, trainer = Terminal(), make()
    shown = display.Progress(style, file)
    history = trainer.fit((X, Y), (X, Y), (X, Y), progress=False, callbacks=[shown], **limit)  # type: ignore[arg-type]
    assert file.getvalue().count("test/") == 1
    step, value = history.last["step"], history.last["test/loss"]
    assert f"step {step}  test/loss {value:.4g}" in re.sub(r"\x1b\[[0-9;]*m", "", file.getvalue())


@pytest.mark.parametrize("columns", [200, 80, 40, 24, 12])
def test_the_bar_is_one_line_that_fits_the_terminal(columns: int, user: pytest.MonkeyPatch) -> None:
    user.setenv("COLUMNS", str(columns))
    text = shown_on(Terminal())
    drawn = bars(text)
    assert len(drawn) >= 40, "one a step"
    assert all(len(part) < columns for part in drawn)
    assert all(("━" in part) == (columns >= 20) for part in drawn)
    assert all(("batch" in part, "total_loss" in part) == (columns >= 40, columns >= 80) for part in drawn)
    assert all(("longer_than_narrow_terminals" in part) == (columns == 200) for part in drawn)
    seen = screen(text, columns)
    assert not any("━" in line or "batch" in line for line in seen), "nothing of it is left behind"


@pytest.mark.parametrize("variables", [{"TERM": "dumb"}, {"TERM": ""}, {"CI": "true"}])
def test_where_a_line_cannot_be_drawn_again_there_are_plain_ones(
    variables: dict[str, str], user: pytest.MonkeyPatch
) -> None:
    for name, value in variables.items():
        user.setenv(name, value)
    text = shown_on(Terminal())
    assert ESCAPE not in text
    assert "\r" not in text
    assert [line.split()[0] for line in text.splitlines()] == ["epoch", "epoch", "ended"]


def test_no_colour_leaves_the_bar(user: pytest.MonkeyPatch) -> None:
    assert re.search(r"\x1b\[[0-9;]*m", shown_on(Terminal())), "else this test could not fail"
    user.setenv("NO_COLOR", "1")
    text = shown_on(Terminal())
    assert "━" in text
    assert not re.search(r"\x1b\[[0-9;]*3[0-9]", text)


def test_a_terminal_that_knows_ascii_only_gets_no_more(user: pytest.MonkeyPatch) -> None:
    text = shown_on(Ascii())
    assert "-----" in text
    assert text.isascii()


def test_a_display_that_nobody_sees_any_more_stops_no_training(user: pytest.MonkeyPatch) -> None:
    assert [shown_on(Unheard(), style) for style in ("bar", "plain")] == ["", ""]


def test_what_goes_to_a_file_is_not_sent_to_the_terminal(user: pytest.MonkeyPatch) -> None:
    out, err = io.StringIO(), Terminal()
    user.setattr(sys, "stdout", out)
    user.setattr(sys, "stderr", err)
    bar = Bar(err)
    print("a result")
    print("a warning", file=sys.stderr)
    print("long" * 50, file=sys.stderr)
    bar.close()
    assert out.getvalue() == "a result\n"
    assert screen(err.getvalue(), 80)[0] == "a warning"
    assert "long" * 50 in err.getvalue(), "lines are not broken, so that they can be copied"


@pytest.mark.parametrize(("style", "period"), [("bar", 0.1), ("plain", 10.0)])
@pytest.mark.parametrize("tick", [0.0004, 0.01, 0.09])
def test_it_is_drawn_by_time_and_not_by_step(
    style: str, period: float, tick: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    monkeypatch.setattr(display, "time", clock)
    draws: Any = []
    kind: Any = display.Bar if style == "bar" else display._Lines
    draw = kind.draw
    monkeypatch.setattr(kind, "draw", lambda self, info, clock: (draws.append(info.step), draw(self, info, clock)))
    shown = display.Progress(style, io.StringIO())
    ticks = hr.Lambda(on_step_end=lambda info: clock.passes(tick))
    make(batch_size=1).fit((X, Y), epochs=3, progress=False, callbacks=[ticks, shown])
    elapsed = 600 * tick
    assert clock.now_s == pytest.approx(elapsed)
    assert len(draws) <= elapsed / period + 2
    assert len(draws) >= 0.8 * int(elapsed / (period + tick))


@pytest.mark.parametrize("end", ["end", "error", "interrupt", "break"])
def test_the_terminal_is_left_as_it_was_and_prints_have_lines_of_their_own(end: str, user: pytest.MonkeyPatch) -> None:
    def act(info: hr.Info) -> None:
        if info.step == 7:
            print("printed")
            print("warned", file=sys.stderr)
        if info.step == 25 and end in errors:
            raise errors[end]

    file, errors = Terminal(), {"error": ZeroDivisionError, "interrupt": KeyboardInterrupt}
    user.setattr(sys, "stdout", file)
    user.setattr(sys, "stderr", file)
    own = hr.Lambda(on_step_end=act)
    with suppress(ZeroDivisionError, KeyboardInterrupt):
        for info in make().steps((X, Y), (X, Y), epochs=2, progress="auto", callbacks=[own]):
            if info.step == 25 and end == "break":
                break
    print("THE END")
    text, _, after = file.getvalue().partition("THE END")
    assert "━" in text
    assert re.search(r"batch \d+/20", text)
    assert HIDE not in text, "a training that is killed could not show the cursor again"
    assert after == "\n", "nothing is drawn once the program goes on"
    shown = screen(text, 80)
    assert not any("━" in line or "batch" in line for line in shown), "the bar is cleared away"
    assert [shown.count(line) for line in ("printed", "warned")] == [1, 1]
    assert any(line.startswith("epoch 1/2  train/loss") for line in shown)
    assert any(line.startswith("ended after 40 steps") for line in shown) == (end == "end")
