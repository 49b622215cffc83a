"""From a module to the stages of mean-field theory: its forward pass is recorded and read call by call."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from wellcond.errors import InvalidProblem, NonFinite, Unsupported
from wellcond.learning_rate.meanfield import layer_rules, shape_rules
from wellcond.learning_rate.meanfield.feature_maps import GlobalPool, input_moments, two
from wellcond.learning_rate.meanfield.moments import Kernel
from wellcond.learning_rate.meanfield.signal import CURE, CallRule, ReadCall, Signal, refusal
from wellcond.learning_rate.meanfield.stages import Affine, Residual, Stage, every, with_means
from wellcond.network.calling import unwrapped
from wellcond.network.norms import is_norm
from wellcond.network.recording import Call, Recording, Value, record

MOST_EXAMPLES = 1000
"""Most examples whose matrix of products is followed through the layers."""
SMOOTH = (
    nn.Tanh, nn.GELU, nn.SiLU, nn.Sigmoid, nn.ELU, nn.SELU, nn.CELU, nn.Softplus, nn.Mish, nn.Softsign, nn.LogSigmoid,
    nn.Hardtanh, nn.ReLU6, nn.Hardswish, nn.Hardsigmoid, nn.Tanhshrink,
)  # fmt: skip
MODULES: dict[type[nn.Module], CallRule] = {
    nn.Linear: layer_rules.linear,
    **dict.fromkeys((nn.Conv1d, nn.Conv2d), layer_rules.convolution),
    **dict.fromkeys((nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm), layer_rules.batchnorm),
    **dict.fromkeys((nn.LayerNorm, nn.RMSNorm), layer_rules.layernorm),
    nn.ReLU: layer_rules.relu,
    nn.LeakyReLU: layer_rules.leaky_relu,
    **dict.fromkeys(SMOOTH, layer_rules.smooth_module),
    nn.Identity: shape_rules.same,
    **dict.fromkeys((nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout), shape_rules.dropout),
    **dict.fromkeys((nn.Flatten, nn.Unflatten), shape_rules.reshape),
    **dict.fromkeys((nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d), shape_rules.adaptive_pool),
    **dict.fromkeys((nn.AvgPool1d, nn.AvgPool2d), shape_rules.average_pool),
}
FUNCTIONS: dict[str, CallRule] = {
    "relu": layer_rules.relu,
    "leaky_relu": layer_rules.leaky_relu,
    **dict.fromkeys(layer_rules.SMOOTH_FUNCTIONS, layer_rules.smooth_function),
    **dict.fromkeys(("dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout"), shape_rules.dropout),
    **dict.fromkeys(("flatten", "view", "reshape", "squeeze"), shape_rules.reshape),
    **dict.fromkeys(("contiguous", "clone", "float", "double"), shape_rules.same),
    **dict.fromkeys(("adaptive_avg_pool1d", "adaptive_avg_pool2d"), shape_rules.adaptive_pool),
    "mean": shape_rules.mean,
    "getitem": shape_rules.strided,
    "pad": shape_rules.pad,
    **dict.fromkeys(("mul", "div"), shape_rules.scaled),
}
"""Functions with a rule; `MODULES` are the modules with one. There are no others."""
CURES = {
    "max": "Use a stride or an average pooling instead, or measure instead: wc.eigenvalues(wc.GGN(problem)).",
    "groupnorm": "Use a BatchNorm, or a LayerNorm after linear layers.",
    "prelu": "Use nn.LeakyReLU: a slope that is trained has no term here.",
    "softmax": "Predict for the network up to its logits.",
}
"""Advice by a part of a type's or a function's name; the last match counts."""


@dataclass(frozen=True)
class Reading:
    """A network as mean-field theory sees it.

    Attributes:
        stages: Layers, with σ_w² = fan_in · mean(w²), σ_b² = mean(b²) and γ = √mean(γ²) of their own parameters;
            frozen ones have no term.
        outputs: Number C of outputs.
        input_moments: Moments of the inputs, or of independent normalized ones.
        notes: Differences between the theory and the network.
    """

    stages: list[Stage]
    outputs: int
    input_moments: Kernel
    notes: tuple[str, ...] = ()


def read(module: nn.Module, inputs: Tensor | Sequence[int] | None = None) -> Reading:
    """Read the layers of a network, their order and variances, from the module itself.

    The module is run once on two examples, and its calls are read. A forward pass that depends on its data is read on
    the path that it takes for these examples. The module is not changed.

    Args:
        module: The network.
        inputs: Batch (N, ...), N > 1, or the shape of one example; convolutions need one of them. By default, vectors
            that the first linear layer accepts.

    Returns:
        The stages, and the moments of the inputs.

    Raises:
        Unsupported: A part of the network has no rule, which the message names; or inputs are needed.
        InvalidProblem: The network has no weights, or they have no values yet.
        NonFinite: Inputs or weights hold NaN or inf.
    """
    module = unwrapped(module)
    if isinstance(module, tuple(MODULES)):
        module = nn.Sequential(module)  # so that the layer has a name
    for name, parameter in module.named_parameters():
        if is_lazy(parameter) or parameter.is_meta:
            raise InvalidProblem(f"parameter {name!r} has no values yet (a lazy layer, or the meta device).")
    recording = _recorded(module, _examples(module, inputs))
    walk = _Walk(recording)
    if recording.error is not None:
        shape = tuple(recording.inputs[0].shape[1:])
        if inputs is not None:
            raise Unsupported(f"inputs of shape {shape}: {recording.error}") from recording.error
        cure = "Pass inputs=a batch of examples, or inputs=the shape of one, such as (3, 32, 32)."
        raise Unsupported(f"guessed inputs of shape {shape}: {recording.error} {cure}") from recording.error
    stages, notes = walk.end(recording).stages, walk.notes()
    start = input_moments(stages, inputs[:MOST_EXAMPLES] if isinstance(inputs, Tensor) else inputs)
    if isinstance(inputs, Tensor) and len(inputs) > MOST_EXAMPLES:
        notes.append(f"only the first {MOST_EXAMPLES} of {len(inputs)} inputs are used")
    if nn.modules.module._global_forward_hooks or nn.modules.module._global_forward_pre_hooks:
        notes.append("hooks on all modules, as from register_module_forward_hook, are assumed to change nothing")
    return Reading(with_means(stages, start), recording.outputs[0].shape[1], start, tuple(notes))


# the recording


def _examples(module: nn.Module, inputs: Any) -> list[Tensor]:
    """Two of the inputs; without inputs several guesses, vectors that one of the linear layers accepts."""
    if inputs is None:
        widths = dict.fromkeys(layer.in_features for layer in module.modules() if isinstance(layer, nn.Linear))
        return [torch.zeros(2, width, device="cpu") for width in widths or (1,)]
    if isinstance(inputs, Tensor):
        if inputs.dim() < 2 or len(inputs) < 2:
            raise ValueError(f"inputs is {tuple(inputs.shape)}; it must be a batch (N, ...) of two examples or more.")
        check_finite(inputs)
        return [inputs[:2]]
    if not isinstance(inputs, (tuple, list)):
        kind = type(inputs).__name__
        raise TypeError(f"inputs is of type {kind}; it must be a tensor (N, ...), or the shape of one example.")
    if not inputs or not all(isinstance(n, int) and n > 0 for n in inputs):
        raise ValueError(f"inputs is {inputs!r:.80}; it must be a tensor (N, ...), or the shape of one example.")
    return [torch.zeros(2, *inputs, device="cpu")]


def check_finite(inputs: Tensor) -> None:
    """Raise if inputs hold NaN or inf."""
    if not bool(inputs.isfinite().all()):
        raise NonFinite("inputs: they hold NaN or inf; clean the data, or leave those examples out.")


def _recorded(module: nn.Module, candidates: Sequence[Tensor]) -> Recording:
    """The first pass that runs to its end, or else the longest one."""
    dtype = next((p.dtype for p in module.parameters()), torch.get_default_dtype())
    takes_indices = any(isinstance(layer, (nn.Embedding, nn.EmbeddingBag)) for layer in module.modules())
    recordings = []
    for x in candidates:
        x = x if x.is_complex() or (takes_indices and not x.is_floating_point()) else x.to(dtype)
        recordings.append(record(module, x, _is_leaf))
        if recordings[-1].error is None:
            return recordings[-1]
    return max(recordings, key=lambda recording: len(recording.calls))


def _is_leaf(module: nn.Module) -> bool:
    is_of_torch = type(module).__module__.startswith("torch.nn") and not isinstance(module, nn.Sequential)
    return is_of_torch or isinstance(module, tuple(MODULES)) or is_norm(module)


# its calls


class _Walk:
    """Follows the signal from the network's input along the calls."""

    def __init__(self, recording: Recording) -> None:
        calls = recording.needed_calls()
        has_positions = any(isinstance(call.module, (nn.Conv1d, nn.Conv2d)) for call in calls)
        first = recording.inputs[0]
        self.signals = {first: Signal(size=two(first.shape[2:]) if has_positions else None)}
        """Signals by value; any other value, such as a parameter, does not depend on the input."""
        self.remarks: dict[str, list[str]] = {}
        """Remark → the layers that it is about."""
        self.owners: dict[nn.Parameter, str] = {}
        for call in calls:
            taken = [value for value in call.takes if value in self.signals]
            if taken and (call.gives or call.module is not None):
                self._follow(call, taken)

    def _follow(self, recorded: Call, taken: list[Value]) -> None:
        call = ReadCall.of(recorded, taken[0])
        if call.kind == "add":
            if len(taken) != 2 or len(recorded.args) != 2 or call.options.get("alpha", 1) != 1:
                raise call.refused("it adds something other than two different signals")
            after = self.signals[taken[0]].plus(self.signals[taken[1]], call)
        else:
            rule = _rule_of(call)
            if not recorded.gives:
                return  # it raised
            if len(taken) > 1:
                raise call.refused("it joins two signals, and not by adding them")
            if recorded.args and call.kind != "mul" and taken[0] != recorded.args[0]:
                raise call.refused("the signal is not its first argument")
            if call.what is not None:
                self._check_parameters_are_new(call)
            after = rule(call, self.signals[taken[0]])
        self.signals.update(dict.fromkeys(recorded.gives, after))
        for remark in call.remarks:
            self.remarks.setdefault(remark, []).append(call.name)

    def _check_parameters_are_new(self, call: ReadCall) -> None:
        for parameter in call.what.parameters():
            if parameter in self.owners:
                owner = self.owners[parameter]
                twice = "it is called twice" if owner == call.name else f"it shares a parameter with {owner!r}"
                raise call.refused(f"{twice}, and weights that are used twice are not independent")
        self.owners |= dict.fromkeys(call.what.parameters(), call.name)

    def end(self, recording: Recording) -> Signal:
        """The signal at the output."""
        if len(recording.outputs) != 1:
            raise Unsupported(f"the network returns {len(recording.outputs)} tensors; a prediction needs exactly one.")
        if recording.outputs[0] not in self.signals:
            raise Unsupported(
                "the network's output does not depend on its input, or only through code that cannot be recorded, such "
                "as a scripted function. Measure instead of predicting: wc.eigenvalues(wc.GGN(problem))."
            )
        signal = self.signals[recording.outputs[0]]
        if not any(isinstance(stage, Affine) for stage in every(signal.stages)):
            raise InvalidProblem("the network has neither a linear layer nor a convolution.")
        last = signal.stages[-1]
        if not isinstance(last, (Affine, GlobalPool, Residual)) or signal.size is not None:
            why = "the theory covers networks that end in weights, or in the mean over positions of their outputs"
            raise refusal(last.name, "at the end of the network", why, "Predict for the part up to the logits.")
        return signal

    def notes(self) -> list[str]:
        """One line per remark, with the layers that it is about."""
        return [
            f"{', '.join(names[:3])}{f' and {len(names) - 3} more' if len(names) > 3 else ''}: {remark}"
            for remark, names in self.remarks.items()
        ]


def _rule_of(call: ReadCall) -> CallRule:
    """The rule of a function, or of a module whose type, or a base with the same `forward`, has one."""
    if call.what is None:
        rule = FUNCTIONS.get(call.kind)
    else:
        kind = type(call.what)
        if "forward" in vars(call.what):
            raise call.refused("its forward was replaced by another function")
        rule = next((MODULES[base] for base in kind.__mro__ if base in MODULES and kind.forward is base.forward), None)
    if rule is None:
        raise call.refused(cure=[CURE, *(cure for part, cure in CURES.items() if part in call.kind.lower())][-1])
    return rule
