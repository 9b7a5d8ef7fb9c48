"""Metrics by CNTK's names: what is measured, for every sample."""

from ._native import not_offered
from .losses import classification_error as classification_error

_THERE = "Natively metrics= takes any torchmetrics object."
edit_distance_error = not_offered("edit_distance_error", _THERE)
ndcg_at_1 = not_offered("ndcg_at_1", _THERE)
