"""What is minimised, and what is measured: terms, objectives, metrics, and what one update showed.

A loss is a sum and a weight, so that any split of a batch gives the same mean. It calls `data`.
"""
