"""`headrace doctor`: it says what there is and what is missing, and goes on where one part cannot be told."""

import importlib
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from headrace.app.cli import doctor, main
from headrace.app.cli.doctor import Finding, Part

PARTS = ["versions", "devices", "space"]


def test_it_tells_a_person_of_all_parts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--run", str(tmp_path / "runs" / "x")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if line in PARTS] == PARTS
    for fact in (torch.__version__, "threads of torch", "cores", "free", "glibc"):
        assert any(fact in line for line in lines), fact
    assert list(tmp_path.iterdir()) == [], "it leaves nothing behind"


def test_a_program_reads_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--run", str(tmp_path), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert list(document) == [*PARTS, "findings"]
    assert document["versions"]["torch"] == torch.__version__
    assert document["devices"]["cores"] >= 1
    assert all(set(finding) == {"part", "what", "do", "stops"} for finding in document["findings"])


@pytest.mark.parametrize("part", PARTS)
def test_a_part_that_fails_says_so_and_the_others_go_on(
    part: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails() -> Part:
        raise RuntimeError("no such file:\nanywhere")

    monkeypatch.setattr(
        doctor, "checks", lambda where: {name: lambda: Part({"a": 1}, []) for name in PARTS} | {part: fails}
    )
    assert main(["doctor", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document[part] == {"could not be told": "RuntimeError: no such file: anywhere"}
    assert [name for name in PARTS if document[name] == {"a": 1}] == [name for name in PARTS if name != part]


def test_what_is_not_installed_is_told_with_the_command_that_does(monkeypatch: pytest.MonkeyPatch) -> None:
    found = doctor._version
    monkeypatch.setattr(doctor, "_version", lambda name: None if name in ("ray", "onnxscript", "rich") else found(name))
    part = doctor.versions()
    assert part.facts["ray"] == 'not installed: pip install "headrace[ray]"'
    assert part.facts["onnx"] == 'not installed: pip install "headrace[onnx]"'
    assert part.facts["sklearn"] == found("scikit-learn")
    assert Finding("rich is not installed", "pip install rich") in part.findings


@pytest.mark.takes_turns
@pytest.mark.parametrize("why", ["missing", "broken"])
def test_it_fails_only_where_nothing_can_be_trained(
    why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found, imported = doctor._version, importlib.import_module

    def broken(name: str) -> Any:
        raise ImportError("libgomp.so.1: cannot open shared object file")

    if why == "missing":
        monkeypatch.setattr(doctor, "_version", lambda name: None if name == "torch" else found(name))
    else:
        monkeypatch.setattr(
            doctor.importlib,
            "import_module",
            lambda name, *more: broken(name) if name == "torch" else imported(name, *more),
        )
    assert main(["doctor", "--run", str(tmp_path)]) == 1
    out = capsys.readouterr().out
    assert ("! torch is not installed" in out, "! torch cannot be imported: ImportError: libgomp" in out) == (
        why == "missing",
        why == "broken",
    )


def test_more_threads_than_cores_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_cores", lambda: 2)
    torch.set_num_threads(3)
    part = doctor.devices()
    assert Finding("torch uses 3 threads on 2 cores: they wait for each other", "OMP_NUM_THREADS=2") in part.findings


def test_a_place_that_cannot_be_written_or_is_full_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert doctor.space(tmp_path / "runs").facts["directory"] == str(tmp_path)
    (tmp_path / "file").touch()
    monkeypatch.setattr(doctor, "LEAST_FREE", 1 << 62)
    full, closed = doctor.space(tmp_path / "file" / "runs").findings
    assert "free" in full.what
    assert closed.what == f"{tmp_path / 'file'} cannot be written"
    assert not full.stops
    assert not closed.stops


class Card:
    """What torch says of a CUDA device."""

    name = "NVIDIA H200"


@pytest.mark.parametrize(("capability", "told"), [((9, 0), 1), ((7, 5), 0)])
def test_cuda_devices_are_listed_with_their_memory(
    capability: tuple[int, int], told: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, answer in {
        "is_available": True,
        "device_count": 1,
        "get_device_properties": Card,
        "mem_get_info": (140 * 10**9, 150 * 10**9),
        "get_device_capability": capability,
    }.items():
        monkeypatch.setattr(torch.cuda, name, lambda *device, answer=answer: answer)
    part = doctor.devices()
    assert part.facts["cuda:0"] == "NVIDIA H200, 150 GB, 140 GB free"
    assert len(part.findings) == told


@pytest.mark.parametrize(("hidden", "do"), [("", "unset CUDA_VISIBLE_DEVICES"), (None, "Install the build")])
def test_a_device_that_torch_does_not_use_is_told_with_the_reason(
    hidden: str | None, do: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_there = Path.exists
    monkeypatch.setattr(Path, "exists", lambda path: str(path) == "/dev/nvidiactl" or is_there(path))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.version, "cuda", None if hidden is None else "13.0")
    if hidden is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", hidden)
    (finding,) = doctor.devices().findings
    assert finding.do.startswith(do)
