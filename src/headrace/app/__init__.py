"""What is built on the library: recipes, the command line, rehearsals, export.

Nothing of the library imports it.
"""
