"""Starts workers: virtual ones on a simulated network, processes, or actors on Ray; torchrun starts its own.

All run one function and fill in `workers.here()`; the trainer does not know who started it. It calls `workers`.
"""
