"""`Processes`: several jobs at once, each in its own process on this machine."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing import connection, get_context, parent_process
from multiprocessing.context import SpawnProcess
from typing import Any

import torch

from wellcond.errors import Unsupported
from wellcond.network.calling import one_line
from wellcond.treatment.launching.launcher import E, Job, Launcher, Tell

PROGRESS_SECONDS = 0.2
"""Seconds between messages about progress."""
PATIENCE = 10.0
"""Seconds after which a process that does not end is killed."""


@dataclass(frozen=True)
class _Worker:
    """A process, and the pipe to it."""

    process: SpawnProcess
    pipe: connection.Connection

    @classmethod
    def start(cls, threads: int) -> _Worker:
        context = get_context("spawn")
        ours, theirs = context.Pipe()
        process = context.Process(target=_serve, args=(theirs, threads))
        process.start()
        theirs.close()  # so that reading from our end fails when the worker is gone
        return cls(process, ours)

    def send(self, job: Job[Any]) -> None:
        try:
            self.pipe.send(job)
        except BrokenPipeError:
            pass  # the worker is gone: reading from it will report that
        except Exception as error:
            raise Unsupported(
                f"{job.name} cannot be sent to another process ({error}). Define its function at the top "
                "level of a module, or run it in this process."
            ) from error

    def stop(self) -> None:
        self.pipe.close()
        self.process.terminate()
        self.process.join(PATIENCE)
        self.process.kill()
        self.process.join()


@dataclass(frozen=True)
class Processes(Launcher):
    """Several jobs at once, each in its own process on this machine. On a GPU all of them share it.

    If a process is killed, only its job fails. A process whose job failed on a GPU is replaced: after a CUDA error
    it could run nothing more. The processes end with this one.

    Attributes:
        workers: The number of processes; None for one per core.
        stop: When something arrives here, the jobs under way are given up and the run ends.
    """

    workers: int | None = None
    stop: connection.Connection | None = None
    _open: list[list[_Worker]] = field(default_factory=list, init=False, repr=False, compare=False)
    """Processes that wait for the next run, for each `open()` that this is inside of."""

    @contextlib.contextmanager
    def open(self) -> Iterator[None]:
        """Inside, the processes of one run wait for the next: each takes seconds to import torch."""
        self._open.append([])
        try:
            yield
        finally:
            _end(self._open.pop())

    def run(self, jobs: Iterable[Job[E] | None], tell: Tell) -> Generator[E]:
        """Run all jobs. The next one is asked for when a process is free for it; None if it has to wait for others."""
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        workers = self.workers or cores
        threads = max(1, cores // workers)
        waiting = iter(jobs)
        failed: list[Job[E]] = []
        idle = self._open[-1] if self._open else []
        busy: dict[connection.Connection, tuple[_Worker, Job[E]]] = {}
        try:
            while True:
                while len(busy) < workers and (following := failed.pop() if failed else next(waiting, None)):
                    worker = idle.pop() if idle else _Worker.start(threads)
                    busy[worker.pipe] = worker, following
                    worker.send(following)
                if not busy:
                    return
                ready = connection.wait([*busy, *([self.stop] if self.stop else [])])
                for pipe in ready:
                    if pipe is self.stop:
                        continue
                    worker, job = busy[pipe]  # type: ignore[index]
                    message = _received(worker, job)
                    if isinstance(message, tuple):
                        tell(job, *message)
                        continue
                    del busy[worker.pipe]
                    if worker.process.is_alive() and (not message.error or job.device == "cpu"):
                        idle.append(worker)
                    else:
                        worker.stop()
                    again = self.again(job, message)
                    if again is None:
                        yield message
                    else:
                        failed.append(again)
                if self.stop in ready:
                    return
        finally:
            _end([*(() if self._open else idle), *(worker for worker, _ in busy.values())])


def _end(workers: Sequence[_Worker]) -> None:
    for worker in workers:
        worker.process.terminate()  # all at once: each may take a while to end
    for worker in workers:
        worker.stop()


def _received(worker: _Worker, job: Job[E]) -> E | tuple[str, float]:
    """How the job ended, or what it is doing and the share of it that is done."""
    try:
        message: E | tuple[str, float] | str = worker.pipe.recv()
    except (EOFError, OSError):
        worker.process.join()
        code = worker.process.exitcode or 0
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        message = f"its process {how}"
    return job.failed(message) if isinstance(message, str) else message


def _serve(pipe: connection.Connection, threads: int) -> None:
    """Run jobs that come through a pipe, until it closes."""
    os.dup2(2, 1)  # output of the jobs must not get into the JSON on standard output
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that started this one
    threading.Thread(target=_end_with_parent, daemon=True).start()
    torch.set_num_threads(threads)
    last = 0.0

    def tell(what: str, share: float) -> None:
        nonlocal last
        if time.monotonic() - last > PROGRESS_SECONDS:
            last = time.monotonic()
            pipe.send((what, share))

    with contextlib.suppress(EOFError, BrokenPipeError):
        while True:
            try:
                job: Job[Any] = pipe.recv()
            except (ImportError, AttributeError) as error:
                pipe.send(f"its process could not load it: {error}")
                continue
            try:
                ended = job.run(tell)
            except Exception as error:  # of the user's code; it is raised where the job was sent from
                ended = f"{type(error).__name__}: {one_line(error)}"
            pipe.send(ended)


def _end_with_parent() -> None:
    """Otherwise the workers of a killed run would go on, and write to the same files as the run that continues it."""
    parent = parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)
