"""A run as a record: which rows an update used, what the trainer was then, why a loss rose, and whether all is true.

A record never changes a run. What has to be computed again is trained again from a checkpoint, in a folder of its own.
It calls `store`, `data`, `loss`, `workers`, `step`, `watch`, `train` and `engines`.
"""
