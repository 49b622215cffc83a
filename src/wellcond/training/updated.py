"""What an optimizer's next step would make of the parameters, without taking it."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from wellcond.errors import InvalidProblem, UnknownLayer, Unsupported
from wellcond.learning_rate.limits.step_model import groups_of
from wellcond.network.isolation import isolation
from wellcond.problem.problem import Gradients, Problem

WRAPPERS = ("_orig_mod.", "module.")
"""Before the names in a `state_dict` of a compiled or data-parallel model."""

LossAndGradients = tuple[Tensor, Gradients]

CURE = """\
Take the step yourself, on the model, and pass what it made of the parameters in place of the optimizer:
    before = copy.deepcopy(model)
    …                                        # forward, backward, optimizer.step()
    wc.covariate_shift(wc.Problem(before, loss, batch), model.state_dict())"""
HOOKED = """\
{optimizer} has step hooks ({hooks}), which act on its own parameters and cannot be run on a copy of it.
{cure}"""
NOT_COPIED = """\
the step of {optimizer} is taken on a copy of it, but {problem}: {error}
{cure}"""


def updated_parameters(
    problem: Problem, step: Optimizer | Mapping[str, Tensor], at_present: LossAndGradients
) -> dict[str, Tensor]:
    """W^{t+1}: every trainable parameter of the problem after one step; call it inside `problem.measuring()`.

    Args:
        problem: Whose parameters they are.
        step: An optimizer, of which a copy takes the step, on copies of the parameters; or the values after the step
            by name, where frozen parameters and buffers are passed over, so that a `state_dict` will do, also that of
            a compiled or wrapped model.
        at_present: The loss and gradients at the parameters' present values. An optimizer that asks for them at other
            values (LBFGS) gets them by further passes.

    Returns:
        The values by name. Those of a parameter that does not move are its own data.

    Raises:
        Unsupported: The step cannot be taken on a copy of the optimizer.
        InvalidProblem: The step would move none of the problem's parameters.
        UnknownLayer: A name in the mapping is not that of a parameter.
    """
    if isinstance(step, Optimizer):
        return _after_step(problem, _unwrapped(step), at_present)
    if isinstance(step, Mapping):
        return _given(problem, step)
    raise TypeError(f"optimizer must be a torch optimizer or a mapping of tensors, not {type(step).__name__}")


def _after_step(problem: Problem, optimizer: Optimizer, at_present: LossAndGradients) -> dict[str, Tensor]:
    groups_of(problem, optimizer)
    twin, twins = _twin(optimizer)
    params = problem.params.values()

    def closure() -> Tensor:
        now = {p: twins[p].data for p in params if p in twins}
        moved = not all(torch.equal(p.data, data) for p, data in now.items())
        with isolation.parameters_kept(params), torch.enable_grad():
            for p, data in now.items():
                p.data = data
            loss, gradients = problem.loss_and_gradients() if moved else at_present
        for name, p in problem.params.items():
            if p in twins:
                gradient = gradients[name]
                # a copy, because some optimizers write weight decay or a clipped value into it
                twins[p].grad = None if gradient is None else gradient.clone()
        return loss.clone()

    closure()
    # the type's own, not what a scheduler has put onto the optimizer, which counts steps; and beneath the wrapper that
    # runs the hooks of all optimizers, which may count or log them
    take = inspect.unwrap(type(twin).step, stop=lambda function: not getattr(function, "hooked", False))
    try:
        if len(inspect.signature(take).parameters) > 1:
            take(twin, closure)
        else:  # an optimizer of one's own, whose step knows no closure
            take(twin)
    except RuntimeError as error:
        if type(error) is not RuntimeError:
            raise
        raise _not_copied(optimizer, "that failed", error) from error
    return {name: twins[p].data if p in twins else p.data for name, p in problem.params.items()}


def _unwrapped(optimizer: Optimizer) -> Optimizer:
    """The one that takes the step, inside a wrapper that was never made an optimizer itself, as Accelerate's."""
    inner = getattr(optimizer, "optimizer", None)
    if "param_groups" not in vars(optimizer) and isinstance(inner, Optimizer):
        return _unwrapped(inner)
    return optimizer


def _twin(optimizer: Optimizer) -> tuple[Optimizer, dict[Tensor, Tensor]]:
    """A copy of the optimizer with all that it holds, over copies of its parameters; and these by the originals.

    `copy.deepcopy(optimizer)` keeps the groups and the state alone: LBFGS, for one, needs more of itself to step.
    """
    kinds = ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks")
    hooks = [hook for kind in kinds for hook in getattr(optimizer, kind, {}).values()]
    if hooks:
        names = ", ".join(getattr(hook, "__qualname__", type(hook).__name__) for hook in hooks)
        raise Unsupported(HOOKED.format(optimizer=type(optimizer).__name__, hooks=names, cure=CURE))
    held = {key: value for key, value in vars(optimizer).items() if not key.endswith("_hooks")}
    copies: dict[int, Any] = {}
    twin = object.__new__(type(optimizer))
    try:
        twin.__setstate__(copy.deepcopy(held, copies))
    except (TypeError, RuntimeError) as error:
        raise _not_copied(optimizer, "it cannot be copied", error) from error
    return twin, {p: copies[id(p)] for group in optimizer.param_groups for p in group["params"]}


def _not_copied(optimizer: Optimizer, problem: str, error: Exception) -> Unsupported:
    return Unsupported(NOT_COPIED.format(optimizer=type(optimizer).__name__, problem=problem, error=error, cure=CURE))


def _given(problem: Problem, values: Mapping[str, Tensor]) -> dict[str, Tensor]:
    every = dict(problem.model.named_parameters(remove_duplicate=False))
    passed_over = {name for name, _ in problem.model.named_buffers(remove_duplicate=False)}
    given: dict[Tensor, Tensor] = {}
    for full, value in values.items():
        name = full
        while name not in every and name not in passed_over and name.startswith(WRAPPERS):
            name = name.partition(".")[2]
        if name in passed_over:
            continue
        if name not in every:
            raise UnknownLayer(full, problem.params)
        p = every[name]
        if value.shape != p.shape:
            raise ValueError(f"{name!r} has the shape {tuple(p.shape)}, but {tuple(value.shape)} after the step")
        given[p] = value.detach().to(p)
    if not any(p in given for p in problem.params.values()):
        raise InvalidProblem("the mapping names none of the model's trainable parameters: nothing would move.")
    return {name: given.get(p, p.data) for name, p in problem.params.items()}
