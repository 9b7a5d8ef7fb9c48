"""Runs chromium without a window, with a fresh profile and a time limit."""

import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

import pytest

WITHIN_S = 300.0
_QUIET = [
    "--headless=new",
    "--disable-gpu",
    "--hide-scrollbars",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-sync",
    "--disable-component-update",
    "--disable-default-apps",
    "--enable-logging=stderr",
    "--v=0",
    "--virtual-time-budget=2000",
]
DARK = "--blink-settings=preferredColorScheme=0"


def chromium() -> str:
    """The browser; skips the test where there is none."""
    found = shutil.which("chromium") or shutil.which("chromium-browser")
    if found is None:
        pytest.skip("there is no chromium here: apt-get install chromium")
    return found


def browse(url: str, *options: str) -> tuple[str, list[str]]:
    """The output of the browser for a page, and the lines of the page's console."""
    sandbox = ["--no-sandbox"] if os.geteuid() == 0 else []
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        command = [chromium(), *_QUIET, *sandbox, f"--user-data-dir={profile}", *options, url]
        out, err = _run(command)
    return out, [line for line in err.splitlines() if ":CONSOLE" in line]


def dom(url: str, *options: str) -> tuple[str, list[str]]:
    """The HTML of a page after its scripts have run, and the lines of its console."""
    return browse(url, "--dump-dom", *options)


def shoot(url: str, picture: Path, width: int, height: int, *options: str) -> list[str]:
    """Writes a picture of a page; returns the lines of its console."""
    return browse(url, f"--screenshot={picture}", f"--window-size={width},{height}", *options)[1]


def _run(command: Sequence[str]) -> tuple[str, str]:
    child = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
    )
    try:
        out, err = child.communicate(timeout=WITHIN_S)
    except subprocess.TimeoutExpired:
        os.killpg(child.pid, signal.SIGKILL)  # its own session: the browser and what it has started
        child.communicate()
        pytest.fail(f"the browser did not end within {WITHIN_S:g} s")
    return out.decode(errors="replace"), err.decode(errors="replace")
