"""The native way for what is called here, and for what is not offered."""

import sys
import warnings
from functools import cache
from pathlib import Path

_NATIVE = {
    "train_dl_model_anomaly_dataset": "hr.Trainer with a model of your own",
    "set_system": "hr.Trainer(..., deterministic=True)",
    "gen_dl_samples": "a list of dicts, see vision.ImageSamples",
    "train_dl_model": "hr.Trainer(...).fit(...)",
    "evaluate_dl_model": "hr.Trainer(...).validate(...)",
}


def not_offered(name: str) -> str:
    """One sentence for a name of HALCON's that does not exist here."""
    native = _NATIVE.get(name, "headrace.vision and hr.Trainer")
    return f"HALCON's {name} is not offered here; the native way is {native}."


@cache
def hint(name: str, native: str) -> None:
    """Warns once of each name, with its native spelling."""
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and Path(frame.f_code.co_filename).parent == Path(__file__).parent:
        frame, level = frame.f_back, level + 1
    warnings.warn(f"halcon.{name}: natively, {native}.", DeprecationWarning, stacklevel=level)
