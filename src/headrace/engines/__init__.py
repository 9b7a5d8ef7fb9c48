"""Workers started: virtual ones on a simulated network, processes, torchrun's, Ray's.

All run one function and fill in `workers.here()`; the trainer does not know who started it. It calls `store`, `data`,
`arena`, `workers` and `watch`.
"""
