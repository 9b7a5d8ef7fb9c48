"""`headrace doctor`: it shows what there is and what is missing, with the remedy."""

import importlib.metadata
import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from headrace.app.cli import doctor, main

PARTS = ["versions", "devices", "space"]


def test_it_tells_a_person_and_a_program_of_all_parts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--run", str(tmp_path / "runs" / "x")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if line in PARTS] == PARTS
    for fact in (torch.__version__, "threads of torch", "cores", "free", "glibc"):
        assert any(fact in line for line in lines), fact
    assert list(tmp_path.iterdir()) == [], "it leaves nothing behind"
    assert main(["doctor", "--run", str(tmp_path), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert list(document) == [*PARTS, "findings"]
    assert document["devices"]["torch"] == torch.__version__
    assert document["devices"]["cores"] >= 1


def test_packages_that_are_missing_are_shown_with_the_command_that_installs_them(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    version, missing = importlib.metadata.version, ["mlflow", "rich"]

    def without_some(name: str) -> str:
        if name in missing:
            raise importlib.metadata.PackageNotFoundError(name)
        return version(name)

    monkeypatch.setattr(importlib.metadata, "version", without_some)
    for status in (0, 1):
        assert main(["doctor", "--json"]) == status
        document = json.loads(capsys.readouterr().out)
        assert document["versions"]["mlflow"] == 'not installed: pip install "headrace[mlflow]"'
        assert document["versions"]["sklearn"] == version("scikit-learn")
        assert "rich: not installed. pip install rich." in document["findings"]
        missing.append("numpy")  # nothing can be trained without it


def test_a_torch_that_cannot_be_imported_ends_with_status_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    assert main(["doctor"]) == 1
    assert "torch: cannot be imported: " in capsys.readouterr().out


def advice(facts: Any) -> dict[str, str]:
    """What to do, by the fact."""
    return {name: do for name, _, do in facts if do}


def test_a_place_that_cannot_be_written_or_is_full_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    facts = [*doctor.space(tmp_path / "runs")]
    assert (facts[0][1], advice(facts)) == (str(tmp_path), {})
    (tmp_path / "file").touch()
    monkeypatch.setattr(doctor, "LEAST_FREE", 1 << 62)
    found = advice(doctor.space(tmp_path / "file" / "runs"))
    assert (found["directory"].partition(":")[0], found["free"][:4]) == ("It cannot be written", "Free")


class Card:
    """What torch says of a CUDA device."""

    name = "NVIDIA H200"


def test_devices_are_listed_cuda_with_its_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    answers: dict[str, Any] = {
        "is_available": True,
        "device_count": 1,
        "get_device_properties": Card,
        "mem_get_info": (140 * 10**9, 150 * 10**9),
    }
    for name, answer in answers.items():
        monkeypatch.setattr(torch.cuda, name, lambda *device, answer=answer: answer)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    facts = [*doctor.devices()]
    found = {name: value for name, value, _ in facts}
    assert found["cuda:0"] == "NVIDIA H200, 150 GB, 140 GB free"
    assert (found["mps"], advice(facts)) == ("available", {})


@pytest.mark.parametrize(("hidden", "do"), [("", "unset CUDA_VISIBLE_DEVICES"), (None, "Install the build")])
def test_a_device_that_torch_does_not_use_is_told_with_the_remedy(
    hidden: str | None, do: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_there = Path.exists
    monkeypatch.setattr(Path, "exists", lambda path: str(path) == "/dev/nvidiactl" or is_there(path))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    if hidden is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", hidden)
    assert advice(doctor.devices())["NVIDIA"].startswith(do)
