"""The commands `headrace` and `python` for a shell: forks of a process that has imported torch and headrace."""

import json
import os
import select
import signal
import socket
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from headrace.app.cli import main
from kit import forked

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
COMMAND = f"""#!/bin/sh
'''exec' '{sys.executable}' -IS "$0" "$@"
' '''
import json, os, signal, socket, sys
place = os.path.dirname(sys.argv[0])
with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as server:
    server.connect(place + "/socket")
    words = [os.path.basename(sys.argv[0]), *sys.argv[1:]]
    socket.send_fds(server, [json.dumps([words, os.getcwd(), dict(os.environ)]).encode()], [0, 1, 2])
    process = int(server.recv(100))
    for number in {[int(number) for number in SIGNALS]}:
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, lambda number, _: os.kill(process, number))
    status = int(server.recv(100))
if status < 0:
    signal.signal(-status, signal.SIG_DFL)
    os.kill(os.getpid(), -status)
sys.exit(status)
"""
"""It passes on its words, its files and its signals, and ends as its fork has ended. Its second line is a text to
Python, and to the shell a command: the first line could name no place with a space."""


@contextmanager
def commands() -> Iterator[Path]:
    """A directory for PATH, with the commands."""
    with tempfile.TemporaryDirectory() as at:  # with a short path, as a socket needs
        place = Path(at)
        for name in ("headrace", "python"):
            (place / name).write_text(COMMAND)
            (place / name).chmod(0o755)
        with forked.start(_serve, place, place / "socket") as child:
            child.until("ready")
            yield place


def _serve(path: str) -> None:
    """Forks a process for each command, which forks and watches another one that does what the command says."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for those that watch
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(path)
        listener.listen(8)
        forked.tell("ready")
        while True:
            asker, _ = listener.accept()
            if not os.fork():
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                listener.close()
                _watch(asker)
            asker.close()


def _watch(asker: socket.socket) -> None:
    data, files, _, _ = socket.recv_fds(asker, 1 << 16, 3)
    child = os.fork()
    if not child:
        asker.close()
        _work(files, *json.loads(data))
    asker.send(str(child).encode())
    ended = os.pidfd_open(child)
    if ended not in select.select(list[Any]([ended, asker]), [], [])[0]:  # the command has been killed
        os.kill(child, signal.SIGKILL)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    with suppress(OSError):
        asker.send(str(status).encode())
    os._exit(0)


def _work(files: list[int], words: list[str], directory: str, environment: dict[str, str]) -> None:
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    os.chdir(directory)
    os.environ.clear()
    os.environ |= environment
    forked.end_after(lambda: sys.exit(_call(words)))


def _call(words: list[str]) -> Any:
    if words[0] == "headrace":
        return main(words[1:])
    forked.be_script(os.path.abspath(words[1]), words[2:], None)
    return 0
