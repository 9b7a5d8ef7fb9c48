"""A picture of rehearsals: loss against virtual time, what was sent, and what workers did with their time."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .rehearse import SHARES, Rehearsal

COLOURS = {"computing": "#3b7dd8", "communicating": "#e6a23c", "idle": "#c8ccd2", "down": "#d64545"}


def key_of(found: Sequence[Rehearsal]) -> str:
    """The loss to compare by: of the validation, if there is one."""
    return "val/loss" if any(one.curve("val/loss") for one in found) else "train/loss"


def draw(found: Sequence[Rehearsal], out: Path, title: str) -> None:
    """Draws one line for each strategy, and bars below in the same colours."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 5.5 + 0.3 * len(found)), layout="constrained")
    FigureCanvasAgg(figure)
    parts = figure.subplot_mosaic([["loss", "loss"], ["sent", "time"]], height_ratios=[3, 0.6 + 0.25 * len(found)])
    colours = _lines(parts["loss"], found, key_of(found), title)
    names = [one.strategy for one in found]
    parts["sent"].barh(names, [one.sent_bytes / 1e6 for one in found], color=colours)
    parts["sent"].set_xlabel("MB sent by a worker")
    before = [0.0] * len(found)
    for share in SHARES:
        widths = [100 * one.shares[share] for one in found]
        if any(widths) or share != "down":  # as it usually is, and nobody wants to know
            parts["time"].barh(names, widths, left=before, color=COLOURS[share], label=share)
        before = [start + width for start, width in zip(before, widths, strict=True)]
    parts["time"].set_xlabel("% of the workers' time")
    parts["time"].set_yticks([])
    parts["time"].legend(loc="lower center", bbox_to_anchor=(0.5, 1), ncols=4, fontsize="small", frameon=False)
    for part in (parts["sent"], parts["time"]):
        part.invert_yaxis()  # the first on top
    figure.savefig(out, dpi=120)


def _lines(axes: Any, found: Sequence[Rehearsal], key: str, title: str) -> list[Any]:
    """The curves; the colour of each."""
    colours = []
    for one in found:
        curve = one.curve(key)
        (line,) = axes.plot(
            [time for time, _ in curve], [loss for _, loss in curve], marker=".", label=one.strategy, alpha=0.85
        )
        colours.append(line.get_color())
    axes.set(xlabel="virtual seconds", ylabel=key, title=title)
    axes.set_xlim(left=0)
    axes.grid(alpha=0.3)
    axes.legend()
    return colours
