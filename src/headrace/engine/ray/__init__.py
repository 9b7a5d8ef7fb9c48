"""Workers on a Ray cluster, or on one of our own on this machine.

Ray Train places workers that go in step, and starts all of them again after a failure. Workers that meet at a center
are actors of their own: one that is lost is started again, perhaps elsewhere, while the others go on. The center is
an actor too, whose state outlives it.
"""

from ...errors import ConfigError
from ..job import Job, Result

__all__ = ["run"]


def run(job: Job) -> Result:
    """Runs the job; what worker 0 has to give."""
    from . import cluster

    if job.workers < 1:
        raise ConfigError(f"workers={job.workers}: at least one is needed.")
    with cluster.joined(job) as there:
        from . import apart, train

        if job.centered and job.workers > 1:
            return apart.run(job, there)
        return train.run(job, there) or apart.run(job, there)
