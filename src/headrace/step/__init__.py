"""The updates of a model, the arguments that they are made from, and passes over data that change nothing.

An update is forward, backward, reduce, clip, optimize; a guard undoes one that is not finite. It calls `store`, `data`,
`formats`, `adapters`, `loss`, `arena` and `workers`.
"""
