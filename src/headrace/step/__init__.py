"""The updates of a model, and the arguments that they are made from.

An update is forward, backward, reduce, clip, optimize; a guard undoes one that is not finite. It calls `store`, `data`,
`formats`, `adapters`, `loss`, `arena` and `workers`.
"""
