"""Pages with commands are true: their files are written, their commands run in turn, and they print what is shown."""

import signal
import subprocess
from pathlib import Path

import pytest
import yaml
from kit.pages import blocks, difference, run_page
from kit.sampled import nightly

DOCS = Path(__file__).parents[2] / "docs"
PAGE = DOCS / "tutorial.md"


def test_the_tutorial_prints_what_it_shows(tmp_path: Path) -> None:
    assert run_page(PAGE.read_text(), tmp_path) >= 7
    for made in ("runs/first/report.html", "answers.csv", "runs/first/model.pt2"):
        assert (tmp_path / made).is_file()


def test_another_output_is_noticed() -> None:
    """The control: words, numbers and missing lines count; times and what stands for three dots do not."""
    shown = "epoch 1  val/loss 0.21  9,000 samples/s\n...\nended: 10 epochs\n"
    printed = "epoch 1  val/loss 0.211  300 samples/s\nepoch 2\nepoch 3\nended: 10 epochs\n"
    assert difference(shown, printed) == ""
    assert "expected 'ended" in difference(shown, printed.replace("ended: 10", "ended: 20"))
    assert "expected 'epoch 1" in difference(shown, printed.replace("0.211", "0.311"))
    assert "expected 'epoch 1" in difference(shown, printed.replace("val/", "test/"))
    assert "no more lines" in difference(shown, printed + "and more\n")
    assert "got 'epoch 2'" in difference(shown.replace("...\n", ""), printed)


def test_the_blocks_of_the_tutorial_are_found() -> None:
    found = blocks(PAGE.read_text())
    assert len(found) == PAGE.read_text().count("\n```") // 2 >= 15
    assert {block.title for block in found if block.language == "python"} == {
        "make_data.py",
        "churn.py",
        "export.py",
        "serve.py",
    }


@pytest.mark.skipif(not hasattr(signal, "SIGUSR1"), reason="this system has no SIGUSR1")
def test_a_preempted_program_ends_and_goes_on_as_its_page_shows(tmp_path: Path) -> None:
    assert run_page((DOCS / "resume.md").read_text(), tmp_path) == 1
    assert "going on from step" in (tmp_path / "runs" / "job" / "log.txt").read_text()


def test_the_scripts_for_batch_systems_can_be_read() -> None:
    (script,) = (block for block in blocks((DOCS / "resume.md").read_text()) if block.title == "train.sbatch")
    assert subprocess.run(["bash", "-n"], input=script.text, text=True).returncode == 0
    (job,) = (block for block in blocks((DOCS / "resume.md").read_text()) if block.title == "train.yaml")
    pod = yaml.safe_load(job.text)["spec"]["template"]["spec"]
    assert pod["restartPolicy"] == "OnFailure"
    claimed = {volume["name"] for volume in pod["volumes"]}
    assert {mount["name"] for mount in pod["containers"][0]["volumeMounts"]} == claimed


@pytest.mark.parametrize(("sent", "queued"), [("USR1", "requeue 17"), *nightly(("TERM", "no request"))])
def test_a_job_of_slurm_saves_and_is_put_back_into_the_queue(sent: str, queued: str, tmp_path: Path) -> None:
    """With stand-ins for `srun`, which runs the program, and `scontrol`, which notes what it was asked."""
    found = {block.title: block.text for block in blocks((DOCS / "resume.md").read_text()) if block.title}
    for name, command in (("srun", 'shift; exec "$@"'), ("scontrol", 'echo "$@" > queue.txt')):
        (tmp_path / name).write_text(f"#!/bin/sh\n{command}\n")
        (tmp_path / name).chmod(0o755)
    (tmp_path / "train.sbatch").write_text(found["train.sbatch"])
    page = (
        f'```python title="train.py"\n{found["train.py"]}```\n'
        "```bash\n"
        "export SLURM_JOB_ID=17 PATH=$PWD:$PATH\n"
        "bash train.sbatch &\n"
        "until grep -qs '\"epoch\":2,' runs/job/metrics.jsonl; do sleep 0.1; done\n"
        f'kill -{sent} $!; wait $! || echo "exit status $?"\n'
        "cat queue.txt 2>&- || echo no request\n"
        "bash train.sbatch\n"
        "```\n"
        f'```text title="Output"\n...\nexit status 143\n{queued}\n...\nfinished after 60 epochs\n```\n'
    )
    assert run_page(page, tmp_path) == 1
