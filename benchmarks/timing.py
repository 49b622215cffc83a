"""Timing that survives a noisy machine: one process, interleaved rounds, medians, CPU time."""

from __future__ import annotations

import ctypes
import gc
import platform
import statistics
import time
from collections.abc import Callable, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

import wellcond


class Clock:
    """CPU seconds of this process on the CPU (one thread), wall seconds between synchronizations on a GPU."""

    def __init__(self, device: str) -> None:
        self.is_cuda = device.startswith("cuda")

    def __call__(self, function: Callable[[], Any]) -> tuple[float, Any]:
        if self.is_cuda:
            torch.cuda.synchronize()
            begin = time.perf_counter()
            result = function()
            torch.cuda.synchronize()
            return time.perf_counter() - begin, result
        begin = time.process_time()
        result = function()
        return time.process_time() - begin, result

    def wall(self, function: Callable[[], Any]) -> float:
        """Wall seconds, on a GPU between synchronizations."""
        if self.is_cuda:
            return self(function)[0]
        begin = time.perf_counter()
        function()
        return time.perf_counter() - begin


def interleaved(
    clock: Clock, tasks: Mapping[str, Callable[[], Any]], rounds: int, limit_s: float = float("inf")
) -> dict[str, float]:
    """Median seconds of each task; every round runs each once, so that a slow minute hits all alike.

    Args:
        clock: Of the device.
        tasks: By name.
        rounds: How often each is timed, after it has run once.
        limit_s: Begin no further round after so long.
    """
    seconds: dict[str, list[float]] = {name: [] for name in tasks}
    end = time.perf_counter() + limit_s
    for task in tasks.values():
        task()  # warm up
    for done in range(rounds):
        if done and time.perf_counter() > end:
            break
        for name, task in tasks.items():
            seconds[name].append(clock(task)[0])
    return {name: statistics.median(values) for name, values in seconds.items()}


def peak_memory(function: Callable[[], Any], device: str) -> float | None:
    """GiB by which memory peaks above where it stood while `function` runs, or None where it cannot be read."""
    if device.startswith("cuda"):
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        function()
        return (torch.cuda.max_memory_allocated() - before) / 2**30
    gc.collect()
    try:
        ctypes.CDLL(None).malloc_trim(0)  # or memory that was freed before would be used again, unseen
        Path("/proc/self/clear_refs").write_text("5")  # resets the peak of the resident set
    except (OSError, AttributeError):
        return None
    before = _status("VmRSS")
    function()
    return (_status("VmHWM") - before) / 2**20


def _status(field: str) -> int:
    line = next(x for x in Path("/proc/self/status").read_text().splitlines() if x.startswith(field))
    return int(line.split()[1])


def environment(device: str) -> dict[str, Any]:
    """Versions and hardware, for the record."""
    names = ("torch", "numpy", "scipy", "transformers", "curvlinops-for-pytorch", "PyHessian", "hessian-eigenthings",
             "Landscaper", "nngeometry", "backpack-for-pytorch", "torchmortem", "torch-audit",
             "wandb", "cockpit-for-pytorch", "pyarrow")  # fmt: skip
    versions: dict[str, str | None] = {"wellcond": wellcond.__version__}
    for name in names:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            versions[name] = None
    is_cuda = device.startswith("cuda")
    return {
        "versions": versions,
        "python": platform.python_version(),
        "processor": _processor(),
        "device": torch.cuda.get_device_name() if is_cuda else "cpu",
        "threads": torch.get_num_threads(),
        "time": "wall seconds, synchronized" if is_cuda else "CPU seconds of one thread",
    }


def _processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    return next((x.split(":")[1].strip() for x in lines if x.startswith("model name")), platform.processor())
