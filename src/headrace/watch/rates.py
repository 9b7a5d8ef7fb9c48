"""Learning rates in the report, of every group of every optimizer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..length import Length, interval
from .callback import Callback

if TYPE_CHECKING:
    from .info import Info


class LearningRateMonitor(Callback):
    """Reports the rate of each group as `rate/<optimizer>/<group>`, at every `every`; momenta too with `momentum`.

    A report has the first group's as "rate" anyway. A group's name is its "name", if it has one, or its number.
    """

    everywhere = False

    def __init__(self, every: str | Length = "1 epoch", *, momentum: bool = False) -> None:
        self.every, self.momentum = interval(every, "every"), momentum

    def on_step_end(self, info: Info) -> None:
        if info.fires(self.every):
            info.log(self._found(info))

    def _found(self, info: Info) -> dict[str, float]:
        found = {}
        for key, optimizer in info.trainer.optimizers.items():
            for number, group in enumerate(optimizer.param_groups):
                name = "/".join(part for part in (key, str(group.get("name", number))) if part)
                name = f"{name}/{number}" if f"rate/{name}" in found else name
                found[f"rate/{name}"] = float(group["lr"])
                if self.momentum and (momentum := _momentum(group)) is not None:
                    found[f"momentum/{name}"] = momentum
        return found


def _momentum(group: dict[str, Any]) -> float | None:
    """As torch's optimizers call it: `momentum`, or the first of `betas`."""
    found = group.get("momentum", group.get("betas"))
    return float(found[0] if isinstance(found, tuple | list) else found) if found is not None else None
