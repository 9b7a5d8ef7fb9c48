"""A report as a real browser shows it: on a wide screen and on a telephone, by day and by night, and by itself."""

import html
import json
import re
from pathlib import Path

import pytest
from kit import report_runs as runs
from kit.browser import DARK, chromium, dom, shoot
from PIL import Image

from headrace.watch.report import write

TRAIN, VAL = (0x00, 0x72, 0xB2), (0xC9, 0x4F, 0x00)
TRAIN_DARK, VAL_DARK = (0x56, 0xB4, 0xE9), (0xF0, 0x91, 0x3A)
PHONE = 360

Colours = dict[tuple[int, int, int], int]


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of a classifier with many numbers: everything is on the page."""
    chromium()
    reports = [row | {f"val/a_metric_with_a_long_name_{k}": k / 9 for k in range(5)} for row in runs.rows(200)]
    path = tmp_path_factory.mktemp("runs") / "a-run-with-a-name-that-is-much-longer-than-any-telephone-is-wide"
    config = json.dumps(runs.CONFIG | {"path": "/a/long/path" * 20})
    log = runs.STARTED + f"2026-03-01 10:00:00 warning: {'something ' * 30}{'x' * 200}\n" + runs.ENDED
    reports[-1]["test/confusion"] = runs.classified(12)[-1]["test/confusion"]
    run = runs.make(path, reports, log, config_json=config)
    (run / "checkpoints" / "step-000000000020-000001").mkdir(parents=True)
    return write(run)


def colours(picture: Path, top: int = 0, bottom: int = 0) -> Colours:
    """How many pixels there are of each colour, between two heights."""
    with Image.open(picture) as opened:
        image = opened.convert("RGB")
    part = image.crop((0, top, image.width, bottom or image.height))
    return {colour: count for count, colour in part.getcolors(1 << 24) or ()}  # type: ignore[misc]


def test_the_curves_can_be_seen_by_day_and_by_night(report: Path, tmp_path: Path) -> None:
    found = []
    for name, options in (("day", ()), ("night", (DARK,))):
        picture = tmp_path / f"{name}.png"
        assert shoot(report.as_uri(), picture, 1280, 1400, *options) == [], "nothing is said to the console"
        found.append(colours(picture))
    day, night = found
    assert min(day.get(TRAIN, 0), day.get(VAL, 0)) > 500, "both curves"
    assert min(night.get(TRAIN_DARK, 0), night.get(VAL_DARK, 0)) > 500
    grounds = [max(each, key=each.__getitem__) for each in found]
    assert grounds == [(0xFF, 0xFF, 0xFF), (0x14, 0x17, 0x1B)]


SCRIPT = """
addEventListener("load", () => {
  const page = document.querySelector("iframe").contentDocument, all = page.scrollingElement, said = {};
  said.wide = all.scrollWidth; said.room = all.clientWidth;
  const box = page.querySelector("[data-view] .plane"), room = box.getBoundingClientRect();
  box.dispatchEvent(new PointerEvent("pointermove", {clientX: room.left + room.width * 0.6, clientY: room.top + 9}));
  said.tip = [...box.querySelectorAll(".tip, .tip span")].map((part) => part.textContent).join("; ");
  said.before = getComputedStyle(page.body).color;
  page.getElementById("theme").click();
  said.after = getComputedStyle(page.body).color;
  document.body.textContent = JSON.stringify(said);
});
"""


def on_a_phone(page: Path, place: Path) -> str:
    """A page with this one in a frame as wide as a telephone, and what a script finds there."""
    inner = html.escape(page.read_text())
    frame = f'<iframe style="border:0;width:{PHONE}px;height:700px" srcdoc="{inner}"></iframe>'
    place.write_text(f"<!doctype html><body>{frame}<script>{SCRIPT}</script>")
    said, console = dom(place.as_uri())
    assert console == []
    return html.unescape(said)


def test_nothing_is_wider_than_a_telephone_and_a_touch_shows_the_values(report: Path, tmp_path: Path) -> None:
    said = on_a_phone(report, tmp_path / "phone.html")
    found = re.search(r'"wide":(\d+),"room":(\d+),"tip":"([^"]*)","before":"([^"]*)","after":"([^"]*)"', said)
    assert found is not None, said[-500:]
    wide, room, tip, before, after = found.groups()
    assert int(wide) == int(room) <= PHONE
    assert re.search(r"epoch 1\d\d.*; train 0\.\d+; val 0\.\d+", tip), "what is under the finger"
    assert before != after, "the switch turns day into night"


def test_what_is_too_wide_would_be_seen(report: Path, tmp_path: Path) -> None:
    wide = tmp_path / "wide.html"
    wide.write_text(report.read_text().replace("<h1>", '<h1 style="width:500px">'))
    found = re.search(r'"wide":(\d+)', on_a_phone(wide, tmp_path / "phone.html"))
    assert found is not None
    assert int(found[1]) > PHONE


def test_an_error_of_a_script_would_be_heard(report: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken.html"
    broken.write_text(report.read_text().replace("for (const figure of", "missing(); for (const figure of"))
    assert any("missing is not defined" in line for line in dom(broken.as_uri())[1])
