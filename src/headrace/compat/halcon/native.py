"""The native way for what is not offered."""

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
