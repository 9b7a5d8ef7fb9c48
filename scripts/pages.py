"""Writes the pages of the documentation that are made: public names, lines that a task takes."""

import re
import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
sys.path.insert(0, str(ROOT / "src"))  # where it has not been installed

PARTS = {
    "trainer": ("Trainer", "length step train"),
    "losses": ("Losses, metrics and models", "loss arena"),
    "data": ("Data", "data formats adapters"),
    "callbacks": ("Callbacks and history", "watch"),
    "runs": ("Runs and records", "store record"),
    "workers": ("Several workers", "workers engines"),
    "recipes": ("Recipes and export", "app __main__"),
    "images": ("Images", "vision"),
    "estimators": ("scikit-learn and Optuna", "sklearn optuna"),
    "kits": ("Kits for tests", "testing"),
    "errors": ("Errors", "errors"),
}
"""The pages of the reference: by the name of the file, the title and the modules. What is in none is the trainer's."""

TOP = """---
search:
  boost: 0.3
---
<!-- Made from the source by scripts/docs: change scripts/pages.py, not this file. -->
"""


def main() -> None:
    for path, text in pages().items():
        path.write_text(text)


def pages() -> dict[Path, str]:
    """Every page that is made, as it should be."""
    switch = DOCS / "switch.md"
    return {**reference(), switch: with_lines(switch.read_text())}


# --- names ------------------------------------------------------------------------------------------------


def reference() -> dict[Path, str]:
    """A page for each part of the library, with the public names in it."""
    import headrace

    by_part: dict[str, list[str]] = {part: [] for part in PARTS}
    for name, module in headrace._MODULES.items():
        by_part[part_of(module.partition(".")[0])].append(f"headrace.{name}")
    for part, room in (("images", "vision"), ("estimators", "sklearn"), ("kits", "testing")):
        by_part[part] = [f"headrace.{room}.{name}" for name in public(import_module(f"headrace.{room}"))]
    return {
        DOCS / "reference" / f"{part}.md": "\n".join(
            [TOP, f"# {PARTS[part][0]}", "", *(f"::: {name}" for name in sorted(names)), ""]
        )
        for part, names in by_part.items()
        if names
    }


def public(room: ModuleType) -> list[str]:
    """The names that a package offers."""
    named = [
        name for name, value in vars(room).items() if not name.startswith("_") and not isinstance(value, ModuleType)
    ]
    return list(getattr(room, "__all__", named))


def part_of(module: str) -> str:
    return next((part for part, (_, modules) in PARTS.items() if module in modules.split()), "trainer")


# --- lines that a task takes ------------------------------------------------------------------------------

SWITCH = ROOT / "examples" / "switch"
TASKS = {
    "with_headrace": "headrace",
    "with_keras": "Keras",
    "with_skorch": "skorch",
    "with_lightning": "Lightning",
    "with_transformers": "transformers",
    "loop": "plain torch",
    "with_accelerate": "Accelerate",
}
"""The programs that do the same: by the name of the file, the library."""


def code_lines(text: str) -> int:
    """The lines of a program that are neither empty nor a comment alone."""
    return sum(bool(line.strip()) and not line.strip().startswith("#") for line in text.splitlines())


def with_lines(text: str) -> str:
    """The page of other libraries with the lines of each program, fewest first."""
    where = "https://github.com/headrace/headrace/blob/main/examples/switch"
    counted = {name: code_lines((SWITCH / f"{name}.py").read_text()) for name in TASKS}
    fewest_first = sorted(counted.items(), key=lambda each: each[1])
    rows = "".join(f"| [{TASKS[name]}]({where}/{name}.py) | {lines} |\n" for name, lines in fewest_first)
    table = f"| library | lines of code |\n|---|---|\n{rows}"
    return re.sub(r"(<!-- lines[^\n]*-->\n).*?(<!-- end of lines -->)", rf"\g<1>{table}\g<2>", text, flags=re.DOTALL)


if __name__ == "__main__":
    main()
