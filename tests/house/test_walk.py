"""One update, call by call: how many calls it makes, in how many files, of which classes. As a program, it lists them."""

import re
import sys
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import torch
from torch import nn

import headrace as hr

ROOT = Path(hr.__file__).parent
PAGE = ROOT.parents[1] / "docs" / "architecture.md"
MOST_CALLS, MOST_FILES, MOST_CLASSES = 60, 16, 14
AT = 40  # an update in the middle of a training


class Called(NamedTuple):
    """A function of the library that was called."""

    file: str
    name: str
    home: str
    """The first class that has it, as `Pass` for a method of `Eager`; "" for a function."""


def walk() -> list[Called]:
    """The calls from one forward pass to the next, in a training by `fit(tape=False)`; comprehensions are none."""
    torch.manual_seed(0)
    x, y = torch.randn(6400, 20), torch.randint(0, 3, (6400,))
    model = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 3))
    adam = torch.optim.Adam(model.parameters(), 1e-3)
    trainer = hr.Trainer(model, hr.CrossEntropy(), adam, metrics=["accuracy"], batch_size=64, tape=False)
    found: list[Called] = []
    begins: list[int] = []
    model.register_forward_pre_hook(lambda *_: begins.append(len(found)))

    def look(frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(str(ROOT)) and "<listcomp>" not in code.co_qualname:
            if not re.search(r"<(genexpr|dictcomp|setcomp)>", code.co_qualname):
                file = str(Path(code.co_filename).relative_to(ROOT))
                found.append(Called(file, code.co_qualname, home(frame)))

    before = sys.getprofile()
    sys.setprofile(look)
    try:
        trainer.fit((x, y), steps=2 * AT, progress=False, log_every=f"{2 * AT} steps")
    finally:
        sys.setprofile(before)
    return found[begins[AT] : begins[AT + 1]]


def home(frame: FrameType) -> str:
    """The base class, within the library, of the object whose method a frame is."""
    owner = frame.f_locals.get("self")
    if owner is None or "." not in frame.f_code.co_qualname or "<locals>" in frame.f_code.co_qualname:
        return ""
    ours = [each for each in type(owner).__mro__ if each.__module__.startswith("headrace.")]
    return ours[-1].__name__ if ours else ""


def listed() -> list[str]:
    """The classes that the page names."""
    (section,) = re.findall(r"\n## The classes of an update\n(.*?)\n## ", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    return re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE)


def test_an_update_makes_few_calls_in_few_files() -> None:
    calls = walk()
    assert 20 < len(calls) <= MOST_CALLS, [call.name for call in calls]
    assert len({call.file for call in calls}) <= MOST_FILES


def test_the_page_names_the_classes_of_an_update_and_no_others() -> None:
    classes = {call.home for call in walk()} - {""}
    assert len(listed()) <= MOST_CLASSES
    assert classes == set(listed())


if __name__ == "__main__":
    calls = walk()
    for call in calls if "-v" in sys.argv else ():
        print(f"  {call.file:24} {call.name}")
    print(f"one update: {len(calls)} calls in {len({call.file for call in calls})} files, bounds {MOST_CALLS} and {MOST_FILES}")
