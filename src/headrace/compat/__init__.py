"""Names and semantics of older systems, for code that was written for them.

Each dialect is a leaf over the public rooms; nothing below knows of it. It calls `store`, `data`,
`formats`, `loss`, `arena`, `workers`, `train`, `engines`, `vision` and `testing`.
"""
