"""Which rule reads which type of layer, or function called in a forward pass; there are no others."""

from __future__ import annotations

from torch import nn

from wellcond.meanfield import layer_rules, position_rules
from wellcond.meanfield.calls import Call, Rule

SMOOTH = (
    nn.Tanh, nn.GELU, nn.SiLU, nn.Sigmoid, nn.ELU, nn.SELU, nn.CELU, nn.Softplus, nn.Mish, nn.Softsign, nn.LogSigmoid,
    nn.Hardtanh, nn.ReLU6, nn.Hardswish, nn.Hardsigmoid, nn.Tanhshrink,
)  # fmt: skip
SMOOTH_FUNCTIONS = (
    "tanh", "erf", "gelu", "silu", "sigmoid", "elu", "selu", "celu", "softplus", "mish", "softsign", "logsigmoid",
    "hardtanh", "relu6", "hardswish", "hardsigmoid", "tanhshrink",
)  # fmt: skip
MODULES: dict[type[nn.Module], Rule] = {
    nn.Linear: layer_rules.linear,
    nn.Conv1d: layer_rules.convolution,
    nn.Conv2d: layer_rules.convolution,
    **dict.fromkeys((nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm), layer_rules.batchnorm),
    nn.LayerNorm: layer_rules.layernorm,
    nn.RMSNorm: layer_rules.layernorm,
    nn.ReLU: layer_rules.relu,
    nn.LeakyReLU: layer_rules.leaky_relu,
    **dict.fromkeys(SMOOTH, layer_rules.activation_module),
    nn.Identity: position_rules.same,
    **dict.fromkeys((nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout), position_rules.dropout),
    nn.Flatten: position_rules.reshape,
    nn.Unflatten: position_rules.reshape,
    nn.AdaptiveAvgPool1d: position_rules.adaptive_pool,
    nn.AdaptiveAvgPool2d: position_rules.adaptive_pool,
    nn.AvgPool1d: position_rules.average_pool,
    nn.AvgPool2d: position_rules.average_pool,
}
FUNCTIONS: dict[str, Rule] = {
    "relu": layer_rules.relu,
    "leaky_relu": layer_rules.leaky_relu,
    **dict.fromkeys(SMOOTH_FUNCTIONS, layer_rules.activation_function),
    **dict.fromkeys(("dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout"), position_rules.dropout),
    **dict.fromkeys(("flatten", "view", "reshape", "squeeze"), position_rules.reshape),
    **dict.fromkeys(("contiguous", "clone", "float", "double"), position_rules.same),
    **dict.fromkeys(("adaptive_avg_pool1d", "adaptive_avg_pool2d"), position_rules.adaptive_pool),
    "mean": position_rules.mean,
    "getitem": position_rules.strided,
    "pad": position_rules.pad,
    **dict.fromkeys(("mul", "truediv"), position_rules.scaled),
}
CURES = {
    "Max": "Use a stride or an average pooling instead, or measure instead: wc.eigenvalues(wc.GGN(problem)).",
    "GroupNorm": "Use a BatchNorm, or a LayerNorm behind linear layers.",
    "PReLU": "Use nn.LeakyReLU: a slope that is trained has no term here.",
    "Softmax": "Predict for the network up to its logits.",
}
"""By a part of a type's or a function's name, the last that is found."""


def rule_of(call: Call) -> Rule:
    """The rule of a module whose type, or a base whose `forward` it keeps, has one; or of a function."""
    rule: Rule | None = None
    if isinstance(call.what, nn.Module):
        kept = (cls for cls in type(call.what).__mro__ if cls in MODULES and type(call.what).forward is cls.forward)
        rule = MODULES.get(next(kept, nn.Module))
    else:
        rule = FUNCTIONS.get(call.what)
    if rule is None:
        cures = [cure for part, cure in CURES.items() if part.lower() in call.kind.lower()]
        raise call.refused(cure=cures[-1] if cures else None)
    return rule
