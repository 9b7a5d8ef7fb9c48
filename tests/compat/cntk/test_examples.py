"""A program for CNTK and its native twin come to the same numbers."""

from pathlib import Path

import numpy as np
import pytest
from kit.imports import module_at

EXAMPLES = Path(__file__).parents[3] / "examples/compat"


def test_a_legacy_script_and_its_native_twin_have_the_same_weights_and_errors(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    weights, errors = module_at(EXAMPLES / "cntk_legacy.py").main(tmp_path)
    lines = capsys.readouterr().out.splitlines()
    told = [line.split("]")[0] for line in lines if line.startswith("Finished Epoch")]
    assert told == [f"Finished Epoch[{k} of 3" for k in (1, 2, 3)]
    assert (tmp_path / "digits.ckp").exists()
    twin, again = module_at(EXAMPLES / "cntk_native.py").main(tmp_path)
    (b, w), (weight, bias) = sorted(weights, key=np.ndim), twin
    np.testing.assert_allclose(w.T, weight, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(b, bias, rtol=1e-4, atol=1e-6)
    assert list(again) == pytest.approx(errors)
    assert errors[-1] < 0.15
