"""What a training has reported: `history` holds the rows, `rows` reads and names what is in them.

`curves` says which of them belong in one picture, `plot` draws it, and `table` writes them for a notebook.
"""

from .history import History

__all__ = ["History"]
