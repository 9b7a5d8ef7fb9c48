"""Writes examples as notebooks with their outputs, into examples/notebooks: `python scripts/notebooks.py [NAME...]`.

A cell begins at a line `# %%`. The text after it, and the comments of a cell `# %% [markdown]`, become cells of text.
"""

import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook
from traitlets.config import Config

ROOT = Path(__file__).resolve().parents[1]
EXAMPLES, NOTEBOOKS = ROOT / "examples", ROOT / "examples" / "notebooks"
NAMES = ("images", "tabular")
LIMIT_S = 300
MARKDOWN = "[markdown]"


def main(names: list[str]) -> None:
    NOTEBOOKS.mkdir(exist_ok=True)
    for name in names or NAMES:
        book = notebook((EXAMPLES / f"{name}.py").read_text())
        with tempfile.TemporaryDirectory() as room:
            run(book, Path(room))
        for cell in book.cells:
            cell.metadata.pop("execution", None)  # when it was run
        nbformat.write(book, NOTEBOOKS / f"{name}.ipynb")


def notebook(program: str) -> Any:
    """The cells of an example, without outputs."""
    cells = []
    for part in f"\n{program}".split("\n# %%")[1:]:
        title, _, body = part.partition("\n")
        if title.strip() == MARKDOWN:
            cells.append(
                new_markdown_cell("\n".join(line.removeprefix("#").strip() for line in body.splitlines()).strip())
            )
            continue
        if title.strip():
            cells.append(new_markdown_cell(title.strip()))
        cells.append(new_code_cell(body.strip("\n")))
    for number, cell in enumerate(cells):
        cell["id"] = f"cell-{number}"
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    return new_notebook(cells=cells, metadata={"kernelspec": kernel})


def run(book: Any, room: Path) -> None:
    """Executes a notebook in a directory; its outputs are stored in it."""
    source = str(ROOT / "src")
    environment = os.environ | {"PYTHONPATH": source, "OMP_NUM_THREADS": "1", "JUPYTER_PLATFORM_DIRS": "1"}
    client = NotebookClient(
        book,
        timeout=LIMIT_S,
        kernel_name="python3",
        resources={"metadata": {"path": str(room)}},
        coalesce_streams=True,
        config=Config({"KernelManager": {"transport": "ipc", "ip": str(room / "k")}}),  # a file, and no port
    )
    client.execute(env=environment)


if __name__ == "__main__":
    main(sys.argv[1:])
