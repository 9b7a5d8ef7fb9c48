"""What callbacks refuse in one sentence, when they are made or before the first update."""

import sys
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from kit import small

import headrace as hr
from headrace.watch.files import LogFile
from headrace.watch.trackers import MLflow, WandB

X, Y = small.data()
VAL = {"x": X, "y": Y}

WRONG: list[tuple[Callable[[], Any], str]] = [
    (lambda: hr.Callback, r"callbacks= takes Callback objects, got a Callback\. Pass an instance"),
    # averages
    (lambda: hr.EMA(1.1), "decay= is a number from 0 to 1, got 1.1"),
    (lambda: hr.EMA(every="1 min"), "minutes differ"),
    (lambda: hr.EMA(like="lightning"), "'torch', or left out; got 'lightning'"),
    (lambda: [hr.EMA(), hr.EMA(1)], "EMA and EMA; there can be one average"),
    # the best model, and the end
    (lambda: hr.EarlyStopping(patience=0), "patience="),
    (lambda: hr.EarlyStopping(patience=1.5), "patience="),  # type: ignore[arg-type]
    (lambda: hr.EarlyStopping(min_delta=-1.0), "min_delta="),
    (lambda: hr.EarlyStopping(mode="best"), "mode="),
    (lambda: hr.BestModel(k=0), "k="),
    (lambda: hr.EarlyStopping("val/acc"), r"not measured\. Did you mean 'val/accuracy'\? There are: train/loss, "),
    (lambda: hr.EarlyStopping("accuracy"), r"not measured\. Did you mean 'train/accuracy' or 'val/accuracy'\?"),
    (lambda: hr.EarlyStopping("test_loss"), "the test data are scored once"),
    (lambda: hr.EarlyStopping("val/loss/l2"), "'val/loss/l2', which is not measured"),
    (lambda: hr.EarlyStopping("test/loss"), "the test data are scored once, at the end. Look at a number of train or"),
    (lambda: hr.BestModel("val/confusion"), r"should be small or large is not known: say mode=.*There are: train/loss"),
    (lambda: hr.BestModel("val/confusion", mode="max"), "'val/confusion', which is a list. Look at a number"),
    (lambda: [_logs("f1_gap"), hr.BestModel("f1_gap")], "whether 'f1_gap' should be small or large is not known"),
    # frozen parameters
    (lambda: hr.Freeze(), "patterns"),
    (lambda: hr.Freeze("0.weigth"), r"0\.weight"),
    (lambda: hr.Freeze("0.*", until="1 min"), "minutes differ"),
    (lambda: hr.Freeze("0.*", after="3 epochs", until="2 epochs"), "not before"),
    # what is measured, and functions
    (lambda: hr.Timer("z"), "unknown stream 'z'"),
    (lambda: hr.Timer(flops=6), "of 'cpu' are not known. Pass them: peak=312e12"),
    (lambda: hr.Timer(flops=-1), r"above 0, as 6 \* parameters; got -1"),
    (lambda: hr.Lambda(on_epoch_ends=print), "on_epoch_end"),
    (lambda: hr.Lambda(on_epoch_end=3), "on_epoch_end= is a function, got a int"),  # type: ignore[arg-type]
    (lambda: hr.Progress("bars"), r"Progress: unknown style 'bars'\. Did you mean 'bar'\?"),
    # numbers that would hide others
    *((lambda name=name: _logs(name), r"log\(\) takes numbers") for name in ("step", "rate", "val/loss", 3, "")),
    (lambda: hr.Lambda(on_epoch_end=lambda info, row: info.log({"x": "abc"})), r"log\(\) takes numbers"),
    # logs and trackers
    (lambda: LogFile(), r"this training has none.*LogFile\('log.txt'\)"),
    (lambda: hr.TensorBoard(), r"this training has none.*TensorBoard\('tb'\)"),
    (lambda: LogFile(7), "LogFile takes the path"),  # type: ignore[arg-type]
    (lambda: hr.TensorBoard(""), "TensorBoard takes the path"),
    (lambda: LogFile("file/below"), "LogFile cannot write to .*below: .*or name another path"),
    (lambda: hr.TensorBoard("file"), "TensorBoard cannot write to .*file: .*or name another path"),
    (lambda: MLflow(params=["width"]), r"MLflow\(params=\) takes a dict"),  # type: ignore[arg-type]
    (lambda: WandB("project", id="x", resume="must"), "WandB sets id and resume by itself"),
]


def _logs(name: Any) -> hr.Callback:
    return hr.Lambda(on_epoch_end=lambda info, row: info.log({name: 1.0}))


@pytest.mark.parametrize(("make", "told"), WRONG, ids=[told[:40] for _, told in WRONG])
def test_what_cannot_be_is_refused_before_the_first_update(
    make: Callable[[], Any], told: str, in_tmp_path: Any
) -> None:
    Path("folder").mkdir()
    Path("file").touch()
    trainer = small.trainer(metrics=["accuracy", "confusion"])
    before = small.state(trainer.model)
    with pytest.raises(hr.ConfigError, match=told):
        small.fit(trainer, VAL, VAL, VAL, callbacks=np.atleast_1d(make()).tolist(), epochs=1)
    assert small.same(trainer.model, before) or "takes numbers" in told or "a list" in told


@pytest.mark.parametrize(
    ("options", "callback", "told"),
    [
        ({"strategy": hr.Periodic("2 steps")}, hr.EMA, "Use strategy=hr.Synchronous"),
        ({}, hr.EarlyStopping, "EarlyStopping looks at 'val/loss', and there are no val data. .* a number of train"),
    ],
)
def test_what_a_trainer_cannot_work_with_is_refused(options: dict[str, Any], callback: Any, told: str) -> None:
    with pytest.raises(hr.ConfigError, match=told):
        small.fit(small.trainer(**options), (X, Y), callbacks=[callback()])


@pytest.mark.parametrize(("kind", "name"), [(MLflow, "mlflow"), (WandB, "wandb")])
def test_a_package_that_is_missing_is_named_with_what_installs_it(kind: Any, name: str) -> None:
    for missing in (
        None,
        SimpleNamespace(__spec__=ModuleSpec(name, None)),
    ):  # a directory that happens to have the name is no package
        with pytest.MonkeyPatch.context() as patch:
            patch.setitem(sys.modules, name, missing)
            with pytest.raises(hr.ConfigError, match=rf'needs {name}, .*: pip install "headrace\[{name}\]"'):
                kind()


@pytest.mark.parametrize("hook", ["on_report", "on_checkpoint", "on_fit_end"])
def test_numbers_that_come_after_the_report_are_refused(hook: str, tmp_path: Path) -> None:
    late = hr.Lambda(**{hook: lambda info, *_: info.step and info.log({"own/late": 1.0})})
    with pytest.raises(hr.ConfigError, match="own/late: the report of this step is complete"):
        small.fit(small.trainer(), callbacks=[late], run=tmp_path / "run")


@pytest.mark.parametrize("ask", [lambda info: info.set_rate(0.1), lambda info: info.freeze("0.*")])
def test_a_center_cannot_be_asked_for_changes(ask: Any) -> None:
    def main() -> None:
        small.fit(small.trainer(strategy=hr.Elastic("2 steps")), callbacks=[hr.Lambda(on_step_end=ask)])

    with pytest.raises(hr.ConfigError, match="at a center cannot agree on"):
        hr.launch(main, workers=2)
