"""What a person sees: lines in a file or a pipe, a bar on a terminal, drawn by time and cleared away at the end."""

import io
import os
import re
import subprocess
import sys
from typing import Any

import pexpect
import pytest
import torch
from torch import nn

import headrace as hr
from headrace.callback import progress as display

X = torch.randn(200, 4, generator=torch.Generator().manual_seed(1))
Y = X.sum(dim=1, keepdim=True)

HIDE, SHOW, ESCAPE = "\x1b[?25l", "\x1b[?25h", "\x1b"

ENDS = ["end", "error", "interrupt", "break"]
SCRIPT = """
import sys, time
import torch
from torch import nn
import headrace as hr

class Slow(hr.Callback):
    def on_step_end(self, info):
        time.sleep(0.01)
        if info.step == 60 and end == "error":
            raise ZeroDivisionError

data = torch.randn(400, 4), torch.randn(400, 1)
for end in sys.argv[1:]:
    model = nn.Linear(4, 1)
    trainer = hr.Trainer(model, hr.MSE(), torch.optim.SGD(model.parameters(), lr=0.01), batch_size=10)
    try:
        for info in trainer.steps(data, data, epochs=2, progress="auto", callbacks=[Slow()]):
            if info.step == 60 and end == "interrupt":
                raise KeyboardInterrupt
            if info.step == 60 and end == "break":
                break
    except (ZeroDivisionError, KeyboardInterrupt) as error:
        print(type(error).__name__)
    print("THE END")
"""


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
        assert line.startswith(f"epoch {row['epoch']}  ")
        assert f"train/loss {row['train/loss']:.4g}" in line
        assert f"val/loss {row['val/loss']:.4g}" in line
        assert "samples/s" in line
    assert last.startswith("done: 60 steps, 600 samples, ")
    assert "3 epochs reached" in last


def test_scores_within_an_epoch_have_lines_of_their_own(capsys: pytest.CaptureFixture[str]) -> None:
    make().fit((X, Y), (X, Y), epochs=1, validate_every="8 steps", progress="plain")
    lines = capsys.readouterr().err.splitlines()
    assert [line.split("  ")[0] for line in lines[:2]] == ["step 8", "step 16"]
    assert all("val/loss" in line for line in lines[:2])


@pytest.mark.parametrize("call", ["fit", "steps"])
def test_no_progress_prints_nothing(call: str, capfd: pytest.CaptureFixture[str]) -> None:
    trainer = make()
    if call == "fit":
        trainer.fit((X, Y), (X, Y), epochs=2, progress=False)
    else:
        list(trainer.steps((X, Y), (X, Y), epochs=2))
    assert capfd.readouterr() == ("", "")


def command(*ends: str) -> list[str]:
    return [sys.executable, "-W", "error", "-c", SCRIPT, *ends]


def environment() -> dict[str, str]:
    """As a user has it: no setting that would force colours on or off."""
    source = os.path.dirname(os.path.dirname(hr.__file__))
    kept = {k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "CI")}
    return kept | {"PYTHONPATH": source, "OMP_NUM_THREADS": "1", "TERM": "xterm-256color", "COLUMNS": "120"}


def test_auto_prints_plain_lines_into_a_pipe() -> None:
    done = subprocess.run(command("end"), env=environment(), capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "THE END\n"
    assert ESCAPE not in done.stderr
    assert "\r" not in done.stderr
    lines = done.stderr.splitlines()
    assert [line.split()[0] for line in lines] == ["epoch", "epoch", "done:"]


@pytest.fixture(scope="module")
def terminal() -> dict[str, str]:
    """What a real terminal is sent by trainings that end in different ways, up to and after the line behind each."""
    program, *arguments = command(*ENDS)
    child = pexpect.spawn(program, arguments, env=environment(), encoding="utf-8", timeout=60, dimensions=(24, 120))
    try:
        child.expect(pexpect.EOF)
    finally:
        child.close(force=True)
    assert child.exitstatus == 0, child.before
    return dict(zip([*ENDS, "after"], child.before.split("THE END"), strict=True))


@pytest.mark.parametrize("end", ENDS)
def test_a_terminal_shows_a_bar_and_has_its_cursor_back_afterwards(end: str, terminal: dict[str, str]) -> None:
    text = terminal[end]
    assert HIDE in text
    assert "━" in text
    assert re.search(r"batch \d+/40", text)
    assert "epoch 1  train/loss" in text
    assert text.rfind(SHOW) > text.rfind(HIDE)
    assert ("done: 80 steps" in text) == (end == "end")
    assert ("ZeroDivisionError" in text, "KeyboardInterrupt" in text) == (end == "error", end == "interrupt")


def test_nothing_is_drawn_once_the_program_goes_on(terminal: dict[str, str]) -> None:
    assert ESCAPE not in terminal["after"]


class Clock:
    """Time that goes on by the step."""

    def __init__(self, tick: float) -> None:
        self.now, self.tick = 0.0, tick

    def perf_counter(self) -> float:
        return self.now


class Ticks(hr.Callback):
    def __init__(self, clock: Clock) -> None:
        self.clock = clock

    def on_step_end(self, info: hr.Info) -> None:
        self.clock.now += self.clock.tick


@pytest.mark.parametrize(("style", "period"), [("bar", 0.1), ("plain", 10.0)])
@pytest.mark.parametrize("tick", [0.0001, 0.003, 0.09])
def test_it_is_drawn_by_time_and_not_by_step(
    style: str, period: float, tick: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(tick)
    monkeypatch.setattr(display, "time", clock)
    draws: list[int] = []
    kind: Any = display._Bar if style == "bar" else display._Lines
    draw = kind.draw
    monkeypatch.setattr(kind, "draw", lambda self, info, clock: (draws.append(info.step), draw(self, info, clock)))
    shown = display.Progress(style, io.StringIO())
    make(batch_size=1).fit((X, Y), epochs=10, progress=False, callbacks=[Ticks(clock), shown])
    elapsed = 2000 * tick
    assert clock.now == pytest.approx(elapsed)
    assert len(draws) <= elapsed / period + 2
    assert len(draws) >= 0.8 * int(elapsed / (period + tick))


def test_the_bar_reads_no_losses_while_it_is_not_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    reads = []
    losses = hr.Info.losses
    monkeypatch.setattr(hr.Info, "losses", property(lambda self: reads.append(1) or losses.fget(self)))
    clock = Clock(0.01)
    monkeypatch.setattr(display, "time", clock)
    shown = display.Progress("bar", io.StringIO())
    make(batch_size=2).fit((X, Y), epochs=1, progress=False, callbacks=[Ticks(clock), shown])
    assert 5 <= len(reads) <= 12
