"""What recording costs: the same training with and without it, in turns of a few steps, in one process.

Each arm has its own model and optimizer, all from one seed; a second one without a recorder shows the noise. Arms take
turns in a random order, so that a slow minute of the machine hits all alike; the recorder's clock stands still while it
is another arm's turn.

python -m benchmarks --only recording                            # CPU, with the peers that are installed
python -m benchmarks --only recording --device cuda --out out    # eager, compiled, and with CUDA graphs
"""

from __future__ import annotations

import contextlib
import gc
import random
import statistics
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal
from unittest import mock

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.recorders import AGAIN, PEERS, PLAIN, WELLCOND, Tool, Wellcond, installed
from benchmarks.timing import Clock
from wellcond_papers.models import mlp, resnet

STEPS_IN_TURN = 5
PEERS_TURN = 5
"""A peer, some of which take several times as long, has every fifth turn."""
WATCHED_STEPS = 200
"""Steps in which operations that wait for a GPU are looked for."""
LONGER = 4
"""On a GPU, times the steps in a second eager run: 5 % of 500 steps of a few milliseconds do not pay for ten
products with the Hessian."""
ENOUGH, MOST_RUNS = 4.0, 5
"""A run whose steps take fewer seconds than this together is repeated, this often at most: runs of a second differ by
2 % from each other, also without a recorder. Ratios are medians over the runs."""
LONGEST = 420.0
"""Seconds after which nothing further is begun."""
Loss = Callable[[Any, Any], Tensor]
Mode = Literal["eager", "default", "reduce-overhead"]
"""As it is, or compiled in this mode; the last one replays CUDA graphs."""


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = nn.MultiheadAttention(width, heads, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        h, t = self.norm1(x), x.shape[1]
        mask = torch.ones(t, t, dtype=torch.bool, device=x.device).triu(1)
        x = x + self.attention(h, h, h, attn_mask=mask, need_weights=False)[0]
        return x + self.mlp(self.norm2(x))


class GPT(nn.Module):
    def __init__(self, vocabulary: int = 64, width: int = 128, blocks: int = 4, length: int = 64) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.blocks = nn.Sequential(*(Block(width, 4) for _ in range(blocks)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        places = self.places(torch.arange(tokens.shape[1], device=tokens.device))
        return self.head(self.norm(self.blocks(self.tokens(tokens) + places)))


def next_token(logits: Tensor, tokens: Tensor) -> Tensor:
    return F.cross_entropy(logits.flatten(0, 1), tokens.flatten())


@dataclass(frozen=True)
class Case:
    name: str
    build: Callable[[], nn.Module]
    loss: Loss
    optimizer: Callable[[Any], torch.optim.Optimizer]
    batch: Callable[[torch.Generator], tuple[Tensor, Tensor]]


def _images(size: int, *shape: int) -> Callable[[torch.Generator], tuple[Tensor, Tensor]]:
    return lambda g: (torch.randn(size, *shape, generator=g), torch.randint(0, 10, (size,), generator=g))


def _texts(g: torch.Generator) -> tuple[Tensor, Tensor]:
    text = torch.randint(0, 64, (16, 65), generator=g)
    return text[:, :-1], text[:, 1:]


CASES = [
    Case(
        "MLP 784-256x7-10, batch 512",
        lambda: mlp([784, *[256] * 7, 10], init="default", seed=0),
        nn.CrossEntropyLoss(),
        lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.9),
        _images(512, 784),
    ),
    Case(
        "ResNet-20, batch 64",
        lambda: resnet(20, seed=0),
        nn.CrossEntropyLoss(),
        lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, weight_decay=1e-4),
        _images(64, 3, 32, 32),
    ),
    Case("GPT 4x128, 16 texts of 64", GPT, next_token, lambda p: torch.optim.AdamW(p, lr=1e-3), _texts),
]


class OwnTime:
    """Seconds during which an arm had its turn."""

    def __init__(self) -> None:
        self.past = 0.0
        self.since: float | None = None

    def __call__(self) -> float:
        return self.past + (0.0 if self.since is None else time.perf_counter() - self.since)


@dataclass
class Arm:
    """A training, step by step, with what records it.

    Attributes:
        steps: Takes a step each time.
        tool: Records it.
        clock: Seconds that it had its turn.
        start: Wall seconds of its first step.
        wall: Wall seconds of the others.
        cpu: CPU seconds of the others.
        taken: How many these are.
    """

    steps: Iterator[None]
    tool: Tool
    clock: OwnTime
    start: float = 0.0
    wall: float = 0.0
    cpu: float = 0.0
    taken: int = 0

    def scale_to(self, steps: int) -> None:
        """Make its times those of this number of steps."""
        self.wall, self.cpu = self.wall * steps / self.taken, self.cpu * steps / self.taken


def recording(device: str, steps: int) -> list[dict[str, Any]]:
    """Ratios of wall and CPU time of all arms, and how often each quantity was recorded."""
    modes: tuple[Mode, ...] = ("eager", "default", "reduce-overhead") if device.startswith("cuda") else ("eager",)
    began = time.perf_counter()
    rows: list[dict[str, Any]] = []
    runs = [(mode, steps, case) for mode in modes for case in CASES]
    if device.startswith("cuda"):
        runs += [("eager", LONGER * steps, case) for case in CASES]
    for mode, length, case in runs:
        if device.startswith("cuda") and time.perf_counter() - began > LONGEST:
            rows.append(
                {"network": case.name, "mode": mode, "steps": length, "left out": f"{LONGEST:.0f} s have passed"}
            )
            continue
        rows.append(_measured(case, device, length, mode))
        rows[-1]["seconds until here"] = time.perf_counter() - began
    return rows


def _measured(case: Case, device: str, steps: int, mode: Mode) -> dict[str, Any]:
    if mode != "eager":
        torch._dynamo.reset()
        torch._dynamo.config.recompile_limit = 64  # or later arms would not be compiled
    runs = [_run(case, device, steps, mode)]
    while sum(run["milliseconds"][PLAIN] for run in runs) * steps < 1e3 * ENOUGH and len(runs) < MOST_RUNS:
        runs.append(_run(case, device, steps, mode))
    row = runs[0] | {"runs": len(runs)}
    for key in ("milliseconds", "wall/plain", "cpu/plain"):
        row[key] = {kind: statistics.median(run[key][kind] for run in runs) for kind in row[key]}
    row["wall/plain of each run"] = [run["wall/plain"][WELLCOND] for run in runs]
    row["recorded"] = {name: min(run["recorded"].get(name, 0) for run in runs) for name in row["recorded"]}
    if device.startswith("cuda") and mode == "eager":
        row["waits"] = waits(case, device, mode, WATCHED_STEPS)
    ratios = "  ".join(f"{k} {wall:.3f} wall {row['cpu/plain'][k]:.3f} CPU" for k, wall in row["wall/plain"].items())
    rare = {quantity: count for quantity, count in row["recorded"].items() if count < 10}
    print(f"{case.name}, {mode}: {row['milliseconds'][PLAIN]:.2f} ms a step, {len(runs)} runs; {ratios}; "
          f"fewer than ten: {rare}; waits: {row.get('waits')}; left out: {row['left out']}; {row['problems']}",
          flush=True)  # fmt: skip
    return row


def _run(case: Case, device: str, steps: int, mode: Mode) -> dict[str, Any]:
    arms, left_out = {}, {}
    tools = installed(device)
    if mode != "eager":
        tools = {name: tools[name] for name in (PLAIN, AGAIN, WELLCOND)}
    for name, tool in tools.items():
        try:
            arms[name] = _arm(tool, case, device, mode)
            _take_first_step(arms[name], device)
        except Exception as error:
            if name in (PLAIN, WELLCOND):
                raise
            arms.pop(name, None)
            left_out[name] = f"{type(error).__name__}: {error}"
    order = random.Random(0)
    with _short_pauses():
        for turn in range(steps // STEPS_IN_TURN):
            for name in order.sample(list(arms), len(arms)):
                if name not in PEERS or turn % PEERS_TURN == 0:
                    _take_turn(arms[name], device)
    recorder = arms[WELLCOND].tool.recorder  # type: ignore[attr-defined]
    history = recorder.history
    counts = {
        quantity: max(
            len(history.series(quantity)),
            sum(len(history.series(quantity, layer)) for layer in history.layers(quantity)),
        )
        for quantity in history.quantities()
    }
    for arm in arms.values():
        arm.scale_to(steps)
        _timed(arm, device, arm.tool.close)  # what a recorder does at its end counts too
    plain = arms[PLAIN]
    return {
        "network": case.name,
        "mode": mode,
        "steps": steps,
        "milliseconds": {kind: 1e3 * arm.wall / steps for kind, arm in arms.items()},
        "wall/plain": {kind: arm.wall / plain.wall for kind, arm in arms.items()},
        "cpu/plain": {kind: arm.cpu / plain.cpu for kind, arm in arms.items()},
        "seconds of the first step": {kind: arm.start for kind, arm in arms.items()},
        "left out": left_out,
        "recorded": counts,
        "problems": recorder.problems,
        "notes": recorder.notes,
        "own_share": history.series("recording_share").values[-1],
    }


def waits(case: Case, device: str, mode: Mode, steps: int) -> dict[str, int]:
    """Steps of a recorded training in which something waits for the GPU, apart from the loop itself, which never does.

    Returns:
        Steps on which nothing was due, and those of them that wait; the others, and those of them that wait.

    Raises:
        AssertionError: An ordinary step waits.
    """
    arm = _arm(Wellcond, case, device, mode)
    recorder = arm.tool.recorder  # type: ignore[attr-defined]
    arm.clock.since = time.perf_counter()
    for _ in range(STEPS_IN_TURN):
        next(arm.steps)
    counts = dict.fromkeys(("ordinary", "ordinary that wait", "others", "others that wait"), 0)
    for _ in range(steps):
        step = recorder._count.step + 1
        kind = "others" if step >= recorder._turns.next_look or recorder._sampling.depth else "ordinary"
        with _counted_waits() as waiting:
            next(arm.steps)
        counts[kind] += 1
        counts[f"{kind} that wait"] += bool(waiting)
        assert kind == "others" or not waiting, f"step {step} waits for the GPU: {waiting}"
    arm.tool.close()
    return counts


@contextlib.contextmanager
def _counted_waits() -> Iterator[list[str]]:
    """What waits for the GPU inside, by torch's own account and by calls that it does not count."""
    waiting: list[str] = []
    torch.cuda.set_sync_debug_mode("warn")
    calls = ((torch.cuda, "synchronize"), (torch.cuda.Event, "synchronize"), (torch.cuda.Stream, "synchronize"))
    with contextlib.ExitStack() as stack:
        for owner, name in calls:
            real = getattr(owner, name)

            def counted(*args: Any, real: Any = real, **kwargs: Any) -> Any:
                waiting.append(real.__qualname__)
                return real(*args, **kwargs)

            stack.enter_context(mock.patch.object(owner, name, counted))
        caught = stack.enter_context(warnings.catch_warnings(record=True))
        warnings.simplefilter("always")
        try:
            yield waiting
        finally:
            torch.cuda.set_sync_debug_mode("default")
    waiting += [str(each.message) for each in caught if "synchroniz" in str(each.message)]


@contextlib.contextmanager
def _short_pauses() -> Iterator[None]:
    """Python's collector leaves alone what is there now: a pause for all that torch has loaded takes 0.2 s, which is a
    fifth of a short run, and hits one of the arms by chance."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def _take_first_step(arm: Arm, device: str) -> None:
    """It is timed by itself: kernels are loaded in it, and a recorder finds out what its probes take."""
    _timed(arm, device, lambda: next(arm.steps))
    arm.start, arm.wall, arm.cpu = arm.wall, 0.0, 0.0


def _take_turn(arm: Arm, device: str) -> None:
    _timed(arm, device, lambda: [next(arm.steps) for _ in range(STEPS_IN_TURN)])
    arm.taken += STEPS_IN_TURN


def _timed(arm: Arm, device: str, run: Callable[[], Any]) -> None:
    cpu = time.process_time()
    arm.clock.since = time.perf_counter()
    arm.wall += Clock(device).wall(run)
    arm.clock.past, arm.clock.since = arm.clock(), None
    arm.cpu += time.process_time() - cpu


def _arm(tool: type[Tool], case: Case, device: str, mode: Mode) -> Arm:
    torch.manual_seed(0)
    clock = OwnTime()
    model = case.build().to(device)
    optimizer = case.optimizer(model.parameters())
    called = model if mode == "eager" else torch.compile(model, mode=mode)
    used = tool(model, optimizer, case.loss, clock)
    return Arm(_training(case, called, optimizer, used, device), used, clock)


def _training(
    case: Case, model: Callable[[Tensor], Tensor], optimizer: torch.optim.Optimizer, tool: Tool, device: str
) -> Iterator[None]:
    generator = torch.Generator().manual_seed(1)
    data = [tuple(t.to(device) for t in case.batch(generator)) for _ in range(16)]
    index = 0
    while True:
        x, y = data[index * 7 % len(data)]
        index += 1
        outputs = model(x)
        value = case.loss(outputs, y)
        tool.backward(value, outputs, y)
        optimizer.step()
        tool.after_step(value, (x, y))
        optimizer.zero_grad()  # here: what CUDA graphs leave in them does not outlast the step
        yield
