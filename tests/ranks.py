"""Functions that several processes run together, as the ranks of one training on gloo."""

from __future__ import annotations

import contextlib
import gc
import multiprocessing
import signal
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.connection import Connection
from typing import Any

import torch
from torch import distributed

CONTEXT = multiprocessing.get_context("forkserver")
# torch is imported once, by the process from which all others are forked, with what every optimizer imports
CONTEXT.set_forkserver_preload(
    ["torch", "torch._dynamo", "torch.distributed.fsdp", "torch.distributed.tensor.parallel", "wellcond", "pytest"]
)


@dataclass(frozen=True)
class Outcome:
    """How a function ended in one process.

    Attributes:
        value: What it returned.
        error: The class and the message of its exception; empty if it returned.
        seconds: What it took.
        trace: Where the exception came from.
    """

    value: Any = None
    error: str = ""
    seconds: float = 0.0
    trace: str = ""


DIED = Outcome(error="the process has ended")


def outcomes(function: Callable[..., Any], size: int, *args: Any, seconds: float = 120.0) -> list[Outcome]:
    """How `function(rank, *args)` ended in each of `size` processes; one that runs longer is killed.

    Args:
        function: A function at the top level of a module.
        size: The number of processes.
        *args: Its further arguments.
        seconds: How long they may take together.
    """
    with tempfile.TemporaryDirectory() as folder:
        pipes = [CONTEXT.Pipe(duplex=False) for _ in range(size)]
        processes = [
            CONTEXT.Process(target=_run, args=(sender, function, rank, size, f"{folder}/store", args), daemon=True)
            for rank, (_, sender) in enumerate(pipes)
        ]
        for process, (_, sender) in zip(processes, pipes, strict=True):
            process.start()
            sender.close()
        until = time.monotonic() + seconds
        try:
            return [_received(receiver, until) for receiver, _ in pipes]
        finally:
            for process in processes:
                process.join(5.0)
                process.kill()


def in_ranks(function: Callable[..., Any], size: int, *args: Any) -> list[Any]:
    """What `function(rank, *args)` returns in each of `size` processes; all must return."""
    results = outcomes(function, size, *args)
    assert not [outcome for outcome in results if outcome.error], "\n".join(
        each.trace or each.error for each in results
    )
    return [outcome.value for outcome in results]


def _received(receiver: Connection, until: float) -> Outcome:
    try:
        if not receiver.poll(max(0.0, until - time.monotonic())):
            return Outcome(error="the process still runs")
        outcome: Outcome = receiver.recv()
        return outcome
    except EOFError:
        return DIED


def _run(sender: Connection, function: Callable[..., Any], rank: int, size: int, store: str, args: Any) -> None:
    torch.set_num_threads(1)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell ignores it for what runs in the background
    distributed.init_process_group("gloo", f"file://{store}", timedelta(seconds=60), rank=rank, world_size=size)
    began = time.monotonic()
    try:
        outcome = Outcome(function(rank, *args), seconds=time.monotonic() - began)
    except BaseException as error:
        text = f"{type(error).__name__}: {error}"
        outcome = Outcome(error=text, seconds=time.monotonic() - began, trace=traceback.format_exc())
    sender.send(outcome)
    gc.collect()  # a wrapped model is part of a cycle, and must not outlive the group
    with contextlib.suppress(Exception):
        distributed.destroy_process_group()
