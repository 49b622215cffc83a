"""An optimizer's step on the quadratic model of the loss: the matrix whose largest eigenvalue bounds its lr."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.optim import Optimizer

from wellcond.curvature.hessian import Hessian
from wellcond.errors import NonFinite, Unsupported
from wellcond.learning_rate.limits.preconditioned import Preconditioned
from wellcond.learning_rate.limits.step_rules import momentum_of, rule_of
from wellcond.problem.batch_losses import Gradients
from wellcond.problem.problem import Problem
from wellcond.training.optimizers import current_lr, groups_of, is_decoupled, pre_hooks

HOOKED = """\
{optimizer} has hooks that run before its step ({hooks}) and may change the gradients, and with them the limit of its
lr. Remove them for the measurement; or, for gradient descent with momentum, write
    wc.max_lr(problem, momentum=0.9)"""
NEVER_STABLE = "{optimizer} with {name}={value} is stable at no learning rate: {name} must be below 1."
BOTH_WAYS = """\
some groups of {optimizer} minimize the loss and others maximize it: such a game has no largest stable learning rate in
this sense. Measure the groups one by one, each with an optimizer of its own."""
NOTHING_MOVES = "the loss depends on none of the parameters that {optimizer} holds, so its step would move nothing."
NO_PRECONDITIONER = """\
the number by which {optimizer} divides a gradient of {name!r} is zero, NaN or inf. Is there a NaN in its state, or is
eps=0?"""


@dataclass(frozen=True)
class GroupStep:
    """A parameter group that moves.

    Attributes:
        index: Position in the optimizer.
        lr: Current learning rate.
        relative_lr: The same, or 1 if the lrs of all groups are 0.
        momentum: μ or β₁.
        numerator: 2/F(−1).
        parameters: Names of its parameters.
        block_scale: relative_lr·F(−1) over that of the leading group; its diagonal block of A has this factor.
    """

    index: int
    lr: float
    relative_lr: float
    momentum: float
    numerator: float
    parameters: tuple[str, ...]
    block_scale: float = 1.0


@dataclass(frozen=True)
class StepModel:
    """numerator / λ_max(A) bounds the largest lr of all groups in fixed proportions, with A = ±R^{½} H R^{½} + S.

    For parameter i with filter F_i, preconditioner P_i and weight decay w_i, and 0 for the group of the largest lr,

        R_i = lr_i F_i(−1) / (lr₀ F₀(−1) P_i),   S_i = R_i w_i,   or  lr_i w_i / (lr₀ F₀(−1))  for decoupled decay.

    For SGD with one group A is H + w.

    Attributes:
        matrix: A in words.
        groups: Groups that move.
        scale: R by parameter.
        shift: S by parameter.
        sign: −1 if the loss is maximized.
        notes: Remarks on the numbers.
    """

    matrix: str
    groups: tuple[GroupStep, ...]
    scale: dict[str, Tensor]
    shift: dict[str, Tensor]
    sign: float = 1.0
    notes: tuple[str, ...] = ()

    @property
    def leading(self) -> GroupStep:
        """The group of the largest lr."""
        return max(self.groups, key=lambda group: group.relative_lr)

    def operator(self, hessian: Hessian, groups: Sequence[GroupStep]) -> Hessian | Preconditioned:
        """The diagonal block of A that belongs to some groups."""
        if len(groups) == len(self.groups) and self.constant_shift(len(hessian.params)) == 0:
            return hessian
        scale = {name: self.scale[name] for group in groups for name in group.parameters}
        return Preconditioned(hessian, scale, self.shift, sign=self.sign)

    def constant_shift(self, parameters: int) -> float | None:
        """w if A is H + w over all of this many parameters; None if it is another matrix."""
        is_whole = len(self.scale) == parameters and self.sign > 0
        if not is_whole or any(r.dim() or float(r) != 1 for r in self.scale.values()):
            return None
        shifts = {float(s) for s in self.shift.values()}
        return shifts.pop() if len(shifts) == 1 else None


def gradient_descent(problem: Problem, momentum: float) -> StepModel:
    """The step of gradient descent with heavy-ball momentum: F(−1) = 1/(1+μ)."""
    names = tuple(problem.params)
    group = GroupStep(0, 1.0, 1.0, momentum, 2 * (1 + momentum), names)
    one = torch.ones((), device="cpu")
    return StepModel("H", (group,), dict.fromkeys(names, one), dict.fromkeys(names, one - 1))


def check_optimizer(problem: Problem, optimizer: Optimizer) -> None:
    """Refuse, before any work, an optimizer whose step cannot be modeled.

    Raises:
        InvalidProblem: It holds none of the problem's parameters.
        Unsupported: Its step is not known, is changed by hooks, or is stable at no learning rate.
    """
    name = type(optimizer).__name__
    groups = groups_of(problem, optimizer)
    rule_of(optimizer)
    if hooks := pre_hooks(optimizer):
        names = ", ".join(getattr(hook, "__qualname__", type(hook).__name__) for hook in hooks)
        raise Unsupported(HOOKED.format(optimizer=name, hooks=names))
    for group in groups:
        for key in ("momentum", "dampening"):
            if group.get("momentum") and float(group.get(key, 0.0)) >= 1:
                raise Unsupported(NEVER_STABLE.format(optimizer=name, name=key, value=group[key]))
    if len({bool(group.get("maximize")) for group in groups}) > 1:
        raise Unsupported(BOTH_WAYS.format(optimizer=name))


def optimizer_step(problem: Problem, optimizer: Optimizer, gradients: Gradients) -> StepModel:
    """The step of the optimizer as it stands, which is only read.

    Args:
        problem: The model, loss and data.
        optimizer: Optimizer that has passed `check_optimizer`.
        gradients: Gradients at the current weights. Parameters without one do not move, as in torch.

    Returns:
        The matrix that its limit comes from, and its groups.

    Raises:
        Unsupported: It moves nothing.
        NonFinite: It divides by zero, NaN or infinity.
    """
    name = type(optimizer).__name__
    moved = list(_moved(problem, optimizer, gradients))
    if not moved:
        raise Unsupported(NOTHING_MOVES.format(optimizer=name))
    notes = []
    lrs = {index: current_lr(optimizer.param_groups[index]) for index in sorted({m.group for m in moved})}
    relative_lrs = {index: lr for index, lr in lrs.items() if lr} or dict.fromkeys(lrs, 1.0)
    if not any(lrs.values()):
        notes.append("every lr is 0 now: the lrs of all groups are assumed to be equal.")
    elif at_rest := [str(index) for index in lrs if index not in relative_lrs]:
        notes.append(f"lr is 0 in group {', '.join(at_rest)}: its parameters are assumed not to move.")
        moved = [m for m in moved if m.group in relative_lrs]
    if new := sum(m.is_preconditioned and not m.has_stepped for m in moved):
        notes.append(
            f"{name} has taken no step yet with {new} of {len(moved)} parameters: their preconditioner is the one that "
            "its first step would compute from the current gradients."
        )
    by_group = {index: [m for m in moved if m.group == index] for index in relative_lrs}
    leading = max(relative_lrs, key=lambda index: relative_lrs[index])
    reference = relative_lrs[leading] * by_group[leading][0].response
    scale, shift = {}, {}
    for m in moved:
        exact = relative_lrs[m.group] * m.response / (reference * m.diagonal)
        decoupled = torch.tensor(relative_lrs[m.group] * m.shrinkage / reference, dtype=torch.float64, device="cpu")
        scale[m.name] = _as_multiplied(exact, problem.params[m.name])
        shift[m.name] = _as_multiplied(exact * m.decay + decoupled, problem.params[m.name]) if m.decay else decoupled
    groups = [
        GroupStep(
            index,
            lrs[index],
            relative_lrs[index],
            momentum_of(optimizer.param_groups[index]),
            2 / members[0].response,
            tuple(m.name for m in members),
            relative_lrs[index] * members[0].response / reference,
        )
        for index, members in by_group.items()
    ]
    matrix = "−H" if moved[0].sign < 0 else "H"
    if any(m.is_preconditioned for m in moved) or len({g.block_scale for g in groups}) > 1:
        matrix = f"P^−½ {matrix} P^−½"
    if any(m.decay or m.shrinkage for m in moved):
        matrix += " + weight decay"
    return StepModel(matrix, tuple(groups), scale, shift, moved[0].sign, tuple(notes))


def _as_multiplied(exact: Tensor, parameter: Tensor) -> Tensor:
    """A number, or a vector in the precision of the weights: those of large models take half the memory so."""
    return exact.to(parameter) if exact.dim() else exact


@dataclass(frozen=True)
class _ParameterStep:
    """θ ← (1 − lr·shrinkage) θ − lr P⁻¹ F (±g + decay·θ), with F(−1) as `response` and P as `diagonal`."""

    name: str
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
    for name, p in problem.params.items():
        gradient = gradients[name]
        if gradient is None or id(p) not in group_of:
            continue
        group = optimizer.param_groups[group_of[id(p)]]
        sign = -1.0 if group.get("maximize") else 1.0
        weight_decay = float(group["weight_decay"])
        decay, shrinkage = (0.0, weight_decay) if is_decoupled(optimizer, group) else (weight_decay, 0.0)
        state = optimizer.state.get(p, {})
        if not state.get("step", len(state)):  # the preconditioner of a first step comes from the gradient itself
            gradient = sign * gradient.double() + decay * p.detach().double()
        response, divisor = rule(group, state, gradient)
        diagonal = torch.as_tensor(divisor, dtype=torch.float64, device=p.device)
        if not bool((torch.isfinite(diagonal) & (diagonal > 0)).all()):
            raise NonFinite(NO_PRECONDITIONER.format(optimizer=type(optimizer).__name__, name=name))
        has_stepped = float(state.get("step", 0)) > 0
        kinds = isinstance(divisor, Tensor), has_stepped
        yield _ParameterStep(name, group_of[id(p)], sign, response, diagonal, decay, shrinkage, *kinds)
