"""Trains where calls of the operating system are missing that macOS or Windows lack (docs/platforms.md)."""

import os
import platform as host
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from kit import left_behind
from kit.platforms import PLATFORMS

TESTS = Path(__file__).parents[1]
SOURCE = TESTS.parent / "src" / "headrace"
PRETEND = "from kit.platforms import pretend\npretend({platform!r})\n"
TRAINING = """
import os, sys, torch
import headrace as hr

class Dies(hr.Callback):
    def on_step_end(self, info):
        if info.step == 13:
            os._exit(9)

def train(run, workers=1):
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(), torch.nn.Linear(8, 2))
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    trainer = hr.Trainer(model, hr.MSE(), optimizer, inputs="x", target="y", batch_size=8)
    data = {"x": torch.randn(64, 4), "y": torch.randn(64, 2)}
    callbacks = [Dies()] if "dies" in sys.argv else []
    trainer.fit(data, epochs=3, callbacks=callbacks, run=hr.Run(run, every="5 steps", wait=True, logs=False))
    return sum(float(value.double().sum()) for value in model.state_dict().values())

if __name__ == "__main__":
    if "processes" in sys.argv:
        print(hr.launch(train, sys.argv[1], 2, workers=2, engine="processes"))
    else:
        print(train(sys.argv[1]).hex())
"""
IMPORTS = """
import importlib, pkgutil, headrace
from headrace.store import system
from headrace.store.run import processor
from headrace.train.find import _kilobytes

for module in pkgutil.walk_packages(headrace.__path__, "headrace."):
    if not module.name.endswith("__main__"):
        importlib.import_module(module.name)
signals = [one.name for one in system.signals("SIGTERM", "SIGUSR1")]
print(system.c_function("renameat2"), signals, processor(), _kilobytes("meminfo", "MemAvailable"))
"""
LOCKS = """
import os, sys
from headrace.store import system

def opened():
    return os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)

one, other = opened(), opened()
system.lock(one)
os.write(one, b"process 7")
try:
    system.lock(other)
    print("twice")
except BlockingIOError:
    print("once", system.read_at(other, 99, 0))
os.close(one)
system.lock(other)
"""


OPEN = """
import os, sys, threading
from pathlib import Path
from headrace.store import disk, system

at = sys.argv[1]
system.PATIENCE_S = 0.2
directory = Path(at, "a")
directory.mkdir()
file = open(directory / "inside", "w", encoding="utf-8")
try:
    disk.rename(directory, Path(at, "b"))
except OSError as error:
    print(error.strerror, end=" ")
    system.PATIENCE_S = 30.0
    threading.Timer(0.05, file.close).start()
    disk.rename(directory, Path(at, "b"))
disk.sync_dir(Path(at))
Path(at, "other").mkdir()
print(disk.exchange(Path(at, "b"), Path(at, "other")), os.listdir(Path(at, "other")))
file.close()
"""
ORPHANS = """
import os, sys, time
import headrace as hr

def wait(directory):
    rank = int(os.environ["RANK"])
    with open(f"{directory}/{rank}", "w", encoding="utf-8") as file:
        file.write(str(os.getpid()))
    try:
        while True:
            time.sleep(0.05)  # that of Linux is not woken up by a signal that another thread raises
    except KeyboardInterrupt:
        os.rename(f"{directory}/{rank}", f"{directory}/{rank}-ended")
        raise

if __name__ == "__main__":
    hr.launch(wait, sys.argv[1], workers=2, engine="processes")
"""

ROOMS = ["store/test_disk.py", "store/test_contents.py", "store/test_run.py", "store/test_hostile.py"]
ROOMS += ["formats/test_ctf_cache.py"]
ARTEFACTS = {
    "macos": ("cannot_be_written_asks", "killed_process_left"),
    "windows": (
        "cannot_be_written_asks",
        "killed_process_left",
        "killed_anywhere",
        "old_caches_go",
        "disk_that_is_full",
    ),
}
"""Tests that replace a function of the true `os`, lock a file by the true `flock`, or have a file open that would not
be, or has to go: `killed_anywhere` kills no process, and what an error or a table has open goes later on Windows."""
GUARDED = {"store/system.py", "engines/baton.py", "engines/ray/guard.py", "workers/shared.py"}
"""Files that use what is not on every system, where it is there."""


def start(platform: str, program: str, directory: Path, *arguments: str) -> subprocess.Popen[str]:
    """Starts a program on what is like another platform; processes that it starts are on it too."""
    file = directory / "program.py"
    file.write_text((PRETEND.format(platform=platform) if platform else "") + program)
    given = {name: value for name, value in os.environ.items() if name != left_behind.MARK or "pytest" not in program}
    paths = os.pathsep.join([str(TESTS), *sys.path])  # a run of tests within one is a run of its own
    environment = {**given, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    command = [sys.executable, str(file), *arguments]
    return subprocess.Popen(command, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def run(platform: str, program: str, directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    with start(platform, program, directory, *arguments) as running:
        out, errors = running.communicate(timeout=100)
    return subprocess.CompletedProcess(running.args, running.returncode, out, errors)


def until(true: Callable[[], bool], limit_s: float = 60.0) -> None:
    end = time.monotonic() + limit_s
    while not true():
        assert time.monotonic() < end
        time.sleep(0.05)


def printed(platform: str, program: str, directory: Path, *arguments: str) -> str:
    ended = run(platform, program, directory, *arguments)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout.strip()


@pytest.mark.slow
@pytest.mark.parametrize("platform", PLATFORMS)
def test_every_module_is_imported(platform: str, tmp_path: Path) -> None:
    processor = host.processor() or host.machine()
    told = {"macos": "['SIGTERM', 'SIGUSR1'] Apple M9", "windows": f"['SIGTERM'] {processor}"}[platform]
    assert printed(platform, IMPORTS, tmp_path) == f"None {told} None"


def test_text_is_read_and_written_in_one_encoding() -> None:
    command = [sys.executable, "-m", "ruff", "check", "--preview", "--select", "PLW1514", str(SOURCE)]
    found = subprocess.run(command, capture_output=True, text=True)
    assert found.returncode == 0, found.stdout


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize("name", ["darwin", "win32"])
def test_what_a_system_lacks_is_used_in_few_files(name: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mypy", "--platform", name, "--cache-dir", str(tmp_path)]
    found = subprocess.run(command, capture_output=True, text=True, cwd=SOURCE.parents[1])
    errors = [line for line in found.stdout.splitlines() if ": error:" in line]
    assert errors, found.stdout + found.stderr
    assert {re.split(r"headrace/|:", line)[1] for line in errors} <= GUARDED, found.stdout


@pytest.mark.slow
@pytest.mark.parametrize("platform", PLATFORMS)
def test_a_training_that_died_goes_on_with_the_bits_of_one_that_did_not(platform: str, tmp_path: Path) -> None:
    whole = printed("", TRAINING, tmp_path, str(tmp_path / "whole"))
    assert run(platform, TRAINING, tmp_path, str(tmp_path / "run"), "dies").returncode == 9
    assert sorted(path.name for path in (tmp_path / "run" / "checkpoints").glob("step-*"))
    assert printed(platform, TRAINING, tmp_path, str(tmp_path / "run")) == whole


@pytest.mark.slow
@pytest.mark.parametrize("platform", PLATFORMS)
def test_processes_train_together(platform: str, tmp_path: Path) -> None:
    assert float(printed(platform, TRAINING, tmp_path, str(tmp_path / "run"), "processes"))


@pytest.mark.takes_turns
@pytest.mark.parametrize("platform", PLATFORMS)
def test_a_file_is_locked_once_until_it_is_closed(platform: str, tmp_path: Path) -> None:
    assert printed(platform, LOCKS, tmp_path, str(tmp_path / "lock")) == "once b'process 7'"


@pytest.mark.parametrize("platform", PLATFORMS)
def test_directories_are_renamed_and_exchanged_as_far_as_the_system_can(platform: str, tmp_path: Path) -> None:
    ours = {"macos": "True ['inside']", "windows": "Permission denied False []"}[platform]
    assert printed(platform, OPEN, tmp_path, str(tmp_path)) == ours


@pytest.mark.slow
@pytest.mark.parametrize("platform", PLATFORMS)
def test_workers_end_when_the_launch_has_been_killed(platform: str, tmp_path: Path) -> None:
    places = [tmp_path / "0", tmp_path / "1"]
    with start(platform, ORPHANS, tmp_path, str(tmp_path)) as launch:
        until(lambda: all(place.exists() and place.read_text() for place in places))
        launch.send_signal(signal.SIGKILL)
    until(lambda: all(place.with_name(f"{place.name}-ended").exists() for place in places))


@pytest.mark.slow
@pytest.mark.parametrize("platform", PLATFORMS)
def test_the_tests_of_the_rooms_concerned_pass(platform: str, tmp_path: Path) -> None:
    program = "import sys, pytest\nif __name__ == '__main__':\n    sys.exit(pytest.main(sys.argv[1:]))"
    options = ["-q", "-m", "not slow", "-k", f"not ({' or '.join(ARTEFACTS[platform])})", f"--rootdir={TESTS.parent}"]
    ended = run(platform, program, tmp_path, *options, *(str(TESTS / room) for room in ROOMS))
    assert ended.returncode == 0, ended.stdout
    assert " passed" in ended.stdout
