"""A launch of processes that cannot work is refused before anything starts."""

import socket
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
import torch
from kit.process_workers import nothing
from kit.sockets import free_port

from headrace.engines import processes
from headrace.engines.job import Job
from headrace.engines.processes import run
from headrace.engines.rendezvous import host_of
from headrace.errors import ConfigError


@pytest.mark.parametrize("main", [lambda: 0, threading.Lock().acquire])
def test_a_function_that_cannot_be_sent_is_refused(main: Callable[[], Any]) -> None:
    with pytest.raises(ConfigError, match="Define main at the top level of a module"):
        run(Job(main, workers=2))


def test_a_function_of_a_session_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nothing, "__module__", "__main__")
    monkeypatch.delattr(sys.modules["__main__"], "__file__", raising=False)
    with pytest.raises(ConfigError, match=r"is in no file that workers could read\. Put it into a module"):
        run(Job(nothing, workers=2))


def test_there_are_no_more_workers_than_accelerators(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"devices=\[0, 1\], on a machine with 0 accelerators"):
        run(Job(nothing, workers=2, devices=[0, 1]))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    with pytest.raises(ConfigError, match=r"5 workers on a machine with 4 accelerators.*pass devices=\[\]"):
        run(Job(nothing, workers=5))
    with pytest.raises(ConfigError, match=r"3 workers for 2 devices: \[0, 3\]"):
        run(Job(nothing, workers=3, devices=[0, 3]))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5,6,7")
    assert processes._devices(Job(nothing, devices=[3, 0]), 2) == ["7", "4"]
    assert processes._devices(Job(nothing, devices=[]), 9) == []


# --- addresses ------------------------------------------------------------------------------------------


def test_several_nodes_need_an_address_and_an_interface() -> None:
    with pytest.raises(ConfigError, match=r"nodes=2 need address=.*and interface=.*got address=None, interface=None"):
        run(Job(nothing, workers=2, nodes=2))
    with pytest.raises(ConfigError, match=r"interface='nowhere0' has no IPv4 address on this machine, which has .*lo"):
        run(Job(nothing, workers=2, nodes=2, address="127.0.0.1:1", interface="nowhere0"))
    with pytest.raises(ConfigError, match=r"an address is a host and a port, like '10\.0\.0\.1:29500', got '127"):
        run(Job(nothing, workers=2, nodes=2, address="127.0.0.1", interface="lo"))


@pytest.mark.slow
def test_an_address_that_nobody_answers_at_is_named() -> None:
    port = free_port()
    job = Job(nothing, workers=2, nodes=2, address=f"192.0.2.1:{port}", interface="lo", timeout_s=0.5)
    with pytest.raises(
        ConfigError, match=rf"nobody answers at address='192\.0\.2\.1:{port}'.*Start the same launch on"
    ):
        run(job)


@pytest.mark.slow
def test_a_port_that_another_program_has_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        with pytest.raises(
            ConfigError, match=rf"address='{address}' is taken by another program\. Choose another port"
        ):
            run(Job(nothing, workers=2, nodes=2, address=address, interface="lo", timeout_s=1.0))


def test_a_network_that_others_can_reach_is_said_to_be_open(capsys: pytest.CaptureFixture[str]) -> None:
    assert host_of(None) == host_of("lo") == "127.0.0.1"
    assert capsys.readouterr().err == ""
    for _, name in socket.if_nameindex():
        with suppress(ConfigError):  # one that has no address
            if not host_of(name).startswith("127."):
                break
    else:
        pytest.skip("there is no network here but that of this machine")
    assert "UNAUTHENTICATED AND UNENCRYPTED: for private networks only" in capsys.readouterr().err
