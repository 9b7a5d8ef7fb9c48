"""A model that can be updated, scored and applied: `Trainable`, one update of it, and passes that change nothing.

An update is forward, backward, reduce, clip, optimize; a guard undoes one that is not finite. It calls `store`, `data`,
`formats`, `adapters`, `loss`, `arena` and `workers`.
"""
