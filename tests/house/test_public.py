"""The public names are there and typed, and importing them costs little. The pages of the reference list them."""

import json
import subprocess
import sys

import pytest
import torch
from kit.imports import names_of

import headrace as hr

HEAVY = {"yaml", "torchmetrics", "rich", "pyarrow", "tensorboard", "docstring_parser", "matplotlib"}
HEAVY |= {"sklearn", "pandas", "scipy", "lightning", "ray"}


def imported_by(code: str) -> set[str]:
    """The top-level modules that a fresh interpreter has after this code."""
    script = f"{code}\nimport json, sys\nprint(json.dumps([name.partition('.')[0] for name in sys.modules]))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=400, check=True)
    return set(json.loads(done.stdout))


def test_every_public_name_is_there() -> None:
    values = {name: getattr(hr, name) for name in names_of(hr)}
    assert {name: value.__name__ for name, value in values.items()} == {name: name for name in values}
    assert {name for name, value in values.items() if not value.__module__.startswith("headrace.")} == set()
    assert {name for name, value in values.items() if not value.__doc__} == set()
    assert values.keys() <= set(dir(hr))


def test_a_star_import_brings_them_all() -> None:
    names: dict[str, object] = {}
    exec("from headrace import *", names)
    assert set(names_of(hr)) <= set(names)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="'headrace' has no attribute 'Trianer'"):
        getattr(hr, "Trianer")  # noqa: B009


def test_mypy_finds_mistakes_in_a_user_s_calls() -> None:
    """scripts/check fails on a comment that ignores an error which mypy does not find."""
    net = torch.nn.Linear(2, 3)
    trainer = hr.Trainer(net, hr.CrossEntropy(), torch.optim.SGD(net.parameters(), lr=0.1))
    data = torch.zeros(4, 2), torch.zeros(4, dtype=torch.int64)
    with pytest.raises(hr.ConfigError, match="epochs"):
        trainer.fit(data, epochs="three")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="epoch"):
        trainer.fit(data, epoch=3)  # type: ignore[call-arg]


def test_importing_the_package_imports_nothing_heavy() -> None:
    imported = imported_by("import headrace")
    assert "headrace" in imported
    assert not imported & (HEAVY | {"torch", "numpy"})


def test_using_every_public_name_imports_torch_and_nothing_else_heavy() -> None:
    imported = imported_by("import headrace as hr\nfor name in hr.__all__: getattr(hr, name)")
    assert "torch" in imported
    assert not imported & HEAVY


def test_what_is_imported_would_be_seen() -> None:
    assert imported_by("import rich.console") & HEAVY == {"rich"}
