"""Tables from files and from other libraries' memory, and tables into files.

`paths` finds files, a store (`npy`, `ipc`, `parquet`, `csv`) opens one and gives its rows by blocks, `select` makes
streams of its columns, `blocks` keeps what was decoded, and `table` puts them together. `frames` takes what pandas,
Arrow and scipy hold, and `write` goes the other way.
"""

from .frames import from_arrow, from_pandas, from_scipy
from .table import FileTable, column_names, open_by, open_table
from .write import write_table

__all__ = [
    "FileTable",
    "column_names",
    "from_arrow",
    "from_pandas",
    "from_scipy",
    "open_by",
    "open_table",
    "write_table",
]
