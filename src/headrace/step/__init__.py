"""One update of one model, and passes that change nothing.

Forward, backward, reduce, clip, optimize; the guard that undoes an update that is not finite; precision; scoring. It
calls `loss`, `arena` and `workers`.
"""
