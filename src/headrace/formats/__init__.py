"""Files as tables, and tables as files: Arrow, Parquet, npy, CSV and CTF.

`open_table` and `write_table` choose by the file's name. It calls `store` and `data`.
"""
