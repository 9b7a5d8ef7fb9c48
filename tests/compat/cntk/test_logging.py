"""Lines, files and curves of a training's progress are those of CNTK."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import headrace.compat.cntk as C
from headrace.compat.cntk.logging import ProgressPrinter


def run(writer: Any, minibatches: int = 4, summaries: tuple[int, ...] = (2, 4), tests: int = 0) -> None:
    """Four minibatches of ten samples, with losses 1, 2, 3, 4 and metrics 0.1, 0.2, 0.3, 0.4."""
    loss = metric = 0.0
    for k in range(1, minibatches + 1):
        loss, metric = loss + 10 * k, metric + k
        writer.update_training(10, loss, metric)
        if k in summaries:
            writer.write_training_summary(loss, metric)
            loss = metric = 0.0
    for k in range(tests):
        writer.update_test(5, 4.6 * (k + 1))
    if tests:
        writer.write_test_summary(4.6 * tests)


@pytest.fixture
def lines(capsys: pytest.CaptureFixture[str]) -> Callable[[], list[str]]:
    def read() -> list[str]:
        return [
            re.sub(r"\d+\.\d+s \( *\d+\.\d+ samples/s\)", "TIME", line) for line in capsys.readouterr().out.splitlines()
        ]

    return read


def test_summaries_are_told_by_epochs(lines: Any) -> None:
    run(ProgressPrinter(tag="Training", num_epochs=10))
    assert lines() == [
        "Finished Epoch[1 of 10]: [Training] loss = 1.500000 * 20, metric = 15.00% * 20 TIME;",
        "Finished Epoch[2 of 10]: [Training] loss = 3.500000 * 20, metric = 35.00% * 20 TIME;",
    ]
    run(ProgressPrinter(metric_is_pct=False), summaries=(4,))
    assert lines() == ["Finished Epoch[1]: loss = 2.500000 * 40, metric = 0.250000 * 40 TIME;"]


def test_minibatches_are_told_every_so_often_and_the_first_ones_each(lines: Any) -> None:
    run(ProgressPrinter(freq=2), summaries=())
    assert lines() == [
        " Minibatch[   1-   2]: loss = 1.500000 * 20, metric = 15.00% * 20;",
        " Minibatch[   3-   4]: loss = 3.500000 * 20, metric = 35.00% * 20;",
    ]
    run(ProgressPrinter(freq=3, first=2, metric_is_pct=False), summaries=())
    assert lines() == [
        " Minibatch[   1-   1]: loss = 1.000000 * 10, metric = 0.100000 * 10;",
        " Minibatch[   2-   2]: loss = 2.000000 * 10, metric = 0.200000 * 10;",
        " Minibatch[   3-   3]: loss = 3.000000 * 10, metric = 0.300000 * 10;",
    ]


def test_a_frequency_of_0_tells_after_1_3_7_minibatches_in_columns_without_summaries(lines: Any) -> None:
    run(ProgressPrinter(freq=0), minibatches=4, summaries=(4,))
    assert lines() == [
        " average      since    average      since      examples",
        "    loss       last     metric       last              ",
        " ------------------------------------------------------",
        "        1          1        0.1        0.1            10",
        "        2        2.5        0.2       0.25            30",
    ]


def test_tests_are_told_with_their_minibatches(lines: Any) -> None:
    run(ProgressPrinter(test_freq=2), minibatches=0, tests=5)
    assert lines() == [
        " Evaluation Minibatch[   1-   2]: metric = 92.00% * 10;",
        " Evaluation Minibatch[   3-   4]: metric = 92.00% * 10;",
        "Finished Evaluation [1]: Minibatch[1-5]: metric = 92.00% * 25;",
    ]


def test_a_file_is_written_in_place_of_the_output_with_the_number_of_the_worker(tmp_path: Path, lines: Any) -> None:
    name = str(tmp_path / "log")
    printer = ProgressPrinter(log_to_file=name, rank=3, num_epochs=5)
    run(printer, summaries=(4,))
    printer.end_progress_print("over")
    assert lines() == [f"Redirecting log to file {name}rank3"]
    text = Path(f"{name}rank3").read_text().splitlines()
    assert text[0] == f"{name}rank3"
    assert text[1].startswith("Finished Epoch[1 of 5]: loss = 2.500000 * 40")
    assert text[2:] == ["over"]


def test_learners_tell_their_rates_and_momenta_when_they_change(lines: Any) -> None:
    x = C.input_variable(1)
    w = C.parameter((1, 1), 1)
    rate = C.learning_parameter_schedule_per_sample([0.5, 0.25], epoch_size=4)
    learner = C.momentum_sgd([w], rate, C.momentum_schedule(0.9))
    trainer = C.Trainer(None, C.squared_error(C.times(x, w), [0.0]), [learner], [ProgressPrinter()])
    for _ in range(3):
        trainer.train_minibatch({x: np.ones((2, 1), np.float32)})
    assert lines() == [
        "Learning rate per 1 samples: 0.5",
        "Momentum per minibatch: 0.9",
        "Learning rate per 1 samples: 0.25",
    ]
