"""Whether a training with a recorder is bit for bit the one without it: on a GPU with deterministic algorithms too.

python -m benchmarks.recording_trajectories out.json --device cuda    # needs torch and numpy alone

Every loop runs three times: twice without a recorder, which shows whether it is the same each time at all, and once
with one. The recorder's clock says that recording takes no time, so that everything it can do is done as often as may
be. Compared are weights, buffers, gradients, states of optimizers, random numbers, losses, hooks and modes.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import wellcond as wc
from benchmarks.timing import environment

STEPS = 16
LONGEST = 80.0
"""Seconds after which nothing further is begun."""
loss_function = nn.CrossEntropyLoss()

Optimizers = Callable[[nn.Module], list[torch.optim.Optimizer]]
Loop = Callable[[Callable[..., Any], str], dict[str, Any]]
"""Trains with the recorder that the function makes, on a device; returns everything that it has changed."""


class Small(nn.Module):
    """Convolution, BatchNorm, dropout, a functional ReLU, tanh, LayerNorm and a tied weight."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(2, 6, 3, padding=1)
        self.bn = nn.BatchNorm1d(6)
        self.dropout = nn.Dropout(0.3)
        self.hidden = nn.Linear(6, 6)
        self.tanh = nn.Tanh()
        self.norm = nn.LayerNorm(6)
        self.tied = nn.Linear(6, 6, bias=False)
        self.tied.weight = self.hidden.weight
        self.relu = nn.ReLU()
        self.head = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.relu(self.bn(self.conv(x))).mean(-1)
        h = self.norm(self.tanh(self.hidden(self.dropout(h))))
        return self.head(self.relu(self.tied(h)))


def batches(steps: int, size: int = 12, device: str = "cpu") -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(3)
    inputs = torch.randn(steps, size, 2, 5, generator=generator)
    return [(x.to(device), torch.randint(0, 3, (size,), generator=generator).to(device)) for x in inputs]


def everything_of(model: nn.Module, *optimizers: torch.optim.Optimizer) -> dict[str, Any]:
    """All that a training has changed, and the random numbers that it would draw next."""
    return {
        "model": {name: value.clone() for name, value in model.state_dict().items()},
        "optimizers": [each.state_dict()["state"] for each in optimizers],
        "gradients": {name: None if p.grad is None else p.grad.clone() for name, p in model.named_parameters()},
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else [],
        "python": random.getstate(),
        "numpy": [part.tobytes() if isinstance(part, np.ndarray) else part for part in np.random.get_state()],
        "hooks": [len(m._forward_hooks) for m in model.modules()],
        "modes": [m.training for m in model.modules()],
    }


def seed() -> None:
    torch.manual_seed(0)
    random.seed(0)
    np.random.seed(0)


def first_difference(one: Any, other: Any, where: str = "") -> str | None:
    """Where two nested results differ in the first bit; None if they are the same."""
    if isinstance(one, dict):
        if one.keys() != other.keys():
            return where or "/"
        pairs = [(f"{where}/{key}", one[key], other[key]) for key in one]
    elif isinstance(one, (list, tuple)):
        if len(one) != len(other):
            return where or "/"
        pairs = [(f"{where}/{i}", a, b) for i, (a, b) in enumerate(zip(one, other, strict=True))]
    elif isinstance(one, Tensor):
        is_same = one.dtype == other.dtype and torch.equal(_bits(one), _bits(other))
        return None if is_same else where or "/"
    else:
        return None if one == other else where or "/"
    return next((place for each, a, b in pairs if (place := first_difference(a, b, each)) is not None), None)


def _bits(t: Tensor) -> Tensor:
    """Its bytes, by which NaN is equal to itself."""
    return t.to_dense().detach().contiguous().reshape(-1).view(torch.uint8)


class NoRecorder:
    """Stands in for a recorder in a loop without one."""

    def step(self, *_: Any, **__: Any) -> None: ...
    def close(self) -> None: ...


class Clock:
    """A clock on which recording takes no time, so that everything is due as often as it may be."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def recording_all(recorders: list[wc.Recorder]) -> Callable[..., wc.Recorder]:
    """Makes recorders on a clock that only their own steps advance, and lists them."""
    clock = Clock()

    def record(model: nn.Module, optimizer: Any, loss: Any, **options: Any) -> wc.Recorder:
        recorders.append(wc.Recorder(model, optimizer, loss, budget=1.0, clock=clock, **options))
        real = recorders[-1].step

        def step(*values: Any, **settings: Any) -> None:
            clock.now += 1.0
            real(*values, **settings)

        recorders[-1].step = step  # type: ignore[method-assign]
        return recorders[-1]

    return record


# optimizers

sgd, adam, adamw = torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW
OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "SGD": lambda p: sgd(p, lr=0.05, momentum=0.9, nesterov=True, weight_decay=1e-3),
    "SGD foreach": lambda p: sgd(p, lr=0.05, foreach=True),
    "SGD fused": lambda p: sgd(p, lr=0.05, momentum=0.5, fused=True),
    "Adam": lambda p: adam(p, lr=1e-2),
    "Adam amsgrad": lambda p: adam(p, lr=1e-2, amsgrad=True, foreach=False),
    "Adam fused": lambda p: adam(p, lr=torch.tensor(1e-2), fused=True),
    "AdamW": lambda p: adamw(p, lr=1e-2, weight_decay=0.1),
    "AdamW fused": lambda p: adamw(p, lr=1e-2, weight_decay=0.1, fused=True),
    "NAdam": lambda p: torch.optim.NAdam(p, lr=1e-2),
    "RAdam": lambda p: torch.optim.RAdam(p, lr=1e-2),
    "Adamax": lambda p: torch.optim.Adamax(p, lr=1e-2),
    "Adagrad": lambda p: torch.optim.Adagrad(p, lr=1e-2),
    "Adadelta": lambda p: torch.optim.Adadelta(p),
    "Adafactor": lambda p: torch.optim.Adafactor(p),
    "RMSprop": lambda p: torch.optim.RMSprop(p, lr=1e-3, centered=True, momentum=0.5),
    "Rprop": lambda p: torch.optim.Rprop(p, lr=1e-3),
    "ASGD": lambda p: torch.optim.ASGD(p, lr=1e-2),
    "maximize": lambda p: sgd(p, lr=1e-4, maximize=True),
}
ON_A_GPU: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "Adam capturable": lambda p: adam(p, lr=torch.tensor(1e-2, device="cuda"), capturable=True),
    "AdamW foreach": lambda p: adamw(p, lr=1e-2, foreach=True),
}


def muon(model: nn.Module) -> list[torch.optim.Optimizer]:
    """Muon for matrices, which are all that it takes, and AdamW for the rest."""
    params = list(model.parameters())
    matrices, others = [p for p in params if p.dim() == 2], [p for p in params if p.dim() != 2]
    return [torch.optim.Muon(matrices, lr=0.02), adamw(others, lr=1e-2)]


# loops


def plain_loop(optimizers: Optimizers, *, dtype: torch.dtype | None = None) -> Loop:
    """Random augmentation, BatchNorm and dropout; under autocast if a type is given."""

    def loop(record: Callable[..., Any], device: str) -> dict[str, Any]:
        model = Small().to(device)
        return trained(model, model, optimizers(model), record, device, dtype)

    return loop


def trained(
    model: nn.Module,
    called: Callable[[Tensor], Tensor],
    optimizers: list[torch.optim.Optimizer],
    record: Callable[..., Any],
    device: str,
    dtype: torch.dtype | None = None,
) -> dict[str, Any]:
    rec = record(model, optimizers if len(optimizers) > 1 else optimizers[0], loss_function)
    losses = []
    for index, (x, y) in enumerate(batches(STEPS, device=device)):
        x = x + 0.1 * torch.randn_like(x)
        for optimizer in optimizers:
            # memory of a CUDA graph does not outlast the step
            optimizer.zero_grad(set_to_none=index % 2 == 0 or called is not model)
        with torch.autocast(device, dtype=dtype) if dtype else contextlib.nullcontext():
            value = loss_function(called(x), y)
        value.backward()
        for optimizer in optimizers:
            optimizer.step()
        rec.step(value, (x, y))
        losses.append(value.detach().clone())
    rec.close()
    return everything_of(model, *optimizers) | {"losses": losses}


def scaled(optimizers: Optimizers) -> Loop:
    """Half precision with a GradScaler, accumulation over two batches, and clipping."""

    def loop(record: Callable[..., Any], device: str) -> dict[str, Any]:
        model = Small().to(device)
        (optimizer,) = optimizers(model)
        scaler = torch.amp.GradScaler(device, init_scale=2.0**20, growth_interval=3)  # the first steps overflow
        rec = record(model, optimizer, loss_function, scaler=scaler)
        for index, (x, y) in enumerate(batches(2 * STEPS, device=device)):
            with torch.autocast(device, dtype=torch.float16 if device == "cuda" else torch.bfloat16):
                value = loss_function(model(x), y)
            scaler.scale(value / 2).backward()
            if index % 2:
                scaler.unscale_(optimizer)
                nn.utils.clip_grad_norm_(model.parameters(), 0.1)
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()
            rec.step(value, (x, y))
        rec.close()
        return everything_of(model, optimizer) | {"scale": scaler.get_scale()}

    return loop


def lbfgs(record: Callable[..., Any], device: str) -> dict[str, Any]:
    model = Small().to(device)
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=3)
    rec = record(model, optimizer, loss_function)
    for x, y in batches(8, device=device):

        def closure(x: Tensor = x, y: Tensor = y) -> Tensor:
            optimizer.zero_grad()
            value = loss_function(model(x), y)
            value.backward()
            return value

        rec.step(optimizer.step(closure), (x, y))
    rec.close()
    return everything_of(model, optimizer)


def compiled(mode: str, dtype: torch.dtype | None = None, **options: Any) -> Loop:
    """One compiled model for all three runs: a second one may be compiled to other kernels."""
    models: list[tuple[nn.Module, Any, dict[str, Tensor]]] = []

    def loop(record: Callable[..., Any], device: str) -> dict[str, Any]:
        if not models:
            model = Small().to(device)
            start = {name: value.clone() for name, value in model.state_dict().items()}
            models.append((model, torch.compile(model, mode=mode, **options), start))
            trained(*models[0][:2], [sgd(model.parameters(), lr=0.0)], lambda *_: NoRecorder(), device, dtype)
            seed()
        model, called, start = models[0]
        model.load_state_dict(start)
        model.zero_grad()
        return trained(model, called, [sgd(model.parameters(), lr=0.05, momentum=0.9)], record, device, dtype)

    return loop


def captured(record: Callable[..., Any], device: str) -> dict[str, Any]:
    """A whole step as a CUDA graph, of which hooks see nothing."""
    model = Small().to(device)
    optimizer = sgd(model.parameters(), lr=0.05, momentum=0.9)
    rec = record(model, optimizer, loss_function)
    data = batches(STEPS, device=device)
    x, y = (t.clone() for t in data[0])

    def step() -> Tensor:
        optimizer.zero_grad(set_to_none=True)
        value: Tensor = loss_function(model(x), y)
        value.backward()
        optimizer.step()
        return value

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        value = step()
    losses = []
    for inputs, targets in data * 5:
        x.copy_(inputs)
        y.copy_(targets)
        graph.replay()
        rec.step(value, (inputs, targets))
        losses.append(value.detach().clone())
    rec.close()
    if isinstance(rec, wc.Recorder):
        recorded = rec.history.series("training_loss").values.tolist()[-10:]
        if recorded != [float(each) for each in losses[-10:]]:
            raise AssertionError(f"losses of a captured step are {losses[-10:]}, and {recorded} were recorded")
    return everything_of(model, optimizer) | {"losses": losses}


def loops(device: str) -> dict[str, Loop]:
    """All that there are for a device."""
    is_cuda = device == "cuda"

    def of(make: Callable[..., torch.optim.Optimizer]) -> Optimizers:
        return lambda model: [make(model.parameters())]

    chosen = {name: plain_loop(of(make)) for name, make in (OPTIMIZERS | (ON_A_GPU if is_cuda else {})).items()}
    if hasattr(torch.optim, "Muon"):
        chosen["Muon and AdamW"] = plain_loop(muon)
    chosen |= {
        "LBFGS": lbfgs,
        "bfloat16 autocast": plain_loop(of(OPTIMIZERS["AdamW"]), dtype=torch.bfloat16),
        "GradScaler": scaled(of(OPTIMIZERS["SGD"])),
        "GradScaler, fused Adam": scaled(of(lambda p: adam(p, lr=1e-2, fused=True))),
    }
    if is_cuda:
        chosen |= {
            "CUDA graph of the whole step": captured,
            "compiled": compiled("default"),
            "compiled, CUDA graphs": compiled("reduce-overhead"),
            "compiled, bfloat16 autocast": compiled("default", torch.bfloat16),
        }
    else:
        chosen["compiled"] = compiled("default", backend="aot_eager")
    return chosen


# comparing


def compared(loop: Loop, device: str) -> dict[str, Any]:
    """What differs between two runs without a recorder, and with one."""
    recorders: list[wc.Recorder] = []
    results = []
    for record in (lambda *_, **__: NoRecorder(), lambda *_, **__: NoRecorder(), recording_all(recorders)):
        seed()
        results.append(loop(record, device))
    once, again, recorded = results
    history = recorders[0].history
    return {
        "without": first_difference(once, again),
        "with": first_difference(once, recorded),
        "problems": recorders[0].problems,
        "notes": recorders[0].notes,
        "quantities": len(list(history.quantities())),
        "rows": len(history),
    }


@contextlib.contextmanager
def deterministic() -> Iterator[None]:
    """Algorithms of torch that give the same bits each time."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--only", nargs="+", metavar="LOOP")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    began = time.perf_counter()
    results: dict[str, Any] = {}
    with deterministic():
        for name, loop in loops(options.device).items():
            if options.only and name not in options.only:
                continue
            if time.perf_counter() - began > LONGEST:
                results[name] = {"left out": f"{LONGEST:.0f} s have passed"}
                continue
            start = time.perf_counter()
            try:
                results[name] = compared(loop, options.device)
            except Exception as error:
                results[name] = {"error": f"{type(error).__name__}: {error}", "where": traceback.format_exc()[-1500:]}
            results[name]["seconds"] = time.perf_counter() - start
            print(name, {key: value for key, value in results[name].items() if key != "notes"}, flush=True)
    failed = [name for name, row in results.items() if "error" in row or (row.get("with") and not row["without"])]
    print(f"{len(results)} loops in {time.perf_counter() - began:.0f} s; not bit for bit: {failed or 'none'}")
    content = {"environment": environment(options.device), "results": results}
    options.out.write_text(json.dumps(content, indent=1) + "\n")
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
