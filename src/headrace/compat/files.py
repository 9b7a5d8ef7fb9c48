"""Makes files in the folders of a dialect, with different names for trainings that ask for the same one."""

from itertools import count
from pathlib import Path


def new_file(folder: str, name: str) -> Path:
    """Makes an empty file in a folder of the working directory; a number is added to the name of one that exists."""
    path = first = Path.cwd() / folder / name
    first.parent.mkdir(parents=True, exist_ok=True)
    for number in count(2):
        try:
            path.touch(exist_ok=False)
            break
        except FileExistsError:
            path = first.with_stem(f"{first.stem}-{number}")
    return path
