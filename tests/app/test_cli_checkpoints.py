"""`headrace checkpoint list` and `export`, and `headrace verify`: what a run has saved, sound or damaged."""

import json
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
from kit import small, trainees
from kit.cli_parts import RECIPE, answer, headrace, refused
from kit.forked import start

import headrace as hr
from headrace.app.recipe import load_recipe
from headrace.step.weights import saved_weights


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a run of 20 updates, with checkpoints after 10, 15 and 20."""
    place = tmp_path_factory.mktemp("checkpoints")
    (place / "sines.py").write_text(RECIPE)
    load_recipe(f"{place}/sines.py:small").run(epochs=4, run=place / "run", progress=False)
    return place


@pytest.fixture
def run(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> Path:
    monkeypatch.chdir(shutil.copytree(trained, tmp_path / "here"))
    capsys.readouterr()
    return Path("run")


def checkpoint(run: Path, step: int) -> Path:
    """The directory of a checkpoint."""
    [found] = run.glob(f"checkpoints/step-{step:012d}-*")
    return found


def damage(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)


def test_list_and_verify_show_every_checkpoint_and_what_is_wrong_with_it(run: Path, capsys: Any) -> None:
    assert [*answer(capsys, "verify", run)["checkpoints"]] == ["10", "15", "20"]
    damage(checkpoint(run, 15) / "optim.safetensors")
    found = answer(capsys, "verify", run, status=1)
    assert ([*found["checkpoints"]], [*found["corrupt"]], found["ok"]) == (["10", "20"], ["15"], False)
    assert headrace("verify", run) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "run: 2 checkpoints are as they were written"
    assert f"{checkpoint(run, 15).name}/optim.safetensors" in lines[1]
    assert lines[2:] == ["no update was made again"]

    (checkpoint(run, 15) / "COMMIT").write_text("0" * 64)
    found = answer(capsys, "checkpoint", "list", run)
    assert [each["step"] for each in found] == [10, 15, 20]
    assert found[2]["bytes"] == sum(file.stat().st_size for file in checkpoint(run, 20).iterdir())
    assert headrace("checkpoint", "list", run) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == [checkpoint(run, step).name for step in (10, 15, 20)]


def train_for_long(run: str) -> None:
    """A training in a process of its own that saves and removes a checkpoint at every update, until it is stopped."""
    trainer = trainees.trainer(microbatch=None)
    trainer.fit(trainees.Rows(), run=hr.Run(run, every="1 step", keep=3), epochs=10**6, progress=False)


def test_a_run_is_sound_while_checkpoints_come_and_go(tmp_path: Path, capsys: Any) -> None:
    run, sound, problems = tmp_path / "run", set[str](), set[str]()
    with start(train_for_long, tmp_path, run) as child:
        while not list(run.glob("checkpoints/step-*")):
            assert not child.wait(0.001)
        while len(sound) < 20:  # different ones: they have come and gone
            assert not child.wait(0), child.output
            status = headrace("verify", run, "--json")
            (problems if status else sound).add(capsys.readouterr().out)
            assert headrace("checkpoint", "list", run) == 0
            capsys.readouterr()
        child.send(signal.SIGTERM)
        assert child.ending() == trainees.PREEMPTED, child.output
    empty = [json.loads(each) for each in problems]  # all that were listed may have gone, if it took long
    assert not any(each["checkpoints"] or each["corrupt"] for each in empty)


def test_a_run_without_checkpoints_is_not_sound(run: Path, capsys: Any) -> None:
    shutil.rmtree(run / "checkpoints")
    for words, status, said in (
        (["checkpoint", "list"], 0, "run has no checkpoints\n"),
        (["verify"], 1, "run: 0 checkpoints are as they were written\nno update was made again\n"),
    ):
        assert headrace(*words, run) == status
        assert capsys.readouterr().out == said
    assert refused(capsys, "checkpoint", "export", run) == "headrace: run has no checkpoint.\n"


# --- export -----------------------------------------------------------------------------------------------


def same(file: Path, run: Path, step: int) -> bool:
    """Whether a file has the weights of a step, and no others."""
    return small.same(safetensors.torch.load_file(file), saved_weights(run, step).tensors["model.safetensors"])


def test_exported_weights_are_those_of_the_checkpoint(run: Path, capsys: Any) -> None:
    for which, step in ((["--which", "last"], 20), (["--which", "10"], 10), ([], 20)):
        out = Path(f"{step}{len(which)}.safetensors")
        assert answer(capsys, "checkpoint", "export", run, "--out", out, *which) == {"file": str(out), "step": step}
        assert same(out, run, step)


def test_the_best_is_exported_if_there_is_one(run: Path, capsys: Any) -> None:
    best = hr.BestModel("val/loss", mode="max")
    made = load_recipe("sines.py:small")
    history = made.run(run=hr.Run("other", keep=1), callbacks=[best], epochs=4, progress=False)
    worst = max(history, key=lambda row: row.get("val/loss", 0.0))["step"]
    assert worst != 20
    assert answer(capsys, "checkpoint", "export", "other") == {"file": "other/model.safetensors", "step": worst}
    assert same(Path("other/model.safetensors"), Path("other"), worst)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("run --which 7", "no checkpoint of step 7. It has those of steps [10, 15, 20]"),
        ("run --which best", "has no best checkpoint: nothing told good from bad"),
        ("run --out sines.py/weights", "there is no directory sines.py"),
        ("run --out sines.py", "sines.py is there already"),
        ("sines.py", "sines.py is a file"),
    ],
)
def test_an_export_that_cannot_be_is_told_in_a_sentence(words: str, told: str, run: Path, capsys: Any) -> None:
    before = sorted(os.walk("."))
    assert told in refused(capsys, "checkpoint", "export", *words.split())
    assert sorted(os.walk(".")) == before
    assert Path("sines.py").read_text() == RECIPE, "what is there is never written over"


def test_a_damaged_checkpoint_is_passed_over_with_a_warning_and_nothing_is_exported_if_all_are(
    run: Path, capsys: Any
) -> None:
    damage(checkpoint(run, 20) / "model.safetensors")
    with pytest.warns(UserWarning, match=r"step-0*20-\d+/model\.safetensors is not what was written.*step-0*15"):
        assert answer(capsys, "checkpoint", "export", run)["step"] == 15
    assert same(run / "model.safetensors", run, 15)
    for step in (10, 15):
        damage(checkpoint(run, step) / "model.safetensors")
    assert headrace("checkpoint", "export", run, "--out", "none") == 1
    assert capsys.readouterr().err.count("model.safetensors is not what was written") == 3
    assert not Path("none").exists()
