"""What a person sees of a training: `Info`, callbacks, progress, trackers, history, charts and the report.

Callbacks request changes, and the loop makes them. It calls `store`, `data`, `loss`, `arena` and `step`.
"""
