"""What an optimizer's next step would make of the parameters, without taking it."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from wellcond.errors import InvalidProblem, UnknownLayer, Unsupported
from wellcond.network.isolation import isolation
from wellcond.problem.batch_losses import Gradients
from wellcond.problem.problem import Problem
from wellcond.training.optimizers import check_hooks, deep_copy, groups_of, unwrapped

WRAPPERS = ("_orig_mod.", "module.")
"""Before the names in a `state_dict` of a compiled or data-parallel model."""

LossAndGradients = tuple[Tensor, Gradients]

CURE = """\
Take the step yourself, on the model, and pass the parameters after it in place of the optimizer:
    before = copy.deepcopy(model)
    …                                        # forward, backward, optimizer.step()
    wc.covariate_shift(wc.Problem(before, loss, batch), model.state_dict())"""
FAILED = """\
the step of {optimizer} is taken on a copy of it, but that failed: {error}
{cure}"""


def updated_parameters(
    problem: Problem, step: Optimizer | Mapping[str, Tensor], at_present: LossAndGradients
) -> dict[str, Tensor]:
    """W^{t+1}: every trainable parameter of the problem after one step; call it inside `problem.measuring()`.

    Args:
        problem: Whose parameters they are.
        step: An optimizer, of which a copy takes the step, on copies of the parameters; or the values after the step
            by name, such as a `state_dict`, also that of a compiled or wrapped model. Buffers in it are ignored.
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
        return _after_step(problem, unwrapped(step), at_present)
    if isinstance(step, Mapping):
        return _by_name(problem, step)
    raise TypeError(f"optimizer must be a torch optimizer or a mapping of tensors, not {type(step).__name__}")


def _after_step(problem: Problem, optimizer: Optimizer, at_present: LossAndGradients) -> dict[str, Tensor]:
    groups_of(problem, optimizer)
    check_hooks(optimizer, CURE, allows_bnp=False)  # BNP's statistics are those of a pass of the model itself
    memo: dict[int, Any] = {}
    try:
        stepping = deep_copy(optimizer, memo)
    except Unsupported as error:
        raise Unsupported(f"{error}\n{CURE}") from error
    copies: dict[Tensor, Tensor] = {p: memo[id(p)] for group in optimizer.param_groups for p in group["params"]}
    params = problem.params.values()

    def closure() -> Tensor:
        now = {p: copies[p].data for p in params if p in copies}
        has_moved = not all(torch.equal(p.data, data) for p, data in now.items())
        with isolation.parameters_kept(params), torch.enable_grad():
            for p, data in now.items():
                p.data = data
            loss, gradients = problem.loss_and_gradients() if has_moved else at_present
        for name, p in problem.params.items():
            if p in copies:
                gradient = gradients[name]
                # a copy, because some optimizers write weight decay or a clipped value into it
                copies[p].grad = None if gradient is None else gradient.clone()
        return loss.clone()

    closure()
    # the type's own step, not what a scheduler has put onto the optimizer, which counts steps; and beneath the wrapper
    # that runs the hooks of all optimizers, which may count or log them
    step = inspect.unwrap(type(stepping).step, stop=lambda function: not getattr(function, "hooked", False))
    try:
        if len(inspect.signature(step).parameters) > 1:
            step(stepping, closure)
        else:  # a user's optimizer, whose step takes no closure
            step(stepping)
    except RuntimeError as error:
        if type(error) is not RuntimeError:
            raise
        raise Unsupported(FAILED.format(optimizer=type(optimizer).__name__, error=error, cure=CURE)) from error
    return {name: copies[p].data if p in copies else p.data for name, p in problem.params.items()}


def _by_name(problem: Problem, values: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The values that the user names, in the order of the problem's parameters."""
    every = dict(problem.model.named_parameters(remove_duplicate=False))
    buffers = {name for name, _ in problem.model.named_buffers(remove_duplicate=False)}
    new: dict[Tensor, Tensor] = {}
    for full, value in values.items():
        name = full
        while name not in every and name not in buffers and name.startswith(WRAPPERS):
            name = name.partition(".")[2]
        if name in buffers:
            continue
        if name not in every:
            raise UnknownLayer(full, problem.params)
        p = every[name]
        if value.shape != p.shape:
            raise ValueError(f"{name!r} has the shape {tuple(p.shape)}, but {tuple(value.shape)} after the step")
        new[p] = value.detach().to(p)
    if not any(p in new for p in problem.params.values()):
        raise InvalidProblem("the mapping names none of the model's trainable parameters: nothing would move.")
    return {name: new.get(p, p.data) for name, p in problem.params.items()}
