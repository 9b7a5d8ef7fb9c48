"""Training and testing by calling a criterion: `criterion.train(data, ...)`."""

import sys
from typing import Any

from ....errors import ConfigError
from ..io.memory import UserMinibatchSource
from ..io.sources import MinibatchSource
from ..learners.schedules import MinibatchSizeSchedule, minibatch_size_schedule
from ..logging.progress import ProgressWriter, average
from ..ops.functions import Function
from ..variables import Record
from .trainer import Trainer, measure
from .training_session import CheckpointConfig, CrossValidationConfig, TestConfig, TrainingSession


class _Collector(ProgressWriter):
    """Keeps what a training has come to."""

    def __init__(self, every: int) -> None:
        super().__init__(every, 0)
        self.updates: list[Record] = []
        self.summaries: list[Record] = []
        self.tests: list[Record] = []

    def on_write_training_update(self, samples: Any, updates: Any, aggregate_loss: Any, aggregate_metric: Any) -> None:
        loss, metric = average(aggregate_loss, samples), average(aggregate_metric, samples)
        self.updates.append(Record(loss=loss, metric=metric, samples=samples[1] - samples[0]))

    def on_write_training_summary(
        self,
        samples: int,
        updates: int,
        summaries: int,
        aggregate_loss: Any,
        aggregate_metric: Any,
        elapsed_milliseconds: int,
    ) -> None:
        loss, metric = average(aggregate_loss, samples), average(aggregate_metric, samples)
        self.summaries.append(Record(loss=loss, metric=metric, samples=samples))

    def on_write_test_summary(
        self, samples: int, updates: int, summaries: int, aggregate_metric: Any, elapsed_milliseconds: int
    ) -> None:
        self.tests.append(Record(metric=average(aggregate_metric, samples), samples=samples))


def train(
    self: Function,
    minibatch_source: Any,
    minibatch_size: Any = 32,
    streams: Any = None,
    model_inputs_to_streams: Any = None,
    parameter_learners: Any = (),
    callbacks: Any = (),
    progress_frequency: Any = None,
    max_epochs: float | None = None,
    epoch_size: int | None = None,
    max_samples: int | None = None,
) -> Record:
    """Trains the parameters of a criterion; returns what every epoch and update came to."""
    sizes = minibatch_size_schedule(minibatch_size) if isinstance(minibatch_size, int) else minibatch_size
    if not isinstance(sizes, MinibatchSizeSchedule):
        raise ValueError("minibatch_size must be an int or the result of minibatch_size_schedule().")
    if max_samples is None:
        if epoch_size is None:
            if isinstance(minibatch_source, MinibatchSource | UserMinibatchSource):
                raise ValueError(
                    "epoch_size must be specified, unless max_samples is given or input is given as arrays."
                )
            first = minibatch_source[0] if isinstance(minibatch_source, tuple) else minibatch_source
            epoch_size = first.shape[0] if hasattr(first, "shape") else len(first)
        max_samples = int((1 if max_epochs is None else max_epochs) * epoch_size)
    elif max_epochs is not None:
        raise ValueError("max_epochs and max_samples are mutually exclusive.")
    kinds = (ProgressWriter, CheckpointConfig, CrossValidationConfig, TestConfig)
    if wrong := [each for each in callbacks if not isinstance(each, kinds)]:
        raise ConfigError(f"callbacks= are progress writers and configs of a session, got {wrong[0]!r}.")
    writers, *configs = ([each for each in callbacks if isinstance(each, kind)] for kind in kinds)
    if any(len(each) > 1 for each in configs):
        raise ConfigError("of each config, one is a callback, got several.")
    progress_frequency = epoch_size if progress_frequency is None else progress_frequency
    every = (
        getattr(writers[0], "freq", sys.maxsize) if writers else max(1, (progress_frequency or sys.maxsize) // sizes[0])
    )
    collector = _Collector(every)
    trainer = Trainer(None, self, parameter_learners, [*writers, collector])
    if streams:
        if model_inputs_to_streams:
            raise ValueError("streams and model_inputs_to_streams are mutually exclusive.")
        model_inputs_to_streams = self.argument_map(*streams)
    held: list[Any] = [each[0] if each else None for each in configs]
    session = TrainingSession(
        trainer, minibatch_source, sizes, model_inputs_to_streams, max_samples, progress_frequency, *held
    )
    session.train()
    found = Record(updates=collector.updates, epoch_summaries=collector.summaries)
    if collector.tests:
        found["test_summary"] = collector.tests[-1]
    return found


def test(
    self: Function,
    minibatch_source: Any,
    minibatch_size: int = 32,
    streams: Any = None,
    model_inputs_to_streams: Any = None,
    callbacks: Any = None,
) -> Record:
    """The mean of a criterion's metric over data, and their samples."""
    metric = self.outputs[-1]
    config = TestConfig(minibatch_source, minibatch_size, model_inputs_to_streams, criterion=self)
    mapped = self.argument_map(*streams) if streams else config.streams
    evaluator = Evaluator(metric, callbacks)
    while batch := config.source.next_minibatch(
        minibatch_size, *(() if isinstance(config.source, MinibatchSource) else (1, 0))
    ):
        evaluator.test_minibatch({v: batch[info] for v, info in mapped.items()})
    return evaluator.finish()


class Evaluator:
    """Measures a model without training it."""

    def __init__(self, eval_function: Any, progress_writers: Any = None) -> None:
        writers = (
            progress_writers if isinstance(progress_writers, list) else [progress_writers] if progress_writers else []
        )
        self._writers, self.evaluation_function = writers, eval_function
        self._total, self._samples = 0.0, 0

    def test_minibatch(self, arguments: Any, device: Any = None) -> float:
        """The mean of the metric over a minibatch."""
        total, count = measure(self.evaluation_function, arguments, device)
        self._total, self._samples = self._total + total, self._samples + count
        for writer in self._writers:
            writer.update_test(count, self._total)
        return total / count if count else 0.0

    def summarize_test_progress(self) -> None:
        """Writers tell what the test came to."""
        for writer in self._writers:
            writer.write_test_summary(self._total)
        self._total, self._samples = 0.0, 0

    def finish(self) -> Record:
        """What the test came to."""
        found = Record(metric=self._total / self._samples if self._samples else 0.0, samples=self._samples)
        self.summarize_test_progress()
        return found


setattr(Function, "train", train)  # noqa: B010
setattr(Function, "test", test)  # noqa: B010
