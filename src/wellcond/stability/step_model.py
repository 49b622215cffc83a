"""An optimizer's step on the quadratic model of the loss: the matrix whose largest eigenvalue bounds its lr."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.optim import Optimizer

from wellcond.curvature.hessian import Hessian
from wellcond.curvature.preconditioned import Preconditioned
from wellcond.errors import InvalidProblem, NonFinite
from wellcond.layerwise.updated import HOLDS_NOTHING
from wellcond.problem.gradient_passes import Gradients
from wellcond.problem.problem import Problem
from wellcond.stability.step_rules import decay_is_decoupled, momentum_of, rule_of

HOOKED = """\
{optimizer} has hooks that run before its step ({hooks}) and may change the gradients, so that its lr has another limit
than it would have alone. Take them off for the measurement; or, for gradient descent with momentum, write
    wc.max_lr(problem, momentum=0.9)"""
NEVER_STABLE = "{optimizer} with {name}={value} is stable at no learning rate: {name} must be below 1."
BOTH_WAYS = """\
some groups of {optimizer} minimise the loss and others maximise it: such a game has no largest stable learning rate of
this kind. Measure the groups one by one, by an optimizer for each."""
NOTHING_MOVES = "the loss depends on none of the parameters that {optimizer} holds, so its step would move nothing."
NO_PRECONDITIONER = """\
the number by which {optimizer} divides a gradient of {name!r} is zero, NaN or inf. Is there a NaN in its state, or is
eps=0?"""


@dataclass(frozen=True)
class GroupStep:
    """A parameter group that moves.

    lr: now. pace: the same, or 1 where those of all groups are 0. numerator: 2/F(−1).
    block: its parameters, by their positions in the problem.
    share: pace·F(−1) beside that of the fastest group, which is what its diagonal block of A is scaled by.
    """

    index: int
    lr: float
    pace: float
    momentum: float
    numerator: float
    block: tuple[int, ...]
    share: float = 1.0


@dataclass(frozen=True)
class StepModel:
    """numerator / λ_max(A) bounds the largest lr of all groups, their proportions kept, with A = ±R^{½} H R^{½} + S.

    Of parameter i with filter F_i, preconditioner P_i and weight decay w_i, and 0 for the group of the largest lr,

        R_i = lr_i F_i(−1) / (lr₀ F₀(−1) P_i),   S_i = R_i w_i,   or  lr_i w_i / (lr₀ F₀(−1))  of decoupled decay.

    For SGD with one group A is H + w. scale, shift: R and S by position. matrix: A in words.
    """

    matrix: str
    groups: tuple[GroupStep, ...]
    scale: dict[int, Tensor]
    shift: dict[int, Tensor]
    sign: float = 1.0
    notes: tuple[str, ...] = ()

    @property
    def fastest(self) -> GroupStep:
        """The group of the largest lr."""
        return max(self.groups, key=lambda group: group.pace)

    def operator(self, hessian: Hessian, groups: Sequence[GroupStep]) -> Preconditioned:
        """The diagonal block of A that belongs to some groups."""
        block = sorted(i for group in groups for i in group.block)
        return Preconditioned(hessian, block, [self.scale[i] for i in block], [self.shift[i] for i in block], self.sign)


def gradient_descent(problem: Problem, momentum: float) -> StepModel:
    """With heavy-ball momentum: F(−1) = 1/(1+μ)."""
    block = tuple(range(len(problem.params)))
    group = GroupStep(0, 1.0, 1.0, momentum, 2 * (1 + momentum), block)
    return StepModel("H", (group,), dict.fromkeys(block, torch.ones(())), dict.fromkeys(block, torch.zeros(())))


def check_optimizer(problem: Problem, optimizer: Optimizer) -> None:
    """Refuse, before any work, an optimizer whose step cannot be modelled."""
    name = type(optimizer).__name__
    if not isinstance(optimizer, Optimizer):
        raise TypeError(f"optimizer must be a torch optimizer, not {name}")
    rule_of(optimizer)
    if hooks := optimizer._optimizer_step_pre_hooks.values():
        names = ", ".join(getattr(hook, "__qualname__", type(hook).__name__) for hook in hooks)
        raise InvalidProblem(HOOKED.format(optimizer=name, hooks=names))
    own = {id(p) for p in problem.params.values()}
    groups = [group for group in optimizer.param_groups if any(id(p) in own for p in group["params"])]
    if not groups:
        raise InvalidProblem(HOLDS_NOTHING.format(optimizer=name))
    for group in groups:
        for key in ("momentum", "dampening"):
            if group.get("momentum") and float(group.get(key, 0.0)) >= 1:
                raise InvalidProblem(NEVER_STABLE.format(optimizer=name, name=key, value=group[key]))
    if len({bool(group.get("maximize")) for group in groups}) > 1:
        raise InvalidProblem(BOTH_WAYS.format(optimizer=name))


def optimizer_step(problem: Problem, optimizer: Optimizer, gradients: Gradients) -> StepModel:
    """The step of the optimizer as it stands, which is only read.

    gradients: at the present values of the parameters. Those without one are left where they are, as torch leaves them.
    """
    name = type(optimizer).__name__
    moved = list(_moved(problem, optimizer, gradients))
    if not moved:
        raise InvalidProblem(NOTHING_MOVES.format(optimizer=name))
    notes = []
    lrs = {index: float(optimizer.param_groups[index]["lr"]) for index in sorted({m.group for m in moved})}
    pace = {index: lr for index, lr in lrs.items() if lr} or dict.fromkeys(lrs, 1.0)
    if not any(lrs.values()):
        notes.append("every lr is 0 now: those of all groups are taken to be equal.")
    elif at_rest := [str(index) for index in lrs if index not in pace]:
        notes.append(f"lr is 0 in group {', '.join(at_rest)}: its parameters are taken to stay where they are.")
        moved = [m for m in moved if m.group in pace]
    if new := sum(m.is_preconditioned and not m.has_stepped for m in moved):
        notes.append(
            f"{name} has taken no step yet with {new} of {len(moved)} parameters: what it divides their gradients by "
            "is what the first step would make of the present ones."
        )
    by_group = {index: [m for m in moved if m.group == index] for index in pace}
    fastest = max(pace, key=lambda index: pace[index])
    reference = pace[fastest] * by_group[fastest][0].response
    scale = {m.position: pace[m.group] * m.response / (reference * m.diagonal) for m in moved}
    shift = {m.position: scale[m.position] * m.decay + pace[m.group] * m.shrinkage / reference for m in moved}
    groups = [
        GroupStep(
            index,
            lrs[index],
            pace[index],
            momentum_of(optimizer.param_groups[index]),
            2 / members[0].response,
            tuple(m.position for m in members),
            pace[index] * members[0].response / reference,
        )
        for index, members in by_group.items()
    ]
    matrix = "−H" if moved[0].sign < 0 else "H"
    if any(m.is_preconditioned for m in moved) or len({g.share for g in groups}) > 1:
        matrix = f"P^−½ {matrix} P^−½"
    if any(m.decay or m.shrinkage for m in moved):
        matrix += " + weight decay"
    return StepModel(matrix, tuple(groups), scale, shift, moved[0].sign, tuple(notes))


@dataclass(frozen=True)
class _ParameterStep:
    """θ ← (1 − lr·shrinkage) θ − lr P⁻¹ F (±g + decay·θ). response: F(−1). diagonal: P."""

    position: int
    group: int
    sign: float
    response: float
    diagonal: Tensor
    decay: float
    shrinkage: float
    is_preconditioned: bool
    has_stepped: bool


def _moved(problem: Problem, optimizer: Optimizer, gradients: Gradients) -> Iterator[_ParameterStep]:
    rule = rule_of(optimizer)
    group_of = {id(p): index for index, group in enumerate(optimizer.param_groups) for p in group["params"]}
    for position, (name, p) in enumerate(problem.params.items()):
        gradient = gradients[name]
        if gradient is None or id(p) not in group_of:
            continue
        group = optimizer.param_groups[group_of[id(p)]]
        sign = -1.0 if group.get("maximize") else 1.0
        weight_decay = float(group["weight_decay"])
        decay, shrinkage = (0.0, weight_decay) if decay_is_decoupled(optimizer, group) else (weight_decay, 0.0)
        state = optimizer.state.get(p, {})
        response, divisor = rule(group, state, sign * gradient.double() + decay * p.detach().double())
        diagonal = torch.as_tensor(divisor, dtype=torch.float64)
        if not bool((torch.isfinite(diagonal) & (diagonal > 0)).all()):
            raise NonFinite(NO_PRECONDITIONER.format(optimizer=type(optimizer).__name__, name=name))
        has_stepped = float(state.get("step", 0)) > 0
        kinds = isinstance(divisor, Tensor), has_stepped
        yield _ParameterStep(position, group_of[id(p)], sign, response, diagonal, decay, shrinkage, *kinds)
