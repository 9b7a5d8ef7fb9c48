"""Data of torch, Hugging Face and pandas as sources and tables, and ours as theirs.

It also holds what makes one source of others (`mix`, `zip`, `map`, `split`). It calls `store`, `data`
and `formats`.
"""
