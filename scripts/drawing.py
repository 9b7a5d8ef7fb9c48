"""Draws SVG pictures of boxes, arrows, bars and lines of text, on a light ground that is legible in the dark, too."""

from collections.abc import Sequence
from html import escape

TEAL, GREY, PALE, INK, LINE = "#00897b", "#9aa4ab", "#e0f2ef", "#1f2a30", "#607d8b"
SANS, MONO = "system-ui, Segoe UI, Helvetica, Arial, sans-serif", "ui-monospace, Menlo, DejaVu Sans Mono, monospace"


class Drawing:
    """A picture of a given size, drawn from its top left corner."""

    def __init__(self, width: int, height: int, title: str) -> None:
        self._size = (width, height)
        self._parts = [
            f"<title>{escape(title)}</title>",
            '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
            f'<path d="M0 0L8 4L0 8z" fill="{LINE}"/></marker></defs>',
            f'<rect width="{width}" height="{height}" rx="8" fill="#ffffff"/>',
        ]

    def text(
        self,
        x: float,
        y: float,
        text: str,
        *,
        size: int = 13,
        color: str = INK,
        anchor: str = "start",
        bold: bool = False,
    ) -> None:
        weight = ' font-weight="600"' if bold else ""
        self._parts.append(
            f'<text x="{x:g}" y="{y:g}" font-size="{size}" fill="{color}" text-anchor="{anchor}"{weight}>'
            f"{escape(text)}</text>"
        )

    def code(self, x: float, y: float, text: str, *, color: str = INK, size: int = 13) -> None:
        """Text of fixed width, whose blanks are kept."""
        self._parts.append(
            f'<text x="{x:g}" y="{y:g}" font-size="{size}" fill="{color}" font-family="{MONO}" '
            f'xml:space="preserve">{escape(text)}</text>'
        )

    def rectangle(self, x: float, y: float, width: float, height: float, color: str, line: str = "none") -> None:
        self._parts.append(
            f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="3" fill="{color}" stroke="{line}"/>'
        )

    def box(self, x: float, y: float, width: float, height: float, lines: Sequence[str], color: str = PALE) -> None:
        """A rectangle with lines of text in its middle, the first of them bold."""
        self.rectangle(x, y, width, height, color, LINE)
        top = y + height / 2 - 8.5 * (len(lines) - 1) + 4.5
        for number, line in enumerate(lines):
            self.text(x + width / 2, top + 17 * number, line, size=12, anchor="middle", bold=not number)

    def arrow(self, x1: float, y1: float, x2: float, y2: float, text: str = "") -> None:
        self._parts.append(
            f'<line x1="{x1:g}" y1="{y1:g}" x2="{x2:g}" y2="{y2:g}" stroke="{LINE}" stroke-width="1.5" '
            'marker-end="url(#tip)"/>'
        )
        if text:
            self.text((x1 + x2) / 2, min(y1, y2) - 6, text, size=11, color=LINE, anchor="middle")

    def curve(self, points: Sequence[tuple[float, float]], color: str, width: float) -> None:
        joined = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        self._parts.append(f'<polyline points="{joined}" fill="none" stroke="{color}" stroke-width="{width:g}"/>')

    @property
    def svg(self) -> str:
        width, height = self._size
        start = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
        return "\n".join([f'{start}height="{height}" font-family="{SANS}">', *self._parts, "</svg>", ""])
