"""What bounds a training step on a GPU: kernels, launches, memory traffic, arithmetic."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile
from torch.utils.flop_counter import FlopCounterMode

LAUNCHES = ("cudaLaunchKernel", "cudaLaunchKernelExC", "cuLaunchKernel", "cuLaunchKernelEx", "cudaGraphLaunch",
            "cudaMemcpyAsync", "cudaMemsetAsync")  # fmt: skip
"""What the host does to start work on the device."""


def seconds_of(task: Callable[[], Any], repeats: int = 200) -> float:
    """Of one call, back to back."""
    for _ in range(3):
        task()
    torch.cuda.synchronize()
    begin = time.perf_counter()
    for _ in range(repeats):
        task()
    torch.cuda.synchronize()
    return (time.perf_counter() - begin) / repeats


def captured(task: Callable[[], Any]) -> Callable[[], None]:
    """A task as a CUDA graph."""
    side, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            task()
    torch.cuda.current_stream().wait_stream(side)
    with torch.cuda.graph(graph, stream=side):
        task()
    return graph.replay


def kernels_of(task: Callable[[], Any], repeats: int = 20) -> dict[str, float]:
    """Kernels, their time on the device and the launches by the host, of one call."""
    task()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiled:
        for _ in range(repeats):
            task()
        torch.cuda.synchronize()
    events = profiled.events() or []
    on_device = [event for event in events if event.device_type == DeviceType.CUDA]
    launches = [event for event in events if event.name in LAUNCHES]
    return {
        "kernels": len(on_device) / repeats,
        "kernel_ms": sum(event.time_range.elapsed_us() for event in on_device) / repeats / 1e3,
        "launches": len(launches) / repeats,
    }


def host_seconds_of(task: Callable[[], Any], repeats: int = 20) -> float:
    """Until a call returns, without waiting for the device."""
    torch.cuda.synchronize()
    begin = time.perf_counter()
    for _ in range(repeats):
        task()
    elapsed = (time.perf_counter() - begin) / repeats
    torch.cuda.synchronize()
    return elapsed


def bounds(
    model: nn.Module, loss: Callable[[], Tensor], optimizer: torch.optim.Optimizer, x: Tensor, *, graph: bool, size: int
) -> dict[str, Any]:
    """What a step is made of, each timed alone, and what the device would need at the least.

    Args:
        model: The network.
        loss: Its loss on a fixed batch.
        optimizer: Of its parameters.
        x: The inputs of that batch.
        graph: Whether the passes are a CUDA graph.
        size: Bytes of an activation.
    """

    def passes() -> None:
        optimizer.zero_grad(set_to_none=True)
        loss().backward()  # type: ignore[no-untyped-call]

    run = captured(passes) if graph else passes
    run()
    forward_backward, traffic, bandwidth = seconds_of(run), activation_bytes(model, x, size), copy_bandwidth()
    flops = flops_of(model, x)
    return {
        "forward_backward_ms": 1e3 * forward_backward,
        "forward_backward_host_ms": 1e3 * host_seconds_of(run),
        "optimizer_ms": 1e3 * seconds_of(optimizer.step),
        "optimizer_host_ms": 1e3 * host_seconds_of(optimizer.step),
        "profile_forward_backward": kernels_of(run),
        "profile_optimizer": kernels_of(optimizer.step),
        "activation_MB": traffic / 1e6,
        "copy_bandwidth_GB_s": bandwidth / 1e9,
        "activation_ms_at_that_bandwidth": 1e3 * traffic / bandwidth,
        "GFLOP": flops / 1e9,
        "TFLOP_s": flops / forward_backward / 1e12,
    }


def flops_of(model: nn.Module, x: Tensor) -> float:
    """Of a forward and backward pass."""
    with FlopCounterMode(display=False) as counter:
        model(x).sum().backward()
    return float(counter.get_total_flops())


def activation_bytes(model: nn.Module, x: Tensor, size: int) -> float:
    """What a step reads and writes if every module does for itself: inputs and outputs once forward, twice backward.

    BatchNorm reads its input twice in either direction.
    """
    counted = 0

    def count(module: nn.Module, inputs: Any, output: Tensor) -> None:
        nonlocal counted
        extra = inputs[0].numel() if isinstance(module, nn.BatchNorm2d) else 0
        counted += 3 * (inputs[0].numel() + output.numel()) + 2 * extra

    leaves = [module for module in model.modules() if not list(module.children())]
    hooks = [module.register_forward_hook(count) for module in leaves]
    with torch.no_grad():
        model(x)
    for hook in hooks:
        hook.remove()
    return float(counted * size)


def copy_bandwidth() -> float:
    """Bytes read and written per second by a large copy."""
    a = torch.empty(2**28, dtype=torch.float32, device="cuda")
    b = torch.empty_like(a)
    return 2 * a.nbytes / seconds_of(lambda: b.copy_(a), 20)
