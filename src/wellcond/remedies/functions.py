"""Remedies of the forward pass: function calls in it left out or exchanged, whether modules or code make them."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Collection
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from wellcond.network.copying import copied
from wellcond.network.recording import Call, record
from wellcond.nn.data_flow import RESHAPING
from wellcond.remedies.remedy import remedy
from wellcond.remedies.setup import Setup

Exchange = Callable[..., Any]
"""Called in place of a function, with the function itself and its arguments."""

SQUASHING = ("softmax", "sigmoid", "relu", "tanh", "hardtanh", "softplus", "elu", "leaky_relu", "gelu", "silu")
FLAT_AT_BOTH_ENDS = ("sigmoid", "tanh", "hardtanh")
DROPOUTS = ("dropout", "dropout1d", "dropout2d", "dropout3d", "feature_dropout", "alpha_dropout")
MILD_DROPOUT = 0.1
"""The rate of transformers and of the small networks of the healthy zoo."""


class Rewired(nn.Module):
    """A model in whose forward pass some function calls are exchanged.

    Args:
        model: The model.
        functions: The names of the functions, as `record` gives them.
        exchange: What is called in their place.
        numbers: Which of their calls, counted from 0; None: all of them.
    """

    def __init__(
        self, model: nn.Module, functions: Collection[str], exchange: Exchange, numbers: Collection[int] | None = None
    ) -> None:
        super().__init__()
        self.rewired = model
        self.training = model.training
        self._exchange = frozenset(functions), exchange, numbers

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        with _Exchanged(*self._exchange):
            return self.rewired(*args, **kwargs)


class _Exchanged(TorchFunctionMode):
    def __init__(self, functions: Collection[str], exchange: Exchange, numbers: Collection[int] | None) -> None:
        super().__init__()
        self._functions, self._exchange, self._numbers = functions, exchange, numbers
        self._count = -1

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if getattr(func, "__name__", "").strip("_") in self._functions:
            self._count += 1
            if self._numbers is None or self._count in self._numbers:
                return self._exchange(func, *args, **kwargs)
        return func(*args, **kwargs)


def plain_name(name: str) -> str:
    """The name that a module has in the user's own model."""
    return name.replace("rewired.", "").removesuffix("rewired")


@remedy("logits", "output", rules=("output-loss-mismatch", "saturated-output"))
def logits(setup: Setup) -> Setup | None:
    """Takes the last activation off: a loss of logits, or of unbounded targets, wants what comes before it.

    Cross-entropy of probabilities ends at log(1 + (C − 1)/e), not at 0, however well the network learns; and a ReLU,
    sigmoid or tanh before the loss keeps the outputs from where it is low, and has no gradient where it is flat.
    """
    calls = _calls(setup)
    last = _last(calls)
    if last is None or last.name not in SQUASHING or _wants_probabilities(setup):
        return None
    return _exchanged(setup, calls, [last], lambda _function, x, *_, **__: x, "nn.Identity()")


@remedy("sigmoid-output", "output", rules=("output-loss-mismatch",))
def sigmoid_output(setup: Setup) -> Setup | None:
    """Ends the network in a sigmoid, for a loss that takes probabilities: others give it NaN, or no gradient."""
    calls = _calls(setup)
    last = _last(calls)
    if last is None or last.name in ("sigmoid", "softmax"):
        return None
    outputs, targets = first_batch(setup)
    if not _wants_probabilities(setup) and not (last.name in SQUASHING and _are_shares(outputs, targets)):
        return None
    if last.name in SQUASHING:
        return _exchanged(setup, calls, [last], lambda _function, x, *_, **__: torch.sigmoid(x), "nn.Sigmoid()")
    line = "model = nn.Sequential(model, nn.Sigmoid())"
    return setup.with_model(lambda model: nn.Sequential(model, nn.Sigmoid()), line)


@remedy("cross-entropy", "output", rules=("output-loss-mismatch", "non-finite"))
def cross_entropy(setup: Setup) -> Setup | None:
    """Takes `F.cross_entropy` of the logits in place of the logarithm of probabilities, which is infinite at zero.

    Both are −log p of the label: the loss keeps its meaning and its unit.
    """
    outputs, targets = first_batch(setup)
    if not _is_log_of_probabilities(setup, outputs, targets):
        return None
    calls = _calls(setup)
    last = _last(calls)
    treated = setup
    if last is not None and last.name in ("softmax", "sigmoid", "relu"):
        treated = _exchanged(setup, calls, [last], lambda _function, x, *_, **__: x, "nn.Identity()")
    return treated.with_loss(F.cross_entropy, "loss = F.cross_entropy(logits, targets)")


@remedy("class-dimension", "output", rules=("output-loss-mismatch",))
def class_dimension(setup: Setup) -> Setup | None:
    """Takes softmax over the classes: over dimension 0 it makes the examples of a batch compete with each other."""
    calls = _calls(setup)
    wrong = [call for call in calls if call.name in ("softmax", "log_softmax") and _dimension(call) == 0]
    if not wrong:
        return None

    def over_classes(function: Any, x: Tensor, *_: Any, **__: Any) -> Any:
        return function(x, -1 if x.dim() < 4 else 1)

    functions = {call.name for call in wrong}
    line = f"# {' and '.join(sorted(functions))} over dim=-1, the classes, not over dim=0, the examples"
    return setup.with_model(lambda model: Rewired(model, functions, over_classes), line, is_new=False)


@remedy("relu", "activation", rules=("saturated-activation", "vanishing-gradient"))
def relu(setup: Setup) -> Setup | None:
    """Puts ReLUs in place of the hidden sigmoids and tanhs.

    A sigmoid passes at most a quarter of the gradient, and almost none where it is saturated; a stack of them, nothing.
    """
    calls = _calls(setup)
    last = _last(calls)
    hidden = [call for call in calls if call.name in FLAT_AT_BOTH_ENDS and call is not last]
    if not hidden:
        return None
    return _exchanged(setup, calls, hidden, lambda _function, x, *_, **__: torch.relu(x), "nn.ReLU()")


@remedy("less-dropout", "dropout", rules=("dropout-too-strong",))
def less_dropout(setup: Setup) -> Setup | None:
    """Lowers every dropout rate to 0.1.

    Dropping with probability p adds noise of p/(1 − p) times the square of the signal: at 0.8 four times the signal.
    """
    modules = [module for module in setup.problem.model.modules() if isinstance(module, nn.modules.dropout._DropoutNd)]
    functions = [call for call in _calls(setup) if call.name in DROPOUTS]
    if max([module.p for module in modules] + [_rate(call) for call in functions], default=0.0) <= MILD_DROPOUT:
        return None

    def milder(function: Any, x: Tensor, p: float = 0.5, *args: Any, **kwargs: Any) -> Any:
        return function(x, min(p, MILD_DROPOUT), *args, **kwargs)

    line = (
        "for module in model.modules():\n    if isinstance(module, nn.modules.dropout._DropoutNd):\n"
        f"        module.p = min(module.p, {MILD_DROPOUT})"
    )
    if not modules:
        line = f"# in the model's forward: F.dropout(…, p={MILD_DROPOUT})"
    return setup.with_model(lambda model: Rewired(model, DROPOUTS, milder), line, is_new=False)


def _exchanged(setup: Setup, calls: list[Call], wanted: list[Call], exchange: Exchange, instead: str) -> Setup:
    functions = {call.name for call in wanted}
    alike = [call for call in calls if call.name in functions]
    numbers = frozenset(i for i, call in enumerate(alike) if any(call is each for each in wanted))
    lines = dict.fromkeys(_line(setup, calls, call, instead) for call in wanted)
    return setup.with_model(lambda model: Rewired(model, functions, exchange, numbers), *lines, is_new=False)


def _line(setup: Setup, calls: list[Call], call: Call, instead: str) -> str:
    """How to exchange a call: the module that makes it and nothing else, or a word on the code."""
    module = dict(setup.problem.model.named_modules())[call.inside]
    name = plain_name(call.inside)
    is_alone = sum(each.inside == call.inside for each in calls) == 1
    if name and is_alone and type(module).__module__ == "torch.nn.modules.activation":
        return f'model.set_submodule("{name}", {instead})'
    where = f"{type(module).__name__}.forward" if type(module) is not Rewired else "forward"
    if instead == "nn.Identity()":
        return f"# in {where}: return what {call.name} is given, without {call.name}"
    return f"# in {where}: {instead.removeprefix('nn.').removesuffix('()').lower()} in place of {call.name}"


def _calls(setup: Setup) -> list[Call]:
    """The function calls of a forward pass, inside modules too."""
    recording = record(copied(setup.problem.model), setup.inputs, lambda _module: False)
    return [] if recording.error is not None else recording.needed_calls()


def _last(calls: list[Call]) -> Call | None:
    """The last call that is more than another shape."""
    return next((call for call in reversed(calls) if call.name not in RESHAPING), None)


def nonlinear_calls(setup: Setup) -> list[Call]:
    """The calls that are neither of a layer nor of another shape: activations, norms, pooling, products."""
    linear = {"linear", "conv1d", "conv2d", "conv3d", "add", "dropout", "avg_pool2d", "mean", "sum", "pad", *RESHAPING}
    return [call for call in _calls(setup) if call.name not in linear and call is not _last(_calls(setup))]


def first_batch(setup: Setup) -> tuple[Any, Any]:
    """Outputs, without a graph, and targets of the first batch."""
    problem = setup.problem
    with problem.measuring(), torch.no_grad(), contextlib.closing(problem.data()) as data:
        index, (inputs, targets) = next(data)
        return problem.forward(index, inputs), targets


def loss_at(setup: Setup, outputs: Any, targets: Any) -> float:
    """The loss of any outputs; NaN where it refuses them. What it holds stays as it is."""
    with setup.problem.measuring(), torch.no_grad():
        try:
            return float(setup.problem.raw_loss(outputs, targets))
        except Exception:  # a user's loss may raise anything
            return math.nan


def _dimension(call: Call) -> int | None:
    given = call.kwargs.get("dim", call.args[1] if len(call.args) > 1 else None)
    return given if isinstance(given, int) else None


def _are_shares(outputs: Any, targets: Any) -> bool:
    """Whether targets are numbers from 0 to 1, one per output."""
    if not isinstance(outputs, Tensor) or not isinstance(targets, Tensor) or not targets.is_floating_point():
        return False
    return outputs.numel() == targets.numel() and bool(((targets >= 0) & (targets <= 1)).all())


def _is_log_of_probabilities(setup: Setup, outputs: Any, targets: Any) -> bool:
    """Whether a loss is −log p of the label at probabilities."""
    is_index = isinstance(targets, Tensor) and not targets.is_floating_point()
    if not is_index or not isinstance(outputs, Tensor) or outputs.dim() != 2 or targets.dim() != 1:
        return False
    p = (4 * torch.arange(outputs.numel(), dtype=torch.float32).sin()).view(outputs.shape).softmax(-1)
    found = loss_at(setup, p.to(outputs), targets)
    return math.isclose(found, float(F.nll_loss(p.log(), targets.cpu())), rel_tol=1e-2)


def _rate(call: Call) -> float:
    given = call.kwargs.get("p", call.args[1] if len(call.args) > 1 else 0.5)
    return float(given) if isinstance(given, (int, float)) else 0.0


def _wants_probabilities(setup: Setup) -> bool:
    """Whether the loss is finite at 1/2 and not at −1. Asked on the CPU, as a GPU's kernels abort where they refuse."""
    outputs, targets = first_batch(setup)
    if not isinstance(outputs, Tensor) or not isinstance(targets, Tensor):
        return False
    half, below = (torch.full_like(outputs, value, device="cpu") for value in (0.5, -1.0))
    return math.isfinite(loss_at(setup, half, targets.cpu())) and not math.isfinite(
        loss_at(setup, below, targets.cpu())
    )
