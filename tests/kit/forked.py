"""Starts processes for tests, forked from a server that has imported torch; every wait for one has a limit.

`start(function, ...)` calls a function of the test's module in a new process, `start_script(path)` runs a script. The
process sends lines to the test with `tell` and waits for one from it with `hear`. It ends as any program does: Python
waits for threads, calls exit handlers, and turns an exception into an exit status. Only a script also goes through the
final cleanup of the interpreter, which takes longer.
"""

import atexit
import ctypes
import faulthandler
import gc
import importlib.util
import json
import os
import pkgutil
import select
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
import weakref
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

LIMIT_S = 400.0  # of every wait of a test for a process: no test waits for it to be over
GONE_S = 60.0  # time that its process group has to end after it
_MESSAGE = 1 << 16
_SUBREAPER = 36  # of prctl
_SERVE = "from kit import forked; forked.serve()"


# --- in the test ------------------------------------------------------------------------------------------


class Child:
    """A started process, for the test that has started it."""

    def __init__(self, lines: int, orders: int, status: socket.socket, output: Path) -> None:
        self._lines, self._orders, self._status, self._output = lines, orders, status, output
        self._unread = b""
        self._code: int | None = None
        self.told: list[str] = []
        """The lines that have been read from it so far."""
        self.pid = int(self._news()["pid"])

    @property
    def output(self) -> str:
        """Its standard output and standard error so far."""
        return self._output.read_text(errors="replace")

    def line(self, limit_s: float = LIMIT_S) -> str | None:
        """The next line that it tells; `None` once it and its children have ended."""
        end = time.monotonic() + limit_s
        while b"\n" not in self._unread:
            if not self._readable(max(0.0, end - time.monotonic())):
                raise TimeoutError(f"no line came for {limit_s:g} s, after {self.told}.\n{self.output}")
            data = os.read(self._lines, _MESSAGE)
            if not data:
                return None
            self._unread += data
        line, _, self._unread = self._unread.partition(b"\n")
        self.told.append(line.decode())
        return self.told[-1]

    def until(self, wanted: str, limit_s: float = LIMIT_S) -> str:
        """Reads lines up to the first that begins with `wanted`; the rest of that line."""
        while (line := self.line(limit_s)) is not None:
            if line.startswith(wanted):
                return line[len(wanted) :].strip()
        raise AssertionError(f"it ended ({self.ending()}) before it told {wanted!r}: {self.told}\n{self.output}")

    def wait(self, seconds: float) -> bool:
        """Lets it run for this time; whether it and its children have ended by then."""
        end = time.monotonic() + seconds
        while self._readable(max(0.0, end - time.monotonic())):
            data = os.read(self._lines, _MESSAGE)
            if not data:
                return True
            self._unread += data
        return False

    def say(self, word: str) -> None:
        """Sends a line, which `hear` returns."""
        os.write(self._orders, word.encode() + b"\n")

    def send(self, number: int) -> None:
        """Sends a signal to the process."""
        os.kill(self.pid, number)

    def kill(self) -> None:
        """Sends SIGKILL to its process group."""
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)

    def code(self, limit_s: float = LIMIT_S) -> int:
        """Its exit status, or minus the signal that ended it."""
        if self._code is None:
            ready, _, _ = select.select([self._status], [], [], limit_s)
            if not ready:
                self._show_stacks()
            assert ready, f"still running after {limit_s:g} s, having told {self.told}\n{self.output}"
            self._code = int(self._news()["code"])
        return self._code

    def ending(self, limit_s: float = LIMIT_S) -> int:
        """As `code`, once its process group has ended and all its lines have been read."""
        code = self.code(limit_s)
        _empty(self.pid)
        while self.line(GONE_S) is not None:
            pass
        return code

    def close(self) -> None:
        os.close(self._lines)
        os.close(self._orders)
        self._status.close()

    def _show_stacks(self) -> None:
        """Has it and the processes that it has forked write into the output where each of their threads is."""
        pids = [str(self.pid)]
        for pid in pids:
            with suppress(OSError):  # it has just ended
                for thread in Path("/proc", pid, "task").glob("*/children"):
                    pids += thread.read_text().split()
                os.kill(int(pid), signal.SIGUSR2)
                time.sleep(0.2)

    def _readable(self, seconds: float) -> bool:
        return bool(select.select([self._lines], [], [], seconds)[0])

    def _news(self) -> dict[str, Any]:
        data = self._status.recv(_MESSAGE)
        assert data, "the server is gone"
        found: dict[str, Any] = json.loads(data)
        return found


@contextmanager
def start(function: Callable[..., None], at: Path, *arguments: Any) -> Iterator[Child]:
    """A process that calls a function of a test's module; what it prints is written into the directory `at`."""
    job = {"file": function.__code__.co_filename, "name": function.__qualname__}
    with _started(job | {"arguments": [_plain(argument) for argument in arguments]}, at) as child:
        yield child


@contextmanager
def start_script(path: Path, *arguments: str, environment: Mapping[str, str] | None = None) -> Iterator[Child]:
    """A process whose `__main__` is a script, in its directory, perhaps with other variables than the tests have."""
    job = {"file": str(path), "name": None, "arguments": arguments, "environment": environment and dict(environment)}
    with _started(job, path.parent) as child:
        yield child


@contextmanager
def _started(job: dict[str, Any], at: Path) -> Iterator[Child]:
    output = at / f"output-{len(list(at.glob('output-*')))}.txt"
    reading, writing = os.pipe()
    hearing, saying = os.pipe()
    status, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    wait_for_server()
    with open(output, "wb") as printed:
        given = [writing, hearing, theirs.fileno(), printed.fileno()]
        socket.send_fds(server(), [json.dumps(job).encode()], given)
    for descriptor in (writing, hearing):
        os.close(descriptor)
    theirs.close()
    child = Child(reading, saying, status, output)
    try:
        yield child
    finally:
        child.kill()
        with suppress(AssertionError):
            child.ending(GONE_S)
        child.close()


@cache
def server() -> socket.socket:
    """Starts the process that all others are forked from: it imports what they need, and has one thread."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    path = os.pathsep.join([str(Path(__file__).parents[1]), *filter(None, sys.path)])
    environment = os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        [sys.executable, "-c", _SERVE], stdin=theirs.fileno(), env=environment, start_new_session=True
    )
    theirs.close()

    def end() -> None:
        ours.close()
        try:
            process.wait(GONE_S)
        except subprocess.TimeoutExpired:  # on a busy machine, it is still being started
            process.kill()

    atexit.register(end)
    return ours


@cache
def wait_for_server() -> None:
    """Returns once the server is ready."""
    assert server().recv(_MESSAGE), "the server of processes has ended"


def prepare(*modules: str) -> None:
    """Has the server import modules, so that no process that is started from now on takes the time for it."""
    wait_for_server()
    server().send(json.dumps({"imports": modules}).encode())


def _empty(group: int) -> None:
    """Returns once all processes of a group have ended."""
    end = time.monotonic() + GONE_S
    while time.monotonic() < end:
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return
        time.sleep(0.005)
    raise AssertionError(f"a process of group {group} is left {GONE_S:g} s after it ended")


def _plain(argument: Any) -> Any:
    return str(argument) if isinstance(argument, Path) else argument


# --- in the process that was started ----------------------------------------------------------------------

_channel: dict[str, int] = {}


def tell(line: str) -> None:
    """Sends a line to the test, from any thread."""
    os.write(_channel["lines"], line.encode() + b"\n")


def hear() -> str:
    """Waits for a line from the test; "" if the test has ended."""
    word = b""
    while not word.endswith(b"\n"):
        data = os.read(_channel["orders"], 1)
        if not data:
            break
        word += data
    return word.decode().strip()


def hold(place: str) -> None:
    """Tells `place`, waits in the main thread until a signal has been handled, and tells "heard"."""
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    before = signal.set_wakeup_fd(writing)
    try:
        tell(place)
        select.select([reading], [], [])
    finally:
        signal.set_wakeup_fd(before)
        os.close(reading)
        os.close(writing)
    tell("heard")


def take_over() -> None:
    """Makes what the test says the standard input, and sends the standard output to the test as lines."""
    os.dup2(_channel["orders"], 0)
    os.dup2(_channel["lines"], 1)


# --- in the server -------------------------------------------------------------------------------------------


def serve() -> None:
    """Forks a process for each request of a test, until the test process has ended.

    It also reaps processes whose parents have ended: the init process may leave them in the table for seconds.
    """
    _warm_up()
    ctypes.CDLL(None).prctl(_SUBREAPER, 1)
    server = socket.socket(fileno=os.dup(0))
    woken, wakes = os.pipe()
    os.set_blocking(wakes, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wakes)
    try:
        server.send(b"ready")
    except BrokenPipeError:  # the tests are over
        return
    watched: dict[int, _Watched] = {}
    while True:
        news: list[Any] = [one.news for one in watched.values() if not one.over]
        ready = select.select([server, woken, *news], [], [])[0]
        if woken in ready:
            os.read(woken, _MESSAGE)
        _reap(watched)
        for one in watched.values():
            one.look(ready)
        if server not in ready:
            continue
        try:
            message, descriptors, _, _ = socket.recv_fds(server, _MESSAGE, 4)
        except ConnectionResetError:  # no test has asked for a process
            return
        if not message:
            for one in watched.values():
                one.kill()
            return
        job = json.loads(message)
        if "imports" in job:
            _import(job["imports"])
            continue
        lines, orders, status, output = descriptors
        child = os.fork()
        if not child:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for one in watched.values():
                one.news.close()
            for descriptor in (server.detach(), woken, wakes, status):
                os.close(descriptor)
            os.setsid()
            for target in (1, 2):
                os.dup2(output, target)
            _channel.update(lines=lines, orders=orders)
            faulthandler.register(signal.SIGUSR2, file=2)
            _work(job)
            return
        for descriptor in (lines, orders, output):
            os.close(descriptor)
        watched[child] = _Watched(child, socket.socket(fileno=status))


class _Watched:
    """A forked process, which is killed when its test has ended."""

    def __init__(self, pid: int, news: socket.socket) -> None:
        self.pid, self.news, self.over = pid, news, False
        with suppress(OSError):
            news.send(json.dumps({"pid": pid}).encode())

    def look(self, ready: Collection[Any]) -> None:
        if not self.over and self.news in ready:
            self.kill()

    def kill(self) -> None:
        self.over = True
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        os.kill(self.pid, signal.SIGKILL)

    def ended(self, code: int) -> None:
        with suppress(OSError):
            self.news.send(json.dumps({"code": code}).encode())
        self.news.close()


def _reap(watched: dict[int, _Watched]) -> None:
    with suppress(ChildProcessError):
        while (found := os.waitpid(-1, os.WNOHANG))[0]:
            if one := watched.pop(found[0], None):
                one.ended(os.waitstatus_to_exitcode(found[1]))


def _import(modules: Sequence[str]) -> None:
    for name in modules:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()


def _warm_up() -> None:
    """Imports what processes need, by a training, and has the garbage collector ignore it from then on."""
    import jinja2  # noqa: F401
    import pytest  # noqa: F401
    from matplotlib.backends import backend_agg  # noqa: F401
    from tensorboard.compat.proto import event_pb2  # noqa: F401
    from torch._dynamo.utils import dump_compile_times

    from headrace import app
    from headrace.engines import processes  # noqa: F401
    from kit import torch_workers, trainees  # noqa: F401

    for module in pkgutil.walk_packages(app.__path__, "headrace.app."):  # what commands import one by one
        importlib.import_module(module.name)
    seed_what_is_there()
    trainees.fit(trainees.trainer(microbatch=None), None, epochs=1)
    gc.collect()
    gc.freeze()
    atexit.unregister(dump_compile_times)  # which nobody reads
    for finalizer in [*weakref.finalize._registry]:  # type: ignore[attr-defined]
        finalizer.atexit = False  # taking down what torch has set up would be half the time of a process


def seed_what_is_there() -> None:
    """Has `torch.manual_seed` pass over accelerators that are not there: to note its stack for each takes long."""
    import torch

    for kind in (torch.cuda, torch.xpu, torch.mtia):
        if not kind.is_available():
            vars(kind)["manual_seed_all"] = lambda seed: None


def _spare_time() -> None:
    """Leaves out fsync and the question for a git commit: tests kill processes, not machines."""
    from headrace.store import disk, run

    real = disk.perform

    def perform(operation: str, call: Callable[..., Any], *arguments: Any) -> Any:
        return None if operation in ("fsync", "sync_dir") else real(operation, call, *arguments)

    disk.perform = perform
    run._git_commit = lambda: None


def _work(job: dict[str, Any]) -> None:
    """Runs the function or the script of a request."""
    _spare_time()
    file, name = job["file"], job["name"]
    if name is None:
        try:
            be_script(file, job["arguments"], job["environment"])
        except KeyboardInterrupt:  # what the interpreter does with one
            sys.excepthook(*sys.exc_info())
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGINT)
    else:
        end_after(lambda: getattr(sys.modules.get(Path(file).stem) or _loaded(file), name)(*job["arguments"]))


def end_after(call: Callable[[], Any]) -> NoReturn:
    """Calls a function, and ends as a program does, but without the final cleanup of the interpreter."""
    status = 0
    try:
        call()
    except SystemExit as error:
        status = int(error.code or 0)
    except BaseException as error:
        traceback.print_exc()
        status = -signal.SIGINT if isinstance(error, KeyboardInterrupt) else 1
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    if status < 0:
        signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    os._exit(status)


def be_script(file: str, arguments: Sequence[str], environment: Mapping[str, str] | None) -> None:
    """Runs a script as Python does that is given its path."""
    if environment is not None:
        os.environ.clear()
        os.environ |= environment
    os.chdir(Path(file).parent)
    sys.path.insert(0, str(Path(file).parent))
    sys.argv[:] = [file, *arguments]
    main = sys.modules["__main__"].__dict__
    main["__file__"] = file
    exec(compile(Path(file).read_bytes(), file, "exec"), main)


def _loaded(file: str) -> ModuleType:
    """Imports a test's module from its file: it is on no import path."""
    spec = importlib.util.spec_from_file_location(Path(file).stem, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module
