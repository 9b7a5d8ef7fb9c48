"""Runs workers on a Ray cluster, or on a private one that is started on this machine.

Every worker is an actor in a placement group. Those that go in step are all started again after a failure. Of those
that meet at a center, one that is lost is started again, perhaps elsewhere, while the others go on; the center is an
actor too, whose state outlives it.
"""

from ..job import Job, Result

__all__ = ["run"]


def run(job: Job) -> Result:
    """Runs the job; what worker 0 has to give."""
    from . import cluster

    with cluster.joined(job) as there:
        from . import driver

        return driver.run(job, there)
