"""Communication between workers, and strategies: gradients in step, rounds of local updates, or a center.

A strategy makes one model of what several workers learn, through one small interface (`Comm`). It calls `store`,
`data`, `loss` and `arena`.
"""
