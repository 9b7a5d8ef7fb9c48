"""What is built on the library: recipes, the command line, rehearsals, export.

Nothing of the library calls it. It calls `store`, `data`, `formats`, `adapters`, `loss`, `workers`, `step`, `watch`,
`train`, `engines` and `record`.
"""
