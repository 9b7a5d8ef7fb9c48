"""Losses and metrics: terms, objectives, metrics, and the outcome of an update.

A loss is a sum and a weight, so that any split of a batch gives the same mean. It calls `data`.
"""
