"""One update, call by call: how many calls it makes, in how many files, of which classes."""

import inspect
import math
import re
import sys
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import torch
from torch import nn

import headrace as hr
from headrace.train import loop

ROOT = Path(hr.__file__).parent
PAGE = ROOT.parents[1] / "docs" / "architecture.md"
MOST_CALLS, MOST_FILES, MOST_CLASSES = 60, 16, 14
STEPS = 80


class Called(NamedTuple):
    """A function of the library that was called."""

    file: str
    name: str
    home: str
    """The first class that has it, as `Pass` for a method of `Eager`; "" for a function."""


def walk() -> list[Called]:
    """The calls from one forward pass to the next, in a training by `fit(tape=False)`; comprehensions are none.

    It is an update after which nothing is due, not even a look at the clock.
    """
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
        ours = event == "call" and code.co_filename.startswith(str(ROOT))
        if ours and not code.co_qualname.endswith(("<genexpr>", "<listcomp>", "<dictcomp>", "<setcomp>")):
            file = str(Path(code.co_filename).relative_to(ROOT))
            found.append(Called(file, code.co_qualname, home(frame)))

    before, often = sys.getprofile(), loop.AT_ONCE_S
    loop.AT_ONCE_S = math.inf
    sys.setprofile(look)
    try:
        trainer.fit((x, y), steps=STEPS, progress=False, log_every=f"{STEPS} steps")
    finally:
        sys.setprofile(before)
        loop.AT_ONCE_S = often
    return found[begins[STEPS // 2] : begins[STEPS // 2 + 1]]


def home(frame: FrameType) -> str:
    """The class of the method that a frame is; of an abstract class's subclasses, the abstract one."""
    name, _, method = frame.f_code.co_qualname.rpartition(".")
    if not method or not name or "<locals>" in name or "self" not in frame.f_locals:
        return ""
    bases = type(frame.f_locals["self"]).__mro__
    return next((each.__name__ for each in reversed(bases) if inspect.isabstract(each)), name)


def listed() -> list[str]:
    """The classes that the page names."""
    (section,) = re.findall(r"\n## The classes of an update\n(.*?)\n## ", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    return re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE)


def test_an_update_makes_few_calls_in_few_files() -> None:
    calls = walk()
    files = {call.file for call in calls}
    print(f"one update: {len(calls)} calls in {len(files)} files, at most {MOST_CALLS} in {MOST_FILES}")
    assert 20 < len(calls) <= MOST_CALLS, [call.name for call in calls]
    assert len(files) <= MOST_FILES


def test_the_page_names_the_classes_of_an_update_and_no_others() -> None:
    classes = {call.home for call in walk()} - {""}
    assert len(listed()) <= MOST_CLASSES
    assert classes == set(listed())
