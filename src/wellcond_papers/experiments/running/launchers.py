"""Where cells are run: in this process, or in local processes. `ray_launcher.py` has a cluster.

A launcher takes tasks and yields each as it ends, with rows or with an error. What raises, or is killed with its
worker, is tried again.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing import connection, get_context, parent_process
from multiprocessing.context import SpawnProcess

import torch

from wellcond.errors import Unsupported
from wellcond.results import Progress
from wellcond_papers.experiments.running.store import Ended
from wellcond_papers.experiments.running.task import Task
from wellcond_papers.training.distributed import is_writer

RETRIES = 2
"""Number of times that a failed cell is tried again."""
PROGRESS_SECONDS = 0.2
"""Seconds between messages about progress."""
PATIENCE = 10.0
"""Seconds after which a process that does not end is killed."""

Tell = Callable[[Task, str, float], None]
"""Called as (which task, what it is doing, share of it done)."""


@dataclass(frozen=True)
class Launcher(ABC):
    """Runs tasks.

    Attributes:
        retries: Number of times that a failed cell is tried again.
    """

    retries: int = RETRIES

    @abstractmethod
    def run(self, tasks: Sequence[Task], tell: Tell) -> Generator[Ended]:
        """Run all tasks, the first ones first, and yield each as it ends."""

    def again(self, task: Task, ended: Ended) -> Task | None:
        """The next attempt of a task that ended so; None if there is none."""
        is_over = ended.record is not None or task.attempt > self.retries
        return None if is_over else replace(task, attempt=task.attempt + 1)


@dataclass(frozen=True)
class InProcess(Launcher):
    """One cell after the other, in this process."""

    def run(self, tasks: Sequence[Task], tell: Tell) -> Generator[Ended]:
        for first in tasks:
            task: Task | None = first
            while task is not None:
                ended = task.run(partial(tell, task))
                task = self.again(task, ended)
            yield ended


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

    def send(self, task: Task) -> None:
        try:
            self.pipe.send(task)
        except BrokenPipeError:
            pass  # the worker is gone: reading from it will report that
        except Exception as error:
            raise Unsupported(
                f"{task.cell.experiment} cannot be sent to another process ({error}). Define its function at the top "
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
    """Several cells at once, each in its own process on this machine. On a GPU all of them share it.

    If a process is killed, only its cell fails. A process whose cell failed on a GPU is replaced: after a CUDA error
    it could run nothing more. The processes end with this one.

    Attributes:
        workers: The number of processes; None for one per core.
        stop: When something arrives here, the cells under way are given up and the run ends.
    """

    workers: int | None = None
    stop: connection.Connection | None = None

    def run(self, tasks: Iterable[Task | None], tell: Tell) -> Generator[Ended]:
        """Run all tasks. The next one is asked for when a process is free for it; None if it has to wait for others."""
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        workers = self.workers or cores
        threads = max(1, cores // workers)
        waiting = iter(tasks)
        failed: list[Task] = []
        idle: list[_Worker] = []
        busy: dict[connection.Connection, tuple[_Worker, Task]] = {}
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
                    worker, task = busy[pipe]  # type: ignore[index]
                    message = _received(worker, task)
                    if not isinstance(message, Ended):
                        tell(task, *message)
                        continue
                    del busy[worker.pipe]
                    if worker.process.is_alive() and (message.record is not None or task.device == "cpu"):
                        idle.append(worker)
                    else:
                        worker.stop()
                    again = self.again(task, message)
                    if again is None:
                        yield message
                    else:
                        failed.append(again)
                if self.stop in ready:
                    return
        finally:
            left = [*idle, *(worker for worker, _ in busy.values())]
            for worker in left:
                worker.process.terminate()  # all at once: each may take a while to end
            for worker in left:
                worker.stop()


def _received(worker: _Worker, task: Task) -> Ended | tuple[str, float]:
    """How the task ended, or what it is doing and the share of it that is done."""
    try:
        message: Ended | tuple[str, float] | str = worker.pipe.recv()
    except (EOFError, OSError):
        worker.process.join()
        code = worker.process.exitcode or 0
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        message = f"its process {how}"
    return task.failed(message) if isinstance(message, str) else message


def _serve(pipe: connection.Connection, threads: int) -> None:
    """Run tasks that come through a pipe, until it closes."""
    os.dup2(2, 1)  # output of the cells must not get into the JSON on standard output
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
                task: Task = pipe.recv()
            except (ImportError, AttributeError) as error:
                pipe.send(f"its process could not load it: {error}")
            else:
                pipe.send(task.run(tell))


def _end_with_parent() -> None:
    """Otherwise the workers of a killed run would go on, and write to the same files as the run that continues it."""
    parent = parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def run_all(tasks: Sequence[Task], launcher: Launcher, progress: Progress) -> list[Ended]:
    """Run the tasks that have not finished yet, the longest first, and save each cell as it ends.

    Args:
        tasks: The tasks, in any order.
        launcher: Runs them.
        progress: Called as (what is being done, share of all work done, by the minutes of the tasks).

    Returns:
        How each task ended, in their order.
    """
    ended: dict[str, Ended] = {}
    for store in dict.fromkeys(task.store for task in tasks):
        store.prepare()
        ended |= store.finished(task.cell for task in tasks if task.store == store)
    left = sorted((t for t in tasks if t.cell.key not in ended), key=lambda t: -t.minutes)
    by_key = {task.cell.key: task for task in left}
    shares = {task.cell.key: float(task.cell.key in ended) for task in tasks}
    minutes = {task.cell.key: max(task.minutes, 1e-6) for task in tasks}

    def tell(task: Task, what: str, share: float) -> None:
        shares[task.cell.key] = share
        total = sum(minutes[key] * done for key, done in shares.items()) / sum(minutes.values())
        progress(f"{len(ended)}/{len(shares)} cells; {task.cell.experiment}: {what}", total)

    with contextlib.closing(launcher.run(list(by_key.values()), tell)) as running:
        for each in running:
            task = by_key[each.cell.key]
            if is_writer():
                task.store.put(each)
            ended[each.cell.key] = each
            tell(task, "finished" if each.record is not None else "failed", 1.0)
    return [ended[task.cell.key] for task in tasks]
