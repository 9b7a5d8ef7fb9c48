"""`headrace report RUN`: a run as one page that needs nothing but itself."""

import argparse
from pathlib import Path

from .parser import add_json, file_of
from .say import say


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", type=Path, metavar="RUN", help="the directory of the run")
    parser.add_argument("--out", type=file_of(".html"), metavar="FILE", help="the page (RUN/report.html)")
    parser.add_argument("--pictures", action="store_true", help="the curves as PNG, too, in RUN/report")
    add_json(parser)


def run(options: argparse.Namespace) -> int:
    from ...watch.report import write

    page = write(options.run, options.out, options.pictures)
    pictures = str(options.run / "report") if options.pictures else None
    text = f"{page}: open it in a browser" + (f"\n{pictures}: the curves as pictures" if pictures else "")
    say(options, {"report": str(page), "pictures": pictures}, text)
    return 0
