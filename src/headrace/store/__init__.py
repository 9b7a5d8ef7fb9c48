"""Bytes that survive: disk operations, JSON beside safetensors, snapshots, checkpoints and the directory of a run.

It knows nothing of models or data: it writes, verifies and reads back what it is given. It calls no other room.
"""
