"""A launch of processes that cannot work is refused before anything starts."""

import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from kit.process_workers import nothing

from headrace.engines import processes
from headrace.engines.job import Job
from headrace.engines.launch import launch
from headrace.engines.processes import run
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
    assert processes._devices(Job(nothing, workers=2, devices=[3, 0])) == ["7", "4"]
    assert processes._devices(Job(nothing, workers=9, devices=[])) == []


@pytest.mark.parametrize("option", [{"nodes": 2}, {"address": "10.0.0.1:29500"}])
def test_several_machines_are_for_ray_or_torchrun(option: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"is for engine='ray'.*On several machines, start the script with torchrun"):
        launch(nothing, workers=2, engine="processes", **option)
