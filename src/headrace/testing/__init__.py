"""Conformance kits for those who write a Source, a Table or a Strategy of their own, and small tables to try it on.

```python
from headrace.testing import check_source

def test_my_source():
    check_source(lambda: MySource("small.txt"))
```

It calls `store`, `data`, `loss`, `arena`, `workers`, `train` and `engines`.
"""

from .makers import dense_table, ragged_table, sparse_sequences, sparse_table
from .sources import check_source
from .strategies import check_strategy
from .tables import check_table
from .trial import Report

__all__ = [
    "Report",
    "check_source",
    "check_strategy",
    "check_table",
    "dense_table",
    "ragged_table",
    "sparse_sequences",
    "sparse_table",
]
