"""Makes files in the folders of a dialect, whose names several trainings may ask for at the same time."""

from itertools import count
from pathlib import Path


def new_file(folder: str, name: str) -> Path:
    """Makes an empty file of this name in a folder of the working directory, with a number after it if there is one."""
    path = first = Path.cwd() / folder / name
    first.parent.mkdir(parents=True, exist_ok=True)
    for number in count(2):
        try:
            path.touch(exist_ok=False)
            break
        except FileExistsError:
            path = first.with_stem(f"{first.stem}-{number}")
    return path
