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
        raise ConfigError(f"workers={job.workers}: at least one is needed.", argument="workers")
    with cluster.joined(job) as there:
        found = None
        if not job.centered or job.workers == 1:
            cluster.load("ray.train.torch")
            from . import train

            found = train.run(job, there)
        if found is None:  # the workers meet at a center
            from . import apart

            found = apart.run(job, there)
        return found
