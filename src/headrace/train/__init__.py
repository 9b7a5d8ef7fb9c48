"""The trainer and its loop, passes over data that change nothing, and what several workers settle in a training.

The loop owns the order of events: an update, what is due after it, what was asked for, the checkpoint. It calls
`store`, `data`, `formats`, `adapters`, `loss`, `arena`, `workers`, `step` and `watch`.
"""
