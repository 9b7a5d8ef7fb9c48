"""A training session: the loop over a source, with progress, cross validation, checkpoints and a test at the end."""

import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from ....data.ragged import Ragged
from ....data.sparse import Sparse
from ....errors import ConfigError
from ..core import Field, Value
from ..device import DeviceDescriptor, use_default_device
from ..io.memory import MinibatchSourceFromData, UserMinibatchSource, checked, looks_at_workers, loops_as_worker
from ..io.sources import MinibatchSource, by_variable
from ..io.streams import MinibatchData
from ..learners.schedules import MinibatchSizeSchedule
from ..learners.schedules import minibatch_size_schedule as minibatch_size_schedule
from .configs import NEVER, frequency_of, size_of, source_of
from .configs import CheckpointConfig as CheckpointConfig
from .configs import CrossValidationConfig as CrossValidationConfig
from .configs import DataUnit as DataUnit
from .configs import TestConfig as TestConfig
from .distributed import DistributedLearner
from .trainer import Trainer


class _Action:
    """Something that is done every so often: when what is counted passes a multiple of the frequency."""

    def __init__(self, every: int, unit: DataUnit, act: Callable[[int], bool]) -> None:
        self.every, self.unit, self._act = every, unit, act
        self._index = self._last = 0
        self.acted = False
        """Whether it was time when it was asked last."""

    def restored(self, count: int) -> None:
        self._index, self._last = count // self.every, count - count % self.every

    def due(self, count: int) -> bool:
        """Acts if it is time; whether the training goes on."""
        self.acted = count // self.every != self._index
        if not self.acted:
            return True
        going = self._act(self._index)
        self._index, self._last = count // self.every, count
        return going

    def finish(self, count: int) -> None:
        if count % self.every and count != self._last:
            self._act(self._index)


class TrainingSession:
    """Trains until the source ends, `max_samples` are seen or a callback says so; see `training_session`."""

    def __init__(
        self,
        trainer: Trainer,
        mb_source: Any,
        mb_size: Any,
        model_inputs_to_streams: Any,
        max_samples: int | None = None,
        progress_frequency: Any = None,
        checkpoint_config: CheckpointConfig | None = None,
        cv_config: CrossValidationConfig | None = None,
        test_config: TestConfig | None = None,
    ) -> None:
        if trainer is None:
            raise ValueError("Trainer must not be None.")
        if mb_source is None:
            raise ValueError("Training minibatch source must not be None.")
        self.trainer, self._size = trainer, size_of(mb_size)
        self._source, streams = source_of(mb_source, model_inputs_to_streams, trainer.loss_function, repeats=True)
        if not streams:
            raise ValueError("Mapping between input vars and streams should not be empty.")
        self._streams = streams
        self._most = NEVER if max_samples is None else max_samples
        if self._most <= 0:
            raise ConfigError(f"max_samples= is at least 1, got {max_samples}.")
        self._checkpoint = checkpoint_config or CheckpointConfig(None)
        self._cv = cv_config or CrossValidationConfig()
        self._test = test_config
        learner = next((each for each in trainer.parameter_learners if isinstance(each, DistributedLearner)), None)
        self._shared = learner if learner is not None and learner.communicator().comm.count > 1 else None
        test = None if test_config is None else test_config.source
        for source, most, what in (
            (self._source, self._most, "Train"),
            (self._cv.source, self._cv.max_samples, "Cross validation"),
            (test, NEVER, "Test"),
        ):
            if source is not None and most >= NEVER and source.is_infinite():
                raise ValueError(
                    f"{what} minibatch source must have a limited number of samples or sweeps: give max_samples=."
                )
        every, unit = frequency_of(progress_frequency)
        actions = [
            (self._checkpoint.frequency, self._checkpoint.unit, self._save),
            (every, unit, self._report),
            (self._cv.frequency, self._cv.unit, self._validate),
        ]
        self._actions = [_Action(*each) for each in actions if each[0]]
        self._device: DeviceDescriptor | None = None
        self._sharing: dict[int, bool] = {}

    def train(self, device: DeviceDescriptor | None = None) -> None:
        self._device = device = device or use_default_device()
        trainer = self.trainer
        restored = 0
        if self._checkpoint.restore and self._checkpoint.filename:
            self._restore(self._checkpoint.filename)
            restored = trainer.total_number_of_samples_seen
        self._train_to_the_end(trainer, device)
        if trainer.total_number_of_samples_seen != restored:
            for action in self._actions:
                action.finish(trainer.total_number_of_units_seen(action.unit))
        name = self._checkpoint.filename
        if name and self._checkpoint.frequency and self._checkpoint.preserve_all and not Path(name).exists():
            self._write(name)
        self._run_test()

    def _train_to_the_end(self, trainer: Trainer, device: DeviceDescriptor) -> None:
        going, stopped = True, False
        while going:
            seen = trainer.total_number_of_samples_seen
            size = 0 if stopped else min(self._size[seen], max(0, self._most - seen))
            self.on_minibatch_start()
            going = trainer.train_minibatch(self._next(self._source, size, self._streams), device=device)
            stopped |= self.on_minibatch_end() is False
            for action in self._actions:
                stopped |= not action.due(trainer.total_number_of_units_seen(action.unit))

    # --- what users may override ---------------------------------------------------------------------------

    def on_minibatch_start(self) -> None:
        """Before every minibatch."""

    def on_minibatch_end(self) -> bool:
        """After every minibatch; `False` stops the training."""
        return True

    def on_checkpoint_start(self, checkpoint_index: int) -> None:
        """Before a checkpoint is written."""

    def on_checkpoint_end(self, checkpoint_index: int) -> None:
        """After a checkpoint was written."""

    def on_cross_validation_start(self, index: int) -> None:
        """Before a cross validation."""

    def on_cross_validation_end(self, index: int, average_error: float, num_samples: int, num_minibatches: int) -> bool:
        if self._cv.callback is None:
            return True
        return self._cv.callback(index, average_error, num_samples, num_minibatches) is not False

    # --- actions -------------------------------------------------------------------------------------------

    def _save(self, index: int) -> bool:
        self.on_checkpoint_start(index)
        assert self._checkpoint.filename is not None
        self._write(self._checkpoint.filename + (str(index) if self._checkpoint.preserve_all else ""))
        self.on_checkpoint_end(index)
        return True

    def _write(self, name: str) -> None:
        self.trainer.save_checkpoint(name, {"source": _state_of(self._source)})

    def _report(self, index: int) -> bool:
        self.trainer.summarize_training_progress()
        return True

    def _validate(self, index: int) -> bool:
        self.on_cross_validation_start(index)
        source = self._cv.source
        if source is None:
            return bool(self.on_cross_validation_end(index, 0.0, 0, 0))
        before = _state_of(source)
        error, samples, minibatches = self._measured(source, self._cv.size, self._cv.streams, self._cv.max_samples)
        source.restore_from_checkpoint(before)
        self.trainer.summarize_test_progress()
        return bool(self.on_cross_validation_end(index, error / samples if samples else 0.0, samples, minibatches))

    def _run_test(self) -> None:
        if self._test is not None and self._test.source is not None:
            self._measured(self._test.source, self._test.size, self._test.streams, NEVER)
            self.trainer.summarize_test_progress()

    def _measured(self, source: Any, sizes: MinibatchSizeSchedule, streams: Any, most: int) -> tuple[float, int, int]:
        """The error over a source, its samples and minibatches; of all workers together."""
        error, samples, minibatches = 0.0, 0, 0
        while samples < most:
            given = self._next(source, min(sizes[samples], most - samples), streams or self._streams)
            total, count = self.trainer.measured(given, self._device)
            numbers = torch.tensor([total, count, bool(given)], dtype=torch.float64)
            if self._shared is not None and self._shared.active:  # until then each worker reads everything
                self._shared.communicator().comm.all_reduce(numbers)
            if not float(numbers[2]):
                break
            total, count = float(numbers[0]), int(numbers[1])
            self.trainer.add_test(total, count)
            error, samples, minibatches = error + total, samples + count, minibatches + 1
        return error, samples, minibatches

    # --- data ----------------------------------------------------------------------------------------------

    def _next(self, source: Any, size: int, streams: Any) -> dict[Any, MinibatchData]:
        """The next minibatch, by variable: this worker's part of it. Empty, where there is none."""
        if size <= 0:
            return {}
        own, count, widened = 0, 1, False
        if self._shared is not None and self._shared.active:
            worker = self._shared.communicator().comm.shard
            own, count = worker.index, worker.count
            widened = self._shared.widens and source is self._source
            size *= count if widened and isinstance(source, MinibatchSource | MinibatchSourceFromData) else 1
        if isinstance(source, MinibatchSource):
            found = source.next_minibatch(size, None, self._device, count, own)
        elif isinstance(source, MinibatchSourceFromData):
            found = source.next_minibatch(size, count, own, self._device)
        elif count == 1 or self._shares_itself(source, size, count, own):
            found = checked(source, source.next_minibatch(size, count, own, self._device), size)
        else:
            total = size * (count if widened else 1)
            found = _part(checked(source, source.next_minibatch(total, 1, 0, self._device), total), own, count)
        if not found or not any(map(len, found.values())):
            return {}
        return by_variable(found, streams)

    def _shares_itself(self, source: UserMinibatchSource, size: int, count: int, own: int) -> bool:
        """Whether a source gives each worker a part of its own; all workers decide alike, once."""
        if (found := self._sharing.get(id(source))) is None:
            assert self._shared is not None
            place = loops_as_worker(source, size, count, own) if (looks := looks_at_workers(source)) else ""
            refused = torch.tensor([float(not looks or bool(place))])
            self._shared.communicator().comm.all_reduce(refused, "max")
            found = self._sharing[id(source)] = not refused
            if not found:
                why = f" It does not return to worker {own} of {count}: it loops at {place}." if place else ""
                warnings.warn(
                    f"{type(source).__name__} is asked as worker 0 of 1, and each worker keeps a part of every "
                    f"minibatch.{why}",
                    UserWarning,
                    stacklevel=4,
                )
        return found

    def _restore(self, filename: str) -> None:
        """Goes on from a checkpoint of this name, or from that with the largest number."""
        parent, name = Path(filename).absolute().parent, Path(filename).name
        pairs = [name] if (parent / name).exists() and (parent / f"{name}.ckp").exists() else []
        if not pairs and parent.exists():
            pattern = re.compile(re.escape(name) + r"(\d+)")
            numbered = [(int(m[1]), p.name) for p in parent.iterdir() if (m := pattern.fullmatch(p.name))]
            pairs = [n for _, n in sorted(numbered, reverse=True) if (parent / f"{n}.ckp").exists()]
        if not pairs:
            return
        external = self.trainer.restore_from_checkpoint(parent / pairs[0])
        self._source.restore_from_checkpoint(external["source"])
        for action in self._actions:
            action.restored(self.trainer.total_number_of_units_seen(action.unit))


def _state_of(source: Any) -> dict[str, Any]:
    """Where a source stands, as plain values by text."""
    state = source.get_checkpoint_state()
    if wrong := [key for key in state if not isinstance(key, str)]:
        raise ValueError(f"the keys of the checkpoint dictionary must be strings, got {wrong[0]!r}.")
    return dict(state)


def _part(minibatch: dict[Any, MinibatchData], own: int, count: int) -> dict[Any, MinibatchData]:
    """Every `count`-th sequence of a minibatch."""
    found = {}
    for info, data in minibatch.items():
        rows = data.data.rows
        places = torch.arange(own, len(rows), count)
        part: Field = rows.take(places) if isinstance(rows, Ragged | Sparse) else rows[places]
        samples = part.items if isinstance(part, Ragged) else len(part)
        found[info] = MinibatchData(Value.over(part), len(part), samples, data.end_of_sweep)
    return found


def training_session(
    trainer: Trainer,
    mb_source: Any,
    mb_size: Any,
    model_inputs_to_streams: Any,
    progress_frequency: Any = None,
    max_samples: int | None = None,
    checkpoint_config: CheckpointConfig | None = None,
    cv_config: CrossValidationConfig | None = None,
    test_config: TestConfig | None = None,
) -> TrainingSession:
    """A session that trains on minibatches of a source; its `train` runs it."""
    configs = checkpoint_config, cv_config, test_config
    return TrainingSession(
        trainer, mb_source, mb_size, model_inputs_to_streams, max_samples, progress_frequency, *configs
    )
