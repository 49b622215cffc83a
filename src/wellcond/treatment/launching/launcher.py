"""`Launcher`: runs jobs, and yields each as it ends; `InProcess`: one after the other, here."""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

from wellcond.results import Progress

RETRIES = 2
"""Number of times that a failed job is tried again."""


class Ended(Protocol):
    """How a job ended; each kind of job has its own."""

    @property
    def error(self) -> str:
        """The reason it failed, in one line; "" if it did not."""


E = TypeVar("E", bound=Ended)


@dataclass(frozen=True, kw_only=True)
class Job(ABC, Generic[E]):
    """Something to run anywhere. Other processes get it by pickle.

    Attributes:
        device: The device that it needs.
        attempt: The number of this attempt, from 1.
    """

    device: str = "cpu"
    attempt: int = 1

    @property
    @abstractmethod
    def name(self) -> str:
        """What it is called in messages."""

    @abstractmethod
    def run(self, progress: Progress) -> E:
        """Run it here."""

    @abstractmethod
    def failed(self, error: str) -> E:
        """The end of a job that failed."""

    def run_elsewhere(self) -> E:
        """Run it on another machine, from which no progress is heard."""
        return self.run(lambda _what, _share: None)


Tell = Callable[[Any, str, float], None]
"""Called as (which job, what it is doing, share of it done)."""


@dataclass(frozen=True)
class Launcher(ABC):
    """Runs jobs. What fails, or is killed with its worker, is tried again.

    Attributes:
        retries: Number of times that a failed job is tried again.
    """

    retries: int = RETRIES

    @abstractmethod
    def run(self, jobs: Sequence[Job[E]], tell: Tell) -> Generator[E]:
        """Run all jobs, the first ones first, and yield each as it ends."""

    @contextlib.contextmanager
    def open(self) -> Iterator[None]:
        """Inside, what one run has started is there for the next."""
        yield

    def again(self, job: Job[E], ended: E) -> Job[E] | None:
        """The next attempt of a job that ended so; None if there is none."""
        is_over = not ended.error or job.attempt > self.retries
        return None if is_over else replace(job, attempt=job.attempt + 1)


@dataclass(frozen=True)
class InProcess(Launcher):
    """One job after the other, in this process."""

    def run(self, jobs: Sequence[Job[E]], tell: Tell) -> Generator[E]:
        for first in jobs:
            job: Job[E] | None = first
            while job is not None:
                ended = job.run(partial(tell, job))
                job = self.again(job, ended)
            yield ended
