"""`less-dropout`: every dropout rate at most 0.1."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd

from wellcond.network.recording import Call
from wellcond.remedies.forward_calls import argument, calls_of
from wellcond.remedies.remedy import remedy
from wellcond.remedies.rewired import Rewired
from wellcond.remedies.setup import Setup

DROPOUTS = ("dropout", "dropout1d", "dropout2d", "dropout3d", "feature_dropout", "alpha_dropout")
MILD = 0.1
"""The rate of transformers (Vaswani et al. 2017). Its noise is a ninth of the signal's square, and a network that needs
more against overfitting can have it back once it trains."""
HOLDERS = (nn.MultiheadAttention, nn.RNNBase)
"""Modules that drop by a number of their own, without a dropout module."""
OF_MODULES = f"""\
for module in model.modules():
    if isinstance(module, nn.modules.dropout._DropoutNd):
        module.p = min(module.p, {MILD})"""
OF_HOLDERS = f"""\
for module in model.modules():
    if isinstance(module, (nn.MultiheadAttention, nn.RNNBase)):
        module.dropout = min(module.dropout, {MILD})"""


@remedy("less-dropout", "dropout", rules=("dropout-too-strong",))
def less_dropout(setup: Setup) -> Setup | None:
    """Lowers every dropout rate to 0.1.

    Dropping with probability p adds noise of p/(1 − p) times the square of the signal: at 0.8 four times the signal.
    """
    modules = dict(setup.problem.model.named_modules())
    calls = [call for call in calls_of(setup) if call.name in DROPOUTS and _rate(call) > MILD]
    in_code = [call for call in calls if not isinstance(modules[call.inside], (_DropoutNd, *HOLDERS))]
    lines = [OF_MODULES] if any(isinstance(m, _DropoutNd) and m.p > MILD for m in modules.values()) else []
    lines += [OF_HOLDERS] if any(isinstance(m, HOLDERS) and m.dropout > MILD for m in modules.values()) else []
    lines += [f"# in the model's forward: F.dropout(…, p={MILD})"] if in_code else []
    if not lines:
        return None

    def lower_all(model: nn.Module) -> nn.Module:
        for module in model.modules():
            if isinstance(module, _DropoutNd):
                module.p = min(module.p, MILD)
            if isinstance(module, HOLDERS):
                module.dropout = min(module.dropout, MILD)
        return Rewired(model, DROPOUTS, _milder) if in_code else model

    return setup.with_model(lower_all, *lines, is_new=False)


def _milder(function: Any, x: Tensor, p: float = 0.5, *args: Any, **kwargs: Any) -> Any:
    return function(x, min(p, MILD), *args, **kwargs)


def _rate(call: Call) -> float:
    p = argument(call, 1, "p", 0.5)
    return float(p) if isinstance(p, (int, float)) else 0.0
