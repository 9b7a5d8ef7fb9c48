"""What a person sees of a training: `Info`, callbacks, progress, trackers, history, charts and the report.

Callbacks ask, the loop alone grants. It calls `step` and the rooms before it.
"""
