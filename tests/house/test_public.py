"""The public names are frozen, and importing them costs little."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from kit.imports import imported_after, names_of

import headrace as hr

PUBLIC = [
    "ArrayTable",
    "Batch",
    "BestModel",
    "BinaryCrossEntropy",
    "BlockMomentum",
    "Callback",
    "Centered",
    "CheckpointError",
    "ConfigError",
    "CorruptError",
    "Cosine",
    "CrossEntropy",
    "Cursor",
    "DataError",
    "DiLoCo",
    "Draws",
    "Encoding",
    "EMA",
    "EarlyStopping",
    "Elastic",
    "Feed",
    "Focal",
    "Freeze",
    "GradientNorm",
    "HeadraceError",
    "History",
    "Huber",
    "Info",
    "InverseSqrt",
    "L1",
    "L2Prior",
    "Lambda",
    "Length",
    "Linear",
    "LoaderSource",
    "LogFile",
    "Loss",
    "MLflow",
    "MSE",
    "MasterWeights",
    "ModelError",
    "MomentumSGD",
    "Network",
    "NonFiniteError",
    "Objective",
    "OneCycle",
    "Order",
    "OutOfMemoryError",
    "Outcome",
    "Periodic",
    "Progress",
    "Ragged",
    "Reader",
    "Recipe",
    "Record",
    "Rounds",
    "RowMean",
    "Run",
    "RunError",
    "SWA",
    "Schedule",
    "Shard",
    "Sharded",
    "Source",
    "SourceError",
    "Sparse",
    "SpikeGuard",
    "Strategy",
    "Stream",
    "Synchronous",
    "Table",
    "TensorBoard",
    "Term",
    "Terms",
    "Timer",
    "Tracker",
    "Trainer",
    "WSD",
    "WandB",
    "WorkerError",
    "add_format",
    "concat",
    "diff",
    "filter",
    "from_dataset",
    "head",
    "here",
    "launch",
    "load",
    "load_weights",
    "map",
    "mix",
    "open_ctf",
    "open_table",
    "pack",
    "samples",
    "save_pretrained",
    "skip",
    "split",
    "write_table",
    "zip",
]

HEAVY = {
    "yaml",
    "torchmetrics",
    "rich",
    "pyarrow",
    "tensorboard",
    "docstring_parser",
    "matplotlib",
    "sklearn",
    "pandas",
    "scipy",
    "lightning",
    "ray",
}


def imported_by(code: str) -> set[str]:
    """The top-level modules that a fresh interpreter has after this code."""
    script = f"{code}\nimport json, sys\nprint(json.dumps([name.partition('.')[0] for name in sys.modules]))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    return set(json.loads(done.stdout))


def test_the_public_names_are_these() -> None:
    """Whoever adds or removes one changes this list, and the change log."""
    assert sorted(names_of(hr)) == sorted(PUBLIC)


def test_every_public_name_is_there() -> None:
    values = {name: getattr(hr, name) for name in names_of(hr)}
    assert {name: value.__name__ for name, value in values.items()} == {name: name for name in values}
    assert {name for name, value in values.items() if not value.__module__.startswith("headrace.")} == set()
    assert {name for name, value in values.items() if not value.__doc__} == set()
    assert values.keys() <= set(dir(hr))


def test_a_star_import_brings_them_all() -> None:
    names: dict[str, object] = {}
    exec("from headrace import *", names)
    assert set(PUBLIC) <= set(names)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="'headrace' has no attribute 'Trianer'"):
        getattr(hr, "Trianer")  # noqa: B009


def test_the_version_is_a_version() -> None:
    assert all(part.isdigit() for part in hr.__version__.split("."))


def test_importing_the_package_imports_nothing_heavy() -> None:
    imported = imported_by("import headrace")
    assert "headrace" in imported
    assert not imported & (HEAVY | {"torch", "numpy"})


def test_using_every_public_name_imports_torch_and_nothing_else_heavy(tmp_path: Path) -> None:
    imported = imported_after("import headrace as hr\nfor name in hr.__all__: getattr(hr, name)", tmp_path)
    assert "torch" in imported
    assert not imported & HEAVY


def test_what_is_imported_would_be_seen(tmp_path: Path) -> None:
    assert imported_by("import rich.console") & HEAVY == {"rich"}
    assert imported_after("import rich.console", tmp_path) & HEAVY == {"rich"}
