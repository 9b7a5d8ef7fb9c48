"""`headrace rehearse`: what is printed, what is refused."""

import json
from pathlib import Path
from typing import Any

import pytest
from kit.cli_parts import headrace, refused

import headrace as hr
from headrace.app.recipe import load_recipe, merged, set_strategy
from headrace.app.rehearse import TIME, rehearse
from headrace.app.strategies import STRATEGIES, parse_strategy
from headrace.errors import ConfigError

RECIPE = """
import torch
from torch import nn
import headrace as hr

def made(fit):
    rows = torch.Generator().manual_seed(0)
    x = torch.randn(200, 4, generator=rows)
    y = (x[:, 0] > x[:, 1]).long()
    torch.manual_seed(0)
    model = nn.Linear(4, 2)
    trainer = hr.Trainer(model, hr.CrossEntropy(), torch.optim.SGD(model.parameters(), lr=0.5), batch_size=8)
    return hr.Recipe(trainer, (x[:160], y[:160]), (x[160:], y[160:]), fit=fit)

def small() -> hr.Recipe:
    return made({"epochs": 2, "run": "runs/mine", "progress": True})

class Fails(hr.Callback):
    def on_epoch_end(self, info, row):
        if type(info.trainer.strategy).__name__ == "Synchronous":
            raise hr.DataError("on purpose")

def picky() -> hr.Recipe:
    return made({"epochs": 2, "callbacks": [Fails()]})

def timed() -> hr.Recipe:
    return made({"minutes": 1})

def counted() -> hr.Recipe:
    return made({"steps": 5})
"""
SLOW = hr.Network(bandwidth="1 Mbit", latency="1 ms", rows_per_s=1e3)


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: Any) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "recipe.py").write_text(RECIPE)
    return tmp_path


def rehearsed(*words: str) -> int:
    return headrace("rehearse", "recipe.py:small", *words)


# --- a rehearsal -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", STRATEGIES)
def test_every_strategy_is_rehearsed_by_its_name_and_learns(name: str) -> None:
    every = "" if name == "synchronous" else ":every=2 steps"
    found = rehearse("recipe.py:small", name + every, workers=4, network=SLOW)
    first, second = found["rows"]
    assert first["val/loss"] > second["val/loss"] == found["val/loss"]
    assert 0 < first[TIME] < second[TIME] <= found[TIME]
    assert found["computing"] + found["communicating"] + found["idle"] == pytest.approx(1)
    assert found["updates"] == (40 if name == "synchronous" else 10)
    assert sum(worker["rows"] for worker in found["workers"]) == 320, "two epochs, each row once"


def test_a_rehearsal_is_the_training_that_launch_makes() -> None:
    """Nothing but the clock is added to it."""

    def plain() -> Any:
        made = load_recipe("recipe.py:small")
        set_strategy(made.trainer, hr.Periodic("2 steps"))
        return made.trainer.fit(made.train, made.val, epochs=2, progress=False).rows

    found = rehearse("recipe.py:small", "periodic:every=2 steps", workers=3, network=SLOW)
    rows = hr.launch(plain, workers=3, network=SLOW)
    assert [{key: row[key] for key in rows[0]} for row in found["rows"]] == rows


def test_a_slower_network_changes_the_time_and_not_the_losses() -> None:
    slow, quick = (rehearse("recipe.py:small", "diloco", workers=2, network=n) for n in (SLOW, hr.Network()))
    assert [row["val/loss"] for row in slow["rows"]] == [row["val/loss"] for row in quick["rows"]]
    assert slow[TIME] > 2 * quick[TIME]
    assert slow["sent_bytes"] == pytest.approx(quick["sent_bytes"], abs=8), (
        "but for the digits of a worker's rows a second"
    )


def test_limits_that_are_asked_for_replace_those_of_the_recipe_and_nothing_is_kept(place: Path) -> None:
    found = rehearse("recipe.py:counted", "periodic", workers=2, network=SLOW, options={"epochs": 1})
    assert found["updates"] == 10, "an epoch, where the recipe makes 5 steps"
    assert rehearse("recipe.py:counted", "periodic", workers=2, network=SLOW)["updates"] == 5
    assert merged({"epochs": 2, "scan": True}, {"steps": 5}) == {"scan": True, "steps": 5}
    assert merged({"epochs": 2}, {"run": "here"}) == {"epochs": 2, "run": hr.Run("here")}
    assert not (place / "runs").exists()


# --- what is printed --------------------------------------------------------------------------------------


def test_what_came_before_a_strategy_that_fails_is_told(capsys: Any) -> None:
    both = ["--workers", "4", "--strategy", "periodic", "--strategy", "synchronous"]
    assert headrace("rehearse", "recipe.py:picky", *both) == 1
    said = capsys.readouterr()
    assert said.out.splitlines()[1].startswith("periodic ")
    assert said.err.startswith("headrace: synchronous: on purpose")
    assert rehearsed(*both, "--strategy", "elastic:every=2 min") == 2
    assert capsys.readouterr().out == "", "known before any work is done"


def test_json_says_all_of_it(capsys: Any) -> None:
    cluster = ["--latency", "1 ms", "--rows-per-s", "1e3"]
    assert rehearsed("--workers", "2", "--strategy", "periodic", "--steps", "10", *cluster, "--json") == 0
    said = json.loads(capsys.readouterr().out)
    (one,) = said["strategies"]
    assert one["strategy"] == "periodic"
    assert one["val/loss"] == one["rows"][-1]["val/loss"]
    assert [each["computing_s"] for each in one["workers"]] == pytest.approx([10 * 8 / 1e3] * 2)


# --- what is refused -------------------------------------------------------------------------------------


def test_a_recipe_that_ends_by_the_clock_is_refused_unless_another_limit_is_given() -> None:
    with pytest.raises(ConfigError, match="virtual workers cannot measure"):
        rehearse("recipe.py:timed", "periodic", workers=2, network=SLOW)
    assert rehearse("recipe.py:timed", "periodic", workers=2, network=SLOW, options={"steps": 2})["updates"] == 2


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("diloco", {"every": "500 steps", "lr": 0.7}),
        ("periodic:every=16 steps,weights=equal", {"every": "16 steps", "weights": "equal"}),
        ("Block_Momentum: every = 2 epochs , nesterov=true", {"every": "2 epochs", "nesterov": True}),
        ("elastic:alpha=0.5,take_center=True", {"alpha": 0.5, "take_center": True}),
        ("synchronous:compress=bf16", {"compress": "bf16"}),
        ("periodic:", {"every": "1 epoch"}),
    ],
)
def test_a_strategy_is_said_by_name_and_options(text: str, found: dict[str, Any]) -> None:
    strategy = parse_strategy(text)
    given = {key: getattr(strategy, key) for key in found}
    assert {key: str(value) if isinstance(value, hr.Length) else value for key, value in given.items()} == found


WRONG = [
    ("--workers 0", 2, 'Invalid value "0" for --workers. Must be >= 1.'),
    ("--epochs 0", 2, 'Invalid value "0" for --epochs. Must be >= 1.'),
    ("--strategy dilco", 2, "unknown strategy 'dilco'. Did you mean 'diloco'?"),
    ("--strategy diloco:ever=3", 2, "unknown option of diloco 'ever'. Did you mean 'every'?"),
    ("--workers 161", 1, "161 workers for 160 rows of training data"),
    ("--bandwidth 10", 1, "--bandwidth is a number and a unit"),
    ("--every 3min", 1, "minutes differ from run to run"),
]
STRATEGIES_THAT_ARE_NONE = [
    ("", "unknown strategy ''"),
    ("periodic(every='2 steps')", "unknown strategy"),
    ("__import__('os')", "unknown strategy"),
    ("periodic:outer=torch.optim.SGD", "unknown option of periodic 'outer'"),
    ("periodic:every", "options are written as"),
    ("periodic:every=", "options are written as"),
    ("diloco:lr=1,lr=2", "lr is given twice"),
    ("diloco:lr=high", "lr: expected float, got 'high'"),
    ("diloco:lr=nan", "lr= is greater than 0"),
    ("elastic:lease=1.5", "lease: expected int, got '1.5'"),
    ("elastic:take_center=half", "take_center: expected bool, got 'half'"),
    ("synchronous:compress=bf15", "compress: expected bf16|fp16, got 'bf15'"),
]


@pytest.mark.parametrize(("words", "status", "told"), WRONG)
def test_what_makes_no_sense_is_said_in_a_sentence(words: str, status: int, told: str, capsys: Any) -> None:
    said = refused(
        capsys, "rehearse", "recipe.py:small", "--workers", "2", "--strategy", "diloco", *words.split(), status=status
    )
    assert told in said


def test_a_strategy_that_there_is_not_is_refused() -> None:
    for text, complaint in STRATEGIES_THAT_ARE_NONE:
        with pytest.raises(ConfigError) as caught:
            parse_strategy(text)
        assert complaint in str(caught.value)
