"""Writes the pages of the documentation that are made: public names, lines that a task takes."""

import re
import sys
from importlib import import_module
from pathlib import Path
from textwrap import dedent

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
sys.path.insert(0, str(ROOT / "src"))  # where it has not been installed

PARTS = {
    "Data": "data formats adapters",
    "Losses, metrics and models": "loss arena",
    "Several workers": "workers engines",
    "Callbacks and what was reported": "watch",
    "Trainer": "length step train",
    "Runs": "store",
    "Recipes and the command line": "app __main__",
    "Images": "vision",
    "scikit-learn and Optuna": "sklearn optuna",
    "Kits": "testing",
}
"""Parts of the library, as a user sees them, and the modules of each. What is in none is the trainer's."""

TOP = "<!-- Made from the source by scripts/docs: change scripts/pages.py, not this file. -->\n"


def main() -> None:
    for path, text in pages().items():
        path.write_text(text)


def pages() -> dict[Path, str]:
    """Every page that is made, as it should be."""
    switch = DOCS / "switch.md"
    return {
        DOCS / "names.md": names_page(),
        switch: with_lines(switch.read_text()),
    }


# --- names ------------------------------------------------------------------------------------------------


def names_page() -> str:
    import headrace

    by_part: dict[str, list[str]] = {part: [] for part in PARTS}
    for name, module in headrace._MODULES.items():
        part = "Errors" if module == "errors" else part_of(module.partition(".")[0])
        by_part.setdefault(part, []).append(f"headrace.{name}")
    for part, room in (("Images", "vision"), ("Kits", "testing")):
        by_part[part] = [f"headrace.{room}.{name}" for name in import_module(f"headrace.{room}").__all__]
    lines = [TOP, "# Every name", "", "What `import headrace as hr` offers, by the part of the library.", ""]
    for part, names in by_part.items():
        if names:
            lines += [f"## {part}", "", *(f"::: {name}" for name in sorted(names)), ""]
    return "\n".join(lines)


def part_of(module: str) -> str:
    return next((part for part, modules in PARTS.items() if module in modules.split()), "Trainer")


# --- lines that a task takes ------------------------------------------------------------------------------

TASKS = {
    "with_headrace": "headrace",
    "with_keras": "Keras",
    "with_skorch": "skorch",
    "with_lightning": "Lightning",
    "with_transformers": "transformers",
    "loop": "plain torch",
    "with_accelerate": "Accelerate",
}
"""The programs of the page that do the same: by the name of the file, the library."""


def program(name: str, page: str) -> str:
    """A program that a page shows as the file `name`.py, in a tab or not."""
    shown = rf'^( *)```python title="{name}\.py"\n(.*?)^\1```$'
    ((_, found),) = re.findall(shown, page, flags=re.MULTILINE | re.DOTALL)
    return dedent(found)


def code_lines(text: str) -> int:
    """The lines of a program that are neither empty nor a comment alone."""
    return sum(bool(line.strip()) and not line.strip().startswith("#") for line in text.splitlines())


def with_lines(text: str) -> str:
    """The page of other libraries with the lines of each program, fewest first."""
    counted = {library: code_lines(program(name, text)) for name, library in TASKS.items()}
    rows = "".join(f"| {what} | {lines} |\n" for what, lines in sorted(counted.items(), key=lambda each: each[1]))
    table = f"| library | lines of code |\n|---|---|\n{rows}"
    return re.sub(r"(<!-- lines[^\n]*-->\n).*?(<!-- end of lines -->)", rf"\g<1>{table}\g<2>", text, flags=re.DOTALL)


if __name__ == "__main__":
    main()
