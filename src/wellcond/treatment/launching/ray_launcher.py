"""`Ray`: jobs on the machines of a Ray cluster, or on one that is started here."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from wellcond.errors import MissingExtra, WellcondError
from wellcond.treatment.launching.launcher import E, Job, Launcher, Tell


class ClusterError(WellcondError, ConnectionError):
    """The Ray cluster cannot be reached, or lacks what the jobs need."""


@dataclass(frozen=True)
class Ray(Launcher):
    """Jobs as tasks of a Ray cluster. Every machine needs wellcond; no files are shared.

    How they ended comes back here. Data sets must lie in the same folder on every machine. Each job gets one core, and
    on CUDA a GPU or a share of it.

    Attributes:
        address: The address of the cluster, such as "auto" on one of its machines; None starts one on this machine.
        workers: Most jobs that run at once; None for all that fit on the cluster.
        gpus: The share of a GPU that a job gets, if the device is CUDA; ¼ lets four share one.
    """

    address: str | None = None
    workers: int | None = None
    gpus: float = 1.0

    def run(self, jobs: Sequence[Job[E]], tell: Tell) -> Generator[E]:
        ray = _imported()
        with self._connected(ray):
            self._check_gpus(ray, jobs)
            run = ray.remote(max_retries=0)(_run)  # a killed worker is seen, and its job tried again, below
            waiting = deque(jobs)
            running: dict[Any, Job[E]] = {}
            try:
                while waiting or running:
                    while waiting and (self.workers is None or len(running) < self.workers):
                        job = waiting.popleft()
                        gpus = self.gpus if _is_cuda(job) else 0
                        running[run.options(num_cpus=1, num_gpus=gpus).remote(job)] = job
                    (ready,), _ = ray.wait(list(running), num_returns=1)
                    job = running.pop(ready)
                    ended = _ended(ray, ready, job)
                    following = self.again(job, ended)
                    if following is None:
                        yield ended
                    else:
                        waiting.appendleft(following)
            finally:
                for reference in running:
                    ray.cancel(reference, force=True)

    def _check_gpus(self, ray: Any, jobs: Sequence[Job[E]]) -> None:
        """Without this, Ray would wait forever for a machine with a GPU."""
        known = ray.cluster_resources().get("GPU", 0)
        if any(map(_is_cuda, jobs)) and known < self.gpus:
            raise ClusterError(f"the jobs need {self.gpus:g} GPU each, and the Ray cluster has {known:g}.")

    @contextlib.contextmanager
    def _connected(self, ray: Any) -> Iterator[None]:
        """An existing connection is used, and not closed."""
        if ray.is_initialized():
            yield
            return
        local = {"num_cpus": self.workers, "include_dashboard": False} if self.address is None else {}
        try:
            ray.init(address=self.address or "local", log_to_driver=False, configure_logging=False, **local)
        except (ConnectionError, ValueError, RuntimeError) as error:
            message = " ".join(str(error).split())
            raise ClusterError(
                f"no Ray cluster answers at {self.address!r} ({message}). Start one: ray start --head. If it is there "
                "and wants a token, set RAY_AUTH_MODE=token and the token as Ray's pages on token authentication say."
            ) from error
        try:
            yield
        finally:
            ray.shutdown()


def _is_cuda(job: Job[E]) -> bool:
    return job.device.startswith("cuda")


def _run(job: Job[E]) -> E:
    return job.run_elsewhere()


def _ended(ray: Any, reference: Any, job: Job[E]) -> E:
    try:
        ended: E = ray.get(reference)
    except ray.exceptions.RayError as error:
        text = next(iter(str(error).splitlines()), type(error).__name__)
        return job.failed(f"{type(error).__name__}: {text}")
    return ended


def _imported() -> Any:
    try:
        import ray
    except ImportError as error:
        raise MissingExtra("ray", "ray") from error
    return ray
