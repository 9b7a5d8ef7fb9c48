"""Names in the directory of a run that are needed without torch: those of checkpoints above all."""

import re
from dataclasses import dataclass

WHY = "why"  # in a run, a text for each update whose loss was looked into
STATE = ".mirror.json"  # in the folder of a run of an object store on this machine
_NAME = re.compile(r"step-(\d{12,18})-(\d{6,12})")


@dataclass(frozen=True, slots=True, order=True)
class Place:
    """Where a checkpoint is: `step-000000000012-000003` is the third that the run has saved, of step 12."""

    serial: int
    step: int

    @property
    def name(self) -> str:
        return f"step-{self.step:012d}-{self.serial:06d}"

    @classmethod
    def of(cls, name: str) -> "Place | None":
        """The place that has this name; `None` for other names."""
        match = _NAME.fullmatch(name)
        place = cls(int(match[2]), int(match[1])) if match else None
        return place if place is not None and place.name == name else None
