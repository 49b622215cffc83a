"""Back-matching propagation (zhang2018, Procedure 1); back-propagation is one gradient step of it per block."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from wellcond.measurements.blocks.block import input_tensor
from wellcond.measurements.blocks.cuts import Cut, Outputs, find_cuts
from wellcond.network.graph import inputs_of, refuse_reentrant_checkpoints, upstream
from wellcond.network.isolation.arithmetic import own_arithmetic
from wellcond.network.taps import bracketed
from wellcond.problem.arguments import check_problem
from wellcond.problem.problem import Problem
from wellcond.results import Cost, Result, Row, number, text_table
from wellcond.results.quantities import BACK_MATCHING_LOSS, TARGET_CHANGE
from wellcond.results.text import WHOLE_MODEL


@dataclass(frozen=True)
class BackMatching(Result):
    """What one step of back-matching propagation asks of every block.

    Attributes:
        blocks: Names of the blocks from first to last, each the name of the module that ends it ("" is the model).
        targets: z_b^{k+½} of every block except the last, whose loss needs none.
        updates: −μ ∂ℓ_b/∂W_b of every trainable parameter, summed over the blocks that use it.
        losses: ℓ_b = ½‖z_b^{k+½} − z_b‖² of every block, a sum over the batch; for the last block the mean loss J.
        parameters: Names of the parameters that each block uses.
        changes: ‖z_b^{k+½} − z_b‖/‖z_b‖ of every block except the last.
        lr: Step μ on the parameters.
        cost: Passes of the model.
    """

    blocks: tuple[str, ...]
    targets: dict[str, Tensor]
    updates: dict[str, Tensor]
    losses: dict[str, float]
    parameters: dict[str, tuple[str, ...]]
    changes: dict[str, float]
    lr: float
    cost: Cost

    def rows(self, step: int | None = None) -> list[Row]:
        losses = [Row(step, block, BACK_MATCHING_LOSS, self.losses[block], "loss") for block in self.blocks]
        return losses + [Row(step, block, TARGET_CHANGE, c, "") for block, c in self.changes.items()]

    def __str__(self) -> str:
        body = []
        for block in self.blocks:
            shape = str(tuple(self.targets[block].shape)) if block in self.targets else "the loss"
            change = number(self.changes[block]) if block in self.changes else "–"
            count, loss = len(self.parameters[block]), number(self.losses[block])
            body.append([block or WHOLE_MODEL, shape, str(count), loss, change])
        table = text_table(["block", "output", "parameters", "ℓ", "‖z½ − z‖/‖z‖"], body)
        return f"{table}\nstep {self.lr:g} on the parameters, 1 on every z; first batch\n{self.cost}"


@own_arithmetic()
def back_matching(problem: Problem, lr: float = 1.0, *, layers: str | Sequence[str] | None = None) -> BackMatching:
    """Procedure 1 with one gradient step in each subproblem: of size 1 in every z and of size μ = `lr` in every W.

    From the last block to the first, with ℓ_B = J and ℓ_b = ½‖z_b^{k+½} − F_b(W_b, z_{b−1})‖²,

        δW_b = −μ ∂ℓ_b/∂W_b,   z_{b−1}^{k+½} = z_{b−1} − ∂ℓ_b/∂z_{b−1}.

    By Proposition 1 this is back-propagation: z_b^{k+½} = z_b − ∂J/∂z_b and δW = −μ ∂J/∂W.

    The first batch is used. It takes one forward pass and one backward pass, run block by block, and memory for a copy
    of every module's output.

    Args:
        problem: The model, loss and data.
        lr: Step μ on the parameters.
        layers: Modules at whose outputs to cut, in any order; the rest after the last one is a block too. By default
            all module outputs that separate the network, so that every path from anything before them to the loss leads
            through them: the children of a Sequential, the residual blocks of a ResNet, the layers of a transformer.

    Returns:
        The targets, updates and losses of all blocks.

    Raises:
        ValueError: `lr` is not finite.
        UnknownLayer: There is no module of that name.
        InvalidProblem: The network cannot be cut at the requested modules.

    Example:
        >>> import wellcond as wc
        >>> model = torch.nn.Sequential(torch.nn.Linear(1, 1, bias=False), torch.nn.Linear(1, 1, bias=False))
        >>> for layer, weight in zip(model, (2.0, 3.0)): torch.nn.init.constant_(layer.weight, weight).item()
        2.0
        3.0
        >>> problem = wc.Problem(model, torch.nn.MSELoss(), (torch.ones(1, 1), torch.zeros(1, 1)))
        >>> step = back_matching(problem, lr=0.1)       # J = (w₂w₁)² = 36, z₁ = 2, ∂J/∂z₁ = 2·6·3
        >>> step.targets["0"].item(), step.losses, round(step.updates["0.weight"].item(), 4)
        (-34.0, {'0': 648.0, '1': 36.0}, -3.6)
    """
    check_problem(problem)
    if not math.isfinite(lr):
        raise ValueError(f"lr is {lr}; the step on the parameters is a finite number.")
    names = [layers] if isinstance(layers, str) else layers
    outputs = Outputs({module: name for name, module in problem.model.named_modules()})
    before = problem.cost
    with problem.measuring(), contextlib.closing(problem.data()) as data:
        index, batch = next(data)
        with bracketed(outputs.names, outputs.on_entry, outputs.on_exit):
            loss = problem.evaluate(index, (_with_graph(batch[0]), batch[1])).loss
        outputs.own.check(loss, lambda: problem.loss_of(index, batch))
        refuse_reentrant_checkpoints(upstream([loss.grad_fn], None))
        cuts, last = find_cuts(outputs, loss, names)
        return _propagated(problem, loss, cuts, last, lr, before)


def _with_graph(inputs: Any) -> Any:
    """z_0, the first floating-point tensor of the data, as part of the graph: a skip connection may begin there."""
    data = input_tensor((inputs,), {})
    if data is None:
        return inputs
    z = data.detach().requires_grad_().clone()
    return tree_map(lambda leaf: z if leaf is data else leaf, inputs)


def _propagated(
    problem: Problem, loss: Tensor, cuts: Sequence[Cut], last: str, lr: float, cost_before: Cost
) -> BackMatching:
    updates = {name: torch.zeros_like(p) for name, p in problem.params.items()}
    # id of a parameter → its position in the model and its name
    places = {id(p): (i, name) for i, (name, p) in enumerate(problem.params.items())}
    parameters: dict[str, tuple[str, ...]] = {}
    gradients: dict[str, Tensor] = {}
    block, end, gradient = last, loss, torch.ones_like(loss)
    problem.count_backward()  # all runs together differentiate every operation once
    for previous in (*reversed(cuts), None):
        parameters[block] = names = _parameters(places, end, previous)
        inputs: list[Any] = [*(problem.params[name] for name in names), *([] if previous is None else [previous.edge])]
        if not inputs:  # a first block with nothing to train
            break
        # ∂ℓ_b/∂(W_b, z_{b−1}) = Jᵀ(z_b − z_b^{k+½}); that difference is ∂ℓ_{b+1}/∂z_b, unrounded
        with _stopped_at(previous):
            derivatives = torch.autograd.grad(end, inputs, gradient, retain_graph=True, allow_unused=True)
        for name, part in zip(names, derivatives, strict=False):
            if part is not None:
                updates[name] -= lr * part
        if previous is not None:
            block, end = previous.name, previous.value
            gradients[block] = gradient = torch.zeros_like(end) if derivatives[-1] is None else derivatives[-1]
    z = {cut.name: cut.value.detach() for cut in cuts}
    losses = {name: float(gradients[name].double().square().sum()) / 2 for name in z}
    return BackMatching(
        blocks=(*z, last),
        targets={name: z[name] - gradients[name] for name in z},
        updates=updates,
        losses=losses | {last: float(loss.detach())},
        parameters={name: parameters[name] for name in (*z, last)},
        changes={name: float(gradients[name].double().norm() / z[name].double().norm()) for name in z},
        lr=lr,
        cost=problem.cost - cost_before,
    )


def _parameters(places: dict[int, tuple[int, str]], end: Tensor, previous: Cut | None) -> tuple[str, ...]:
    """Trainable parameters that a block's end depends on other than through the previous cut, in the model's order."""
    nodes = upstream([end.grad_fn], None if previous is None else previous.edge.node)
    leaves = {leaf for node in nodes for leaf in inputs_of(node) if not leaf.next_functions}
    used = {id(getattr(leaf, "variable", None)) for leaf in leaves}
    return tuple(name for _, name in sorted(places[key] for key in used & places.keys()))


@contextlib.contextmanager
def _stopped_at(cut: Cut | None) -> Iterator[None]:
    """Let no gradient pass the cut: of a parameter that earlier blocks also use, only this block's part counts."""
    if cut is None:
        yield
        return
    stop = cut.edge.node.register_prehook(lambda grads: tuple(g if g is None else torch.zeros_like(g) for g in grads))
    try:
        yield
    finally:
        stop.remove()
