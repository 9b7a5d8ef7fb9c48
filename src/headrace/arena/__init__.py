"""A model as a few long vectors: parameters, gradients, optimizer state.

An update is then a few operations whatever the number of parameters. It calls `store`.
"""
