"""The trainer and its loop, and what several workers under it agree on.

It owns the order of events: an update, what is due after it, what was asked for, the checkpoint. It calls every room
before it.
"""
