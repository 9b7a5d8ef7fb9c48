"""Names and semantics of older systems, for code that was written for them.

Each dialect is a leaf over the public rooms: it calls what is below, and nothing below knows of it.
"""
