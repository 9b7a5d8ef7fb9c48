"""A scheduler wants its machine back: a signal at any place of a training saves it, and ends it with status 143."""

import signal
from pathlib import Path

import pytest
from kit import trainees
from kit.forked import hear, hold, start, start_script
from kit.sampled import sampled

import headrace as hr

PREEMPTED = trainees.PREEMPTED

PLACES = [  # where the signal comes, and the number of the update, or of the question for data, at which it does
    ("data", 4),
    ("save", 15),
    ("validation", 10),
]
AWAITED = {"data": "ends at", "save": "checkpoint"}  # before the thread that is not the main one goes on
MORE_PLACES = [
    *[("fit start", 0), ("forward", 1), ("backward", 7), ("epoch end", 20), ("test", 30)],
    *[("forward", step) for step in (2, 5, 10, 11, 29, 30)],
    *[("backward", step) for step in (1, 10, 11, 15, 20, 30)],
    *[("data", question) for question in (1, 2, 5, 6, 9)],
    *[("save", step) for step in (5, 10, 25)],
    *[("validation", 20), ("validation", 30)],
]


@pytest.mark.parametrize(
    ("place", "number"),
    [*PLACES, *[pytest.param(*where, marks=pytest.mark.slow) for where in sampled(MORE_PLACES, keep=MORE_PLACES[:5])]],
)
def test_sigterm_anywhere_saves_at_an_update_and_nothing_is_lost(place: str, number: int, tmp_path: Path) -> None:
    run = tmp_path / "run"
    with start(trainees.train, tmp_path, run, place, number) as child:
        child.until("there")
        if place == "data" and number > 1:  # the updates that there are rows for are made first
            trainees.told(child, f"step {2 * (number - 1)}")
        if place == "save":  # the loop goes on to the next save, which waits
            trainees.told(child, f"checkpoint {number + 5}")
        assert trainees.preempted(child, awaited=AWAITED.get(place)) == PREEMPTED

    step = trainees.last_step(run)
    assert f"ends at {step}" in child.told
    steps = [int(line.split()[1]) for line in child.told if line.startswith("step ")]
    assert steps == list(range(1, step + 1))
    assert step in {"fit start": (0, 1), "data": range(2 * number - 1), "save": (number + 5,)}.get(place, (number,)), (
        "the update at hand is completed, and no other is made"
    )
    assert trainees.finished(run) == trainees.reference()


@pytest.mark.parametrize(("number", "status"), [(signal.SIGUSR1, PREEMPTED), (signal.SIGINT, -signal.SIGINT)])
def test_slurm_and_ctrl_c_save_as_well(number: int, status: int, tmp_path: Path) -> None:
    run = tmp_path / "run"
    with start(trainees.train, tmp_path, run, "backward", 13) as child:
        child.until("there")
        assert trainees.preempted(child, number) == status
        assert ("KeyboardInterrupt" in child.output) == (number == signal.SIGINT)
    assert trainees.last_step(run) == 13
    assert f"{signal.Signals(number).name} received" in (run / "log.txt").read_text()
    assert trainees.finished(run) == trainees.reference()


SCRIPT = """
import os, signal, sys
import torch
import headrace as hr

class Stop(hr.Callback):
    def on_step_end(self, info):
        if info.step == 7 and sys.argv[1] != "scores":
            os.kill(os.getpid(), signal.SIGINT)
        if info.step == 32:
            hook = model.register_forward_hook(lambda *_: (hook.remove(), os.kill(os.getpid(), signal.SIGINT)) and None)

model = torch.nn.Linear(4, 2)
trainer = hr.Trainer(model, hr.MSE(), torch.optim.SGD(model.parameters(), lr=0.1), batch_size=8)
data = torch.randn(64, 4), torch.randn(64, 2)
if sys.argv[1] == "caught":
    try:
        trainer.fit(data, epochs=4, run="a run", callbacks=[Stop()], progress=False)
    except KeyboardInterrupt as error:
        raise ValueError("on purpose") from error
trainer.fit(data, data, epochs=4, run="a run", callbacks=[Stop()], progress=False)
"""


@pytest.mark.parametrize("how", ["", "caught", "scores"])
def test_a_script_that_ctrl_c_ends_says_how_to_go_on_and_shows_no_traceback(how: str, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    with start_script(tmp_path / "script.py", how) as child:
        status = child.ending()
    lines = child.output.splitlines()
    left = "step 32 in a run; run again to complete it" if how == "scores" else "step 7 in a run; run again to go on"
    assert lines[0] == f"headrace: saved at {left}"
    if how == "caught":  # another error shows all that it knows
        assert status == 1
        assert lines[-1] == "ValueError: on purpose"
    else:
        assert (status, len(lines)) == (-signal.SIGINT, 1)


# --- a second signal --------------------------------------------------------------------------------------


def train_asked_twice(run: str, place: str, number: int) -> None:
    """The training, which waits for a signal at a place, or at the checkpoint after it, and then for another."""

    class Holds(hr.Callback):
        def on_checkpoint(self, info: hr.Info) -> None:
            if place == "save" and info.step == number + 5:
                hold("there")

    def there() -> None:
        if place == "save":
            hear()  # which nobody says: what is written is never complete
        hold("there")
        hold("still there")

    trainees.Watched(place, number, there).fit(run, callbacks=[Holds()])


@pytest.mark.parametrize(("place", "number"), [("save", 15), pytest.param("backward", 13, marks=pytest.mark.slow)])
def test_a_second_sigterm_ends_at_once_and_leaves_the_last_checkpoint(place: str, number: int, tmp_path: Path) -> None:
    run = tmp_path / "run"
    with start(train_asked_twice, tmp_path, run, place, number) as child:
        child.until("there")
        child.send(signal.SIGTERM)
        child.until("heard")
        assert trainees.preempted(child) == -signal.SIGTERM
        assert not any(line.startswith("ends at") for line in child.told)
    assert trainees.last_step(run) in (5, 10), "that of step 10 may have been under way"
    if place == "save":
        assert [path.name for path in run.glob("checkpoints/step-*15-*") if not (path / "COMMIT").exists()]
    assert trainees.finished(run) == trainees.reference()
