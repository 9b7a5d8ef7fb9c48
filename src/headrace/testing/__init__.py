"""Tests whether a Source or a Table of your own keeps its contract, and makes small tables for such tests.

```python
from headrace.testing import check_source

def test_my_source():
    check_source(lambda: MySource("small.txt"))
```

It calls `store` and `data`.
"""

from .makers import dense_table, ragged_table, sparse_sequences, sparse_table
from .sources import check_source
from .tables import check_table
from .trial import Report

__all__ = ["Report", "check_source", "check_table", "dense_table", "ragged_table", "sparse_sequences", "sparse_table"]
