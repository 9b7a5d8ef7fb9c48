"""Metrics of one output without a trainer."""

from typing import Any

from headrace.loss.metrics import Compared, Metrics
from headrace.loss.tally import MetricSums


def metric_sums(wanted: Any, reads: str | None = None, ignore: int | None = None) -> MetricSums:
    """Sums of metrics of an output that is the only one."""
    return MetricSums(Metrics(wanted).by_output[""], Compared("y", lambda outputs: outputs, reads, ignore))
