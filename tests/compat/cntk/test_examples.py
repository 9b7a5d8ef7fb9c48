"""A program for CNTK and its native twin come to the same numbers."""

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest

EXAMPLES = Path(__file__).parents[3] / "examples/compat"


def main_of(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None and spec.loader is not None  # noqa: PT018
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.main


@pytest.mark.slow
def test_a_legacy_script_and_its_native_twin_have_the_same_weights_and_errors(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    weights, errors = main_of("cntk_legacy")(tmp_path)
    lines = capsys.readouterr().out.splitlines()
    told = [line.split("]")[0] for line in lines if line.startswith("Finished Epoch")]
    assert told == [f"Finished Epoch[{k} of 3" for k in (1, 2, 3)]
    assert (tmp_path / "digits.ckp").exists()
    twin, again = main_of("cntk_native")(tmp_path)
    (b, w), (weight, bias) = sorted(weights, key=np.ndim), twin
    np.testing.assert_allclose(w.T, weight, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(b, bias, rtol=1e-4, atol=1e-6)
    assert list(again) == pytest.approx(errors)
    assert errors[-1] < 0.15
