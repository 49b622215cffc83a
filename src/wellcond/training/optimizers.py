"""Reading, copying and stepping optimizers: the one place that knows what a parameter group's settings mean."""

from __future__ import annotations

import copy
import inspect
import math
from collections.abc import Callable
from typing import Any, Final, TypeVar

import torch
from torch import Tensor, nn
from torch.amp import GradScaler
from torch.optim import Optimizer

from wellcond.errors import InvalidProblem, Unsupported
from wellcond.network.isolation.precision import Precision
from wellcond.optim.bnp import BNP
from wellcond.problem.problem import Problem

DEFAULT_MOMENTUM: Final = 0.9
"""Momentum of SGD where no optimizer is given."""

Group = dict[str, Any]
"""One of an optimizer's `param_groups`."""
Hook = TypeVar("Hook", bound=Callable[..., Any])


def _kinds(*names: str) -> tuple[type[Optimizer], ...]:
    """Those of torch's optimizers that this version of torch has."""
    return tuple(getattr(torch.optim, name) for name in names if hasattr(torch.optim, name))


ADAPTIVE = _kinds("Adadelta", "Adafactor", "Adagrad", "Adam", "Adamax", "Muon", "NAdam", "RAdam", "RMSprop", "Rprop")
ADAPTIVE += _kinds("AdamW", "SparseAdam")
DECOUPLED = _kinds("AdamW", "Adafactor", "Muon")

HOLDS_NOTHING = """\
{optimizer} holds none of the model's trainable parameters, so its step would move nothing. Was it made for another
model, or for a copy?  Write  {optimizer}(model.parameters(), …)  with the model of the problem."""
HOOKED = """\
{optimizer} has hooks on its step ({hooks}), which a copy of it would not run. {cure}"""
NOT_COPIED = "{optimizer} cannot be copied: {error}"
REMOVE = "Remove them, or pass no optimizer."


# learning rates


def configured_lr(group: Group) -> float:
    """The learning rate that the user has set; a scheduler may have changed the current one.

    It is the rate to scale where training starts over (`suggest_lr`, `treat`): they propose what the user writes.
    """
    return float(group["initial_lr" if "initial_lr" in group else "lr"])


def current_lr(group: Group) -> float:
    """The learning rate of the next step.

    It is the rate to judge in a snapshot of a running training (`diagnose`, `max_lr`).
    """
    return float(group["lr"])


def peak_lr(group: Group) -> float:
    """The highest learning rate that a schedule is known to give a group: a one-cycle's, or that of a warm-up's end."""
    return max(current_lr(group), configured_lr(group), float(group.get("max_lr", 0.0)))


def nonzero_lr(group: Group) -> float:
    """The current learning rate, or the configured one while a schedule holds it at zero, as a warm-up does at first.

    It is the rate to try (`trial`): steps of size zero show nothing.
    """
    return current_lr(group) or configured_lr(group)


def begins_at_zero(optimizer: Optimizer) -> bool:
    """Whether a schedule holds all rates at zero, as a warm-up does at first."""
    return all(current_lr(group) == 0 != configured_lr(group) for group in optimizer.param_groups)


def largest_lr(optimizer: Optimizer) -> float:
    """The largest configured learning rate of all groups."""
    return max(map(configured_lr, optimizer.param_groups))


def set_lr(group: Group, lr: float) -> None:
    """Change a group's learning rate; a tensor stays a tensor, as optimizers with `capturable=True` need it."""
    group["lr"] = torch.full_like(group["lr"], lr) if isinstance(group["lr"], Tensor) else lr


# what kind of optimizer it is


def is_adaptive(optimizer: Optimizer) -> bool:
    """Whether each weight's step is divided by the size of its own gradients, so that their scale does not matter.

    This holds for torch's adaptive optimizers, and for any other one with Adam's averages, such as LAMB or Lion.
    """
    return isinstance(optimizer, ADAPTIVE) or any("betas" in group for group in optimizer.param_groups)


def is_decoupled(optimizer: Optimizer, group: Group) -> bool:
    """Whether weight decay shrinks the weights directly, θ ← (1 − ηw)θ, past momentum and preconditioner."""
    return bool(group.get("decoupled_weight_decay", isinstance(optimizer, DECOUPLED)))


def adds_penalty(optimizer: Optimizer, group: Group) -> bool:
    """Whether weight decay is added to the gradient before it is divided by its size, as in Adam but not in AdamW.

    Optimizers of other libraries are taken to decouple it, as most of them do.
    """
    has_decay = isinstance(optimizer, ADAPTIVE) and bool(group.get("weight_decay"))
    return has_decay and not is_decoupled(optimizer, group)


def shrinking_steps(optimizer: Optimizer, group: Group) -> float:
    """The number of steps in which weight decay alone shrinks a weight to 1/e; may be infinite.

    With momentum μ a rate η acts as η/(1−μ). A penalty that is divided by the gradient's size has no such time.
    """
    decay, lr = float(group.get("weight_decay") or 0.0), abs(nonzero_lr(group))
    if not decay or not lr or adds_penalty(optimizer, group):
        return math.inf
    return (1 - min(float(group.get("momentum") or 0.0), 0.999)) / (lr * decay)


# what it holds


def evaluations_of(optimizer: Optimizer | None) -> int:
    """Most evaluations of the loss and its gradient in one step: L-BFGS searches along a line."""
    groups = [] if optimizer is None else optimizer.param_groups
    return max([1, *(int(group.get("max_eval") or 1) for group in groups)])


def unwrapped(optimizer: Optimizer) -> Optimizer:
    """The optimizer that takes the steps, inside a wrapper that holds it as `.optimizer`.

    A wrapper was never initialized as an optimizer itself, as Accelerate's, or has taken over the class of the one
    inside, as Lightning's. Any other optimizer that holds one (Lookahead) has a step of its own.
    """
    inside = getattr(optimizer, "optimizer", None)
    if not isinstance(inside, Optimizer):
        return optimizer
    is_wrapper = "param_groups" not in vars(optimizer) or isinstance(optimizer, type(inside))
    return unwrapped(inside) if is_wrapper else optimizer


def groups_of(problem: Problem, optimizer: Optimizer) -> list[Group]:
    """The optimizer's groups that hold parameters of the problem.

    Raises:
        InvalidProblem: There are none.
    """
    groups = held_groups(problem, optimizer)
    if not groups:
        raise InvalidProblem(HOLDS_NOTHING.format(optimizer=type(optimizer).__name__))
    return groups


def held_groups(problem: Problem, optimizer: Optimizer | None) -> list[Group]:
    """The optimizer's groups that hold parameters of the problem; none without an optimizer."""
    own = {id(p) for p in problem.params.values()}
    groups = [] if optimizer is None else optimizer.param_groups
    return [group for group in groups if any(id(p) in own for p in group["params"])]


def check_hooks(optimizer: Optimizer, cure: str = REMOVE, *, allows_bnp: bool = True) -> None:
    """Refuse an optimizer with hooks on its step, which a copy would not run.

    Args:
        optimizer: The optimizer.
        cure: What the user can do instead.
        allows_bnp: Whether BNP's hook may be there, which `copy_for` makes anew for a copy of the model.

    Raises:
        Unsupported: There are such hooks.
    """
    hooks = [hook for hook in _step_hooks(optimizer) if not (allows_bnp and _bnp_of(hook))]
    if hooks:
        names = ", ".join(getattr(hook, "__qualname__", type(hook).__name__) for hook in hooks)
        raise Unsupported(HOOKED.format(optimizer=type(optimizer).__name__, hooks=names, cure=cure))


# copies


def scaler_copy(precision: Precision, kind: str) -> GradScaler | None:
    """A scaler in the state of the script's, for a copy of the model on this type of device; None without one."""
    if precision.scaler is None:
        return None
    scaler = GradScaler(kind, init_scale=precision.scaler["scale"])
    scaler.load_state_dict(dict(precision.scaler))
    return scaler


def copy_for(optimizer: Optimizer, model: nn.Module, model_copy: nn.Module) -> Optimizer:
    """A copy of the optimizer, with its settings and state, that holds the parameters of a copy of its model.

    If BNP preconditions the optimizer's gradients, another BNP with the same statistics does so for the copy.

    Raises:
        Unsupported: It cannot be copied.
    """
    pairs = [
        *zip(model.modules(), model_copy.modules(), strict=True),
        *zip(model.parameters(), model_copy.parameters(), strict=True),
    ]
    new = deep_copy(optimizer, {id(own): other for own, other in pairs})
    for bnp in filter(None, map(_bnp_of, _step_hooks(optimizer))):
        other = BNP(model_copy, new, bnp.rho, bnp.eps1, bnp.eps2, means=bnp.means, layers=[*bnp.layers])
        other.load_state_dict(bnp.state_dict())
    return new


def deep_copy(optimizer: Optimizer, memo: dict[int, Any]) -> Optimizer:
    """A copy of the optimizer with everything that it holds, but hooks and what schedulers have put over its methods.

    `copy.deepcopy(optimizer)` copies groups and state alone: LBFGS, for one, needs more of itself to step.

    Args:
        optimizer: The optimizer.
        memo: Copies by the `id` of the originals, as in `copy.deepcopy`; further copies are added.

    Raises:
        Unsupported: It cannot be copied.
    """
    attributes = {
        name: value
        for name, value in vars(optimizer).items()
        if not callable(getattr(type(optimizer), name, 0)) and not name.endswith("_hooks")
    }
    new: Optimizer = object.__new__(type(optimizer))
    try:
        new.__setstate__(copy.deepcopy(attributes, memo))
    except (TypeError, RuntimeError) as error:
        raise Unsupported(NOT_COPIED.format(optimizer=type(optimizer).__name__, error=error)) from error
    return new


def reads_only(hook: Hook) -> Hook:
    """Mark a hook on an optimizer's step that changes neither gradients nor weights, so that a copy needs none."""
    hook.reads_only = True  # type: ignore[attr-defined]
    return hook


def pre_hooks(optimizer: Optimizer) -> list[Any]:
    """The hooks that run before an optimizer's step, without those that only read."""
    return _of_kind(optimizer, "_optimizer_step_pre_hooks")


def _step_hooks(optimizer: Optimizer) -> list[Any]:
    return [*pre_hooks(optimizer), *_of_kind(optimizer, "_optimizer_step_post_hooks")]


def _of_kind(optimizer: Optimizer, kind: str) -> list[Any]:
    return [hook for hook in getattr(optimizer, kind, {}).values() if not getattr(hook, "reads_only", False)]


def _bnp_of(hook: Any) -> BNP | None:
    """The BNP that a hook belongs to, if it is one's."""
    owner = getattr(hook, "__self__", None)
    return owner if isinstance(owner, BNP) else None


# a step


def take_step(
    optimizer: Optimizer,
    loss_now: Callable[[], Tensor],
    measured: Callable[[Tensor], Tensor] = Tensor.detach,
    scaler: GradScaler | None = None,
) -> float:
    """Take one step, unless the loss is not finite.

    Args:
        optimizer: Any; one that needs a closure, such as LBFGS, gets it.
        loss_now: Computes the loss with its graph.
        measured: The loss to report, from the one to differentiate.
        scaler: Scales the loss, and leaves out the step where a gradient is not finite. LBFGS takes none.

    Returns:
        The loss before the step.
    """
    is_asking = needs_closure(optimizer)  # LBFGS, which evaluates the loss several times
    if is_asking:
        scaler = None

    def closure() -> Tensor:
        loss = loss_now()
        value = measured(loss)
        optimizer.zero_grad()
        if math.isfinite(float(value)):
            (loss if scaler is None else scaler.scale(loss)).backward()  # type: ignore[no-untyped-call]
        return value

    if is_asking:
        return float(torch.as_tensor(optimizer.step(closure)))  # type: ignore[arg-type]
    value = float(closure())
    if not math.isfinite(value):
        return value
    if scaler is None:
        optimizer.step()
    else:
        scaler.step(optimizer)
        scaler.update()
    return value


def needs_closure(optimizer: Optimizer) -> bool:
    """Whether an optimizer evaluates the loss itself, as LBFGS does."""
    closure = inspect.signature(optimizer.step).parameters.get("closure")
    return closure is not None and closure.default is closure.empty
