"""A model as a few long vectors: parameters, gradients, buffers, optimizer state.

An update is then a few operations whatever the number of parameters. It calls `store`.
"""
