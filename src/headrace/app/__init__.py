"""What is built on the library: recipes, the command line, rehearsals, export.

It calls every room before it, and nothing of the library calls it.
"""
