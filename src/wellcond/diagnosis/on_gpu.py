"""What a diagnosis may take on a GPU: how much dearer full precision is there, and what fits into memory.

Curvature is computed in float32 and differentiates twice, while a script may train in bfloat16: on all examples it
would take several times the seconds and the memory of training steps. So it is measured on fewer of them.
"""

from __future__ import annotations

import contextlib
import math
from dataclasses import dataclass

import torch

from wellcond.network.isolation.arithmetic import attention_of_training, trained_in
from wellcond.problem.batches import examples_in, first_examples
from wellcond.problem.problem import Problem
from wellcond.problem.within_memory import OVER_STEP, PLANNED, passed

WORKSPACES = 32 * 2**20
"""Bytes that libraries keep for themselves, which count where a step holds little: up to 21 MB of CUDA's for an MLP."""
MOST_SLOWER = 16.0
"""Largest ratio of seconds that is planned with."""
TWICE = 4.0
"""Memory of a graph that is differentiated twice, next to that of a pass in the same precision. The rows of all layers,
whose spectra are computed, take about as much: 0.9 times it for ResNet-50, 3 to 4 for GPT-2."""
STEP_COPIES, PRODUCT_COPIES = 4, 8
"""Vectors of all parameters that a training step with Adam holds, and those of a product next to Lanczos' basis: two of
its preconditioner, and what the products of ViT-B held besides on an H200."""
TIMED_STEPS = 2
"""Steps that are timed in each precision, of which the faster one counts."""
FEWEST_COUPLED = 16
"""Fewest examples of a batch whose examples depend on each other, as with BatchNorm."""


@dataclass(frozen=True)
class OnGpu:
    """A training step, and what is planned by it.

    Attributes:
        step_seconds: Seconds of its passes, as trained.
        slower: Seconds of a pass in full precision over those as trained: a power of two.
        step_bytes: Memory of a training step at its peak, by an optimizer like Adam.
        layer_examples: Examples of each batch whose layers are measured.
        examples: Examples of each batch whose curvature is measured.
        products: Most Hessian products whose vectors fit.
    """

    step_seconds: float
    slower: float
    step_bytes: float
    layer_examples: int
    examples: int
    products: int

    @property
    def most_bytes(self) -> float:
        """What the diagnosis may hold at its peak."""
        return OVER_STEP * self.step_bytes + WORKSPACES

    def __str__(self) -> str:
        return (
            f"at most {self.most_bytes / 2**30:.2g} GiB on the GPU, {OVER_STEP:g} times a training step; layers of "
            f"{self.layer_examples} and curvature of {self.examples} examples of a batch, in float32, which takes "
            f"{self.slower:g} times as long"
        )


def on_gpu(problem: Problem) -> OnGpu | None:
    """Time a training step in both precisions and measure its memory; None on a CPU. Call it inside `as_trained()`."""
    if problem.device.type != "cuda":
        return None
    with problem.measuring(), contextlib.closing(problem.data()) as data:
        size = examples_in(next(data)[1])
    trained, activations = min(passed(problem, attention_of_training) for _ in range(TIMED_STEPS))
    with trained_in(None):
        full, in_full = min(passed(problem) for _ in range(TIMED_STEPS))
    return plan(
        seconds=trained,
        ratio=full / trained,
        size=size,
        vector=sum(p.numel() * p.element_size() for p in problem.params.values()),
        held=torch.cuda.memory_allocated(problem.device),
        activations=activations,
        graph=TWICE * in_full,
        is_coupled=problem.couples_examples,
    )


def plan(
    *,
    seconds: float,
    ratio: float,
    size: int,
    vector: float,
    held: float,
    activations: float,
    graph: float,
    is_coupled: bool,
) -> OnGpu:
    """Examples and products that fit into the seconds and the memory.

    Args:
        seconds: Seconds of a training step's passes.
        ratio: Seconds of a pass in full precision over those as trained.
        size: Examples in a batch.
        vector: Bytes of all parameters.
        held: Bytes held before the work.
        activations: Bytes that a pass of the batch holds at its peak, as trained.
        graph: Bytes of a graph of the batch that is differentiated twice, in full precision.
        is_coupled: Whether examples of a batch depend on each other.

    Example:
        >>> sizes = {"vector": 1.0, "held": 1.0, "activations": 9.0, "graph": 72.0}
        >>> plan(seconds=0.1, ratio=3.7, size=32, is_coupled=False, **sizes)
        OnGpu(step_seconds=0.1, slower=4.0, step_bytes=13.0, layer_examples=9, examples=3, products=8)
    """
    slower = min(max(2.0 ** round(math.log2(ratio)), 1.0), MOST_SLOWER)
    step = held + (STEP_COPIES - 1) * vector + activations
    room = PLANNED * OVER_STEP * step - held - PRODUCT_COPIES * vector
    by_memory = size * max(room, 0.0) / 2 / max(graph, 1.0)  # the other half is for Lanczos' basis
    fewest = min(FEWEST_COUPLED, size) if is_coupled else 1
    examples = int(min(max(min(size / slower, by_memory), fewest), size))
    left = room - graph * examples / size
    layers_room = PLANNED * OVER_STEP * step - held - 2 * vector  # next to the gradient
    of_layers = int(min(max(size * layers_room / max(graph, 1.0), fewest), size))
    return OnGpu(seconds, slower, step, of_layers, examples, max(int(left / vector), 0))


def with_fewer_examples(problem: Problem, examples: int) -> Problem:
    """The problem with the first examples of each batch; itself if its batches cannot be cut."""
    with problem.measuring(), contextlib.closing(problem.data()) as data:
        batches = [batch for _, batch in data]
    larger = next((batch for batch in batches if examples_in(batch) > examples), None)
    if larger is None or not problem.runs_on_part(larger):
        return problem
    fewer = [first_examples(batch, examples) for batch in batches]
    fitting = Problem(problem.model, problem.loss, fewer, problem.batchnorm, dropout=problem.dropout)
    fitting.fits = True
    return fitting
