"""Remedies of the layers: norms put in, and parameters that take part in training."""

from __future__ import annotations

from typing import Literal

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.optim import Optimizer

from wellcond.network.layers import is_affine, weighted_layers
from wellcond.nn.last_batchnorm import put_last_batchnorm
from wellcond.nn.normalized import normalized
from wellcond.nn.replace import NORMS, exchanged
from wellcond.optim.bnp import BNP
from wellcond.remedies.functions import nonlinear_calls
from wellcond.remedies.initialization import last_layers
from wellcond.remedies.remedy import remedy
from wellcond.remedies.setup import Setup

DEPTH = (
    "vanishing-gradient",
    "exploding-gradient",
    "activation-drift",
    "ill-conditioned-input",
    "saturated-activation",
)


@remedy("batchnorm", "norms", rules=(*DEPTH, "dying-neurons", "full-neurons", "rank-collapse", "bad-initialisation"))
def batchnorm(setup: Setup) -> Setup | None:
    """Puts a BatchNorm behind every hidden layer (Ioffe and Szegedy 2015).

    Each layer then receives signals of mean zero and variance one, whatever the weights before it are.
    """
    return _with_norms(setup, "batch")


@remedy("layernorm", "norms", rules=(*DEPTH, "small-batch-batchnorm", "batchnorm-mode-gap"))
def layernorm(setup: Setup) -> Setup | None:
    """Puts a LayerNorm behind every hidden layer (Ba et al. 2016), which does not depend on the batch."""
    return _with_norms(setup, "layer")


@remedy("last-bn", "norms", rules=("last-layer-drift", "vanishing-gradient", "exploding-gradient", "saturated-output"))
def last_bn(setup: Setup) -> Setup | None:
    """Puts one BatchNorm before the last linear layer (huang2020): what enters it neither fades nor explodes."""
    return setup.with_model(
        lambda model: put_last_batchnorm(model, setup.inputs), "model = wc.nn.with_last_batchnorm(model, inputs)"
    )


@remedy("bnp", "gradient", rules=("ill-conditioned-input", "unscaled-input", "activation-drift"))
def bnp(setup: Setup) -> Setup | None:
    """Preconditions each layer's gradient as if its inputs were normalized (lange2022); the network stays as it is."""

    def precondition(model: nn.Module, optimizer: Optimizer, seed: int) -> None:
        BNP(model, optimizer)

    return setup.prepared(precondition, "wc.BNP(model, optimizer)")


@remedy("group-norm", "norms", rules=("small-batch-batchnorm", "batchnorm-mode-gap"))
def group_norm(setup: Setup) -> Setup | None:
    """Puts a GroupNorm of one group in place of every BatchNorm (Wu and He 2018): its statistics are of one example.

    Those of a small batch are noise, of relative size 1/√N, and differ from the running ones used in evaluation.
    """
    if not any(isinstance(module, _BatchNorm) for module in setup.problem.model.modules()):
        return None

    def change(model: nn.Module) -> nn.Module:
        like = next(model.parameters())
        norms = [module for module in model.modules() if isinstance(module, _BatchNorm)]
        return exchanged(model, {n: nn.GroupNorm(1, n.num_features, n.eps).to(like.device, like.dtype) for n in norms})

    line = "model = wc.nn.replace_norm(model, lambda channels: nn.GroupNorm(1, channels))"
    return setup.with_model(change, line)


@remedy("pre-norm", "norms", rules=("vanishing-gradient", "exploding-gradient", "learning-rate-too-high"))
def pre_norm(setup: Setup) -> Setup | None:
    """Puts the norms of transformer layers before attention and feed-forward, not behind the sum (Xiong et al. 2020).

    Behind the sum they shrink the residual stream at every layer, and with it the gradients of the first ones.
    """
    kinds = (nn.TransformerEncoderLayer, nn.TransformerDecoderLayer)
    if not any(isinstance(m, kinds) and not m.norm_first for m in setup.problem.model.modules()):
        return None

    def change(model: nn.Module) -> nn.Module:
        for module in model.modules():
            if isinstance(module, kinds):
                module.norm_first = True
        return model

    line = (
        "for layer in model.modules():\n    layer.norm_first = True  # norm_first=True in nn.TransformerEncoderLayer(…)"
    )
    return setup.with_model(change, line, is_new=False)


@remedy("nonlinearity", "activation", rules=("no-nonlinearity",))
def nonlinearity(setup: Setup) -> Setup | None:
    """Puts a ReLU behind every hidden linear and convolutional layer: without one, all of them are one linear map."""
    model = setup.problem.model
    last = set(last_layers(setup))
    names = [name for name, layer in weighted_layers(model).items() if is_affine(layer) and name and name not in last]
    has_others = len(weighted_layers(model)) > len(names) + len(last)
    if not names or has_others or nonlinear_calls(setup):
        return None

    def change(model: nn.Module) -> nn.Module:
        return exchanged(model, {(old := model.get_submodule(n)): nn.Sequential(old, nn.ReLU()) for n in names})

    line = (
        f"for name in {tuple(names)}:\n"
        "    model.set_submodule(name, nn.Sequential(model.get_submodule(name), nn.ReLU()))"
    )
    return setup.with_model(change, line, is_new=False)


@remedy("unfreeze", "parameters", rules=("no-gradient",))
def unfreeze(setup: Setup) -> Setup | None:
    """Trains all floating-point parameters: those that are frozen, and those that the optimizer does not hold."""
    model, optimizer = setup.problem.model, setup.optimizer
    held = None if optimizer is None else {p for group in optimizer.param_groups for p in group["params"]}
    real = [p for p in model.parameters() if p.is_floating_point()]
    if all(p.requires_grad and (held is None or p in held) for p in real):
        return None

    def change(model: nn.Module) -> nn.Module:
        return model.requires_grad_()

    treated = setup.with_model(change, "model.requires_grad_()")
    if treated.optimizer is not None:
        groups = treated.optimizer.param_groups
        missing = set(treated.problem.model.parameters()) - {p for group in groups for p in group["params"]}
        groups[0]["params"] += [p for p in treated.problem.model.parameters() if p in missing]
    return treated


def _with_norms(setup: Setup, kind: Literal["batch", "layer"]) -> Setup | None:
    if any(isinstance(module, NORMS) or "Norm" in type(module).__name__ for module in setup.problem.model.modules()):
        return None
    return setup.with_model(
        lambda model: normalized(model, setup.inputs, kind), f'model = wc.nn.with_norms(model, inputs, "{kind}")'
    )
