"""What a recorder is made with: checked before training begins, so that nothing can be wrong with it later."""

from __future__ import annotations

import gc
import sys
from typing import Any

from torch import nn
from torch.optim import Optimizer

from wellcond.errors import InvalidProblem
from wellcond.network.calling import unwrapped
from wellcond.training.optimizers import HOLDS_NOTHING
from wellcond.training.optimizers import unwrapped as without_wrapper
from wellcond.training.passed_optimizer import optimizers_in

NO_HOOKS = """\
{optimizer} has no step hooks, by which gradients are read; derive it from torch.optim.Optimizer."""
WRITE_RECORDER = "Write  wc.Recorder(model, optimizer, loss, run_dir=…)."


def model_of(passed: Any) -> nn.Module:
    """The module to record, without wrappers.

    Raises:
        TypeError: It is no module.
        InvalidProblem: Nothing in it is trained.
    """
    if not isinstance(passed, nn.Module):
        raise TypeError(f"model is a {type(passed).__name__}, not a torch.nn.Module. {WRITE_RECORDER}")
    model = unwrapped(passed)
    if not any(p.requires_grad for p in model.parameters()):
        raise InvalidProblem(
            "the model has no trainable parameters; call model.requires_grad_(), or requires_grad_() on single layers, "
            "before the recorder is made."
        )
    return model


def optimizers_of(model: nn.Module, passed: Any) -> list[Optimizer]:
    """The optimizers that train a model, of those that were passed: one, several, or a scheduler.

    Raises:
        TypeError: There is none in what was passed.
        InvalidProblem: None holds parameters of the model.
    """
    optimizers = list({id(each): each for each in map(without_wrapper, optimizers_in(passed))}.values())
    if not optimizers:
        raise TypeError(f"optimizer is a {type(passed).__name__} without a torch optimizer in it. {WRITE_RECORDER}")
    own = set(map(id, model.parameters()))
    holding = [each for each in optimizers if any(id(p) in own for g in each.param_groups for p in g["params"])]
    if not holding:
        raise InvalidProblem(HOLDS_NOTHING.format(optimizer=type(optimizers[0]).__name__))
    for each in holding:
        if not hasattr(each, "register_step_pre_hook"):
            raise TypeError(NO_HOOKS.format(optimizer=type(each).__name__))
    return holding


def check_share(budget: Any) -> float:
    """The budget as a share.

    Raises:
        ValueError: It is none.
    """
    if isinstance(budget, bool) or not isinstance(budget, (int, float)) or not 0 < budget <= 1:
        raise ValueError(f"budget is {budget!r}; it is the share of time for recording, such as 0.05 for five percent.")
    return float(budget)


def is_compiled(passed: nn.Module, model: nn.Module) -> bool:
    """Whether `torch.compile` was applied to a model or a part of it, whether or not the compiled one was passed."""
    if any("_orig_mod" in m._modules or m._compiled_call_impl is not None for m in (passed, *passed.modules())):
        return True
    if "torch._dynamo" not in sys.modules:
        return False
    return any(isinstance(each, dict) and each.get("_orig_mod") is model for each in gc.get_referrers(model))
