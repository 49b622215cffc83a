"""Remedies of the start: other initial weights, drawn anew for every seed."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from wellcond.network.calling import tensors_in
from wellcond.network.copying import copied
from wellcond.network.forward_pass import read_forward_pass
from wellcond.network.isolation.isolation import rng_kept, seed_generators
from wellcond.network.layers import as_stored, by_site, is_affine, weighted_layers
from wellcond.remedies.functions import plain_name
from wellcond.remedies.remedy import remedy
from wellcond.remedies.setup import Setup

Draw = Callable[[Tensor], Tensor]
"""Fills (outputs, fan_in)."""
SIGNALS = ("vanishing-gradient", "exploding-gradient", "activation-drift", "rank-collapse")
STARTS = ("bad-initialisation", "symmetric-initialisation", *SIGNALS)
LINES = """\
for module in model.modules():
    if isinstance(module, (nn.Linear, nn.modules.conv._ConvNd)):
        {draw}
        if module.bias is not None:
            nn.init.zeros_(module.bias)"""


@remedy("he-init", "weights", rules=(*STARTS, "dying-neurons", "weight-domination"))
def he(setup: Setup) -> Setup | None:
    """Draws the weights of linear and convolutional layers from N(0, 2/fan_in), biases zero (He et al. 2015).

    A ReLU halves the mean square of a signal; the 2 makes up for it, so that depth neither fades nor explodes it.
    """
    return _drawn(setup, lambda w: _normal(w, 2.0), 'nn.init.kaiming_normal_(module.weight, nonlinearity="relu")')


@remedy("lecun-init", "weights", rules=(*STARTS, "saturated-activation", "attention-saturation"))
def lecun(setup: Setup) -> Setup | None:
    """Draws the weights from N(0, 1/fan_in), biases zero (LeCun et al. 1998).

    Units then receive signals of variance one, where tanh and sigmoid are steep.
    """
    return _drawn(setup, lambda w: _normal(w, 1.0), 'nn.init.kaiming_normal_(module.weight, nonlinearity="linear")')


@remedy("orthogonal-init", "weights", rules=SIGNALS)
def orthogonal(setup: Setup) -> Setup | None:
    """Draws orthogonal weights times √2, biases zero (Saxe et al. 2014).

    Every singular value is the same, so that no direction of the signal or of the gradient is lost with depth.
    """
    return _drawn(setup, _orthogonal, "nn.init.orthogonal_(module.weight, gain=2**0.5)")


@remedy("zero-last", "last weights", rules=("bad-initialisation", "saturated-output", "last-layer-drift"))
def zero_last(setup: Setup) -> Setup | None:
    """Sets the weights and biases of the last layer to zero.

    The first outputs are then alike for all inputs: the loss starts at log C, not at that of confident wrong answers.
    """
    last = [name for name in last_layers(setup) if name]
    if not last:
        return None
    names = ", ".join(repr(plain_name(name)) for name in last)

    def zero(model: nn.Module) -> None:
        modules = dict(model.named_modules())
        for name in last:
            for p in modules[name].parameters(recurse=False):
                nn.init.zeros_(p)

    line = f"for name in ({names},):\n    for p in model.get_submodule(name).parameters():\n        nn.init.zeros_(p)"
    return _changed(setup, lambda model, _seed: zero(model), line)


@remedy("open-gates", "gates", rules=("vanishing-gradient",))
def open_gates(setup: Setup) -> Setup | None:
    """Biases the gates of LSTMs to remember for up to as many steps as the inputs have (Tallec and Ollivier 2018).

    A gate of σ(b) forgets after 1/(1 − σ(b)) steps: one step in two at b = 0, and so does its gradient.
    """
    longest = max((x.shape[1] for x in tensors_in(setup.inputs) if x.dim() == 3), default=0)
    if longest < 3 or not any(isinstance(module, nn.LSTM) for module in setup.problem.model.modules()):
        return None

    def open_them(model: nn.Module, seed: int) -> None:
        with _drawing(seed, next(model.parameters()).device):
            for module in model.modules():
                for name, bias in module.named_parameters(recurse=False) if isinstance(module, nn.LSTM) else ():
                    if name.startswith("bias_ih"):
                        size = len(bias) // 4
                        bias[size : 2 * size] = torch.empty_like(bias[:size]).uniform_(1, longest - 1).log()
                        bias[:size] = -bias[size : 2 * size]

    line = f"""\
for name, bias in model.named_parameters():
    if "bias_ih" in name:  # of an LSTM: input, forget, cell and output gates
        size = len(bias) // 4
        bias.data[size : 2 * size] = torch.empty(size).uniform_(1, {longest - 1}).log()
        bias.data[:size] = -bias.data[size : 2 * size]"""
    return _changed(setup, open_them, line)


def _drawn(setup: Setup, draw: Draw, line: str) -> Setup | None:
    if not _layers(setup.problem.model):
        return None

    def redraw(model: nn.Module, seed: int) -> None:
        with _drawing(seed, next(model.parameters()).device):
            for module in _layers(model):
                weight, bias = module.weight, getattr(module, "bias", None)
                sites = by_site(module, weight)  # (groups, outputs, inputs, sites of the kernel)
                rows = torch.stack([draw(torch.empty_like(group.flatten(1))) for group in sites])
                weight.copy_(as_stored(module, rows.view(sites.shape)))
                if isinstance(bias, Tensor):
                    nn.init.zeros_(bias)

    return _changed(setup, redraw, LINES.format(draw=line))


def _changed(setup: Setup, change: Callable[[nn.Module, int], None], line: str) -> Setup:
    """The weights of the patient are changed at once, so that its first loss is known, and those of copies per seed."""

    def at_once(model: nn.Module) -> nn.Module:
        change(model, 0)
        return model

    def again(model: nn.Module, optimizer: Optimizer, seed: int) -> None:
        change(model, seed)

    return setup.with_model(at_once, line, is_new=False).prepared(again)


def _layers(model: nn.Module) -> list[Any]:
    """Linear and convolutional layers that own their weight."""
    layers = [module for module in weighted_layers(model).values() if is_affine(module)]
    return [module for module in layers if isinstance(module._parameters.get("weight"), Tensor)]


def last_layers(setup: Setup) -> list[str]:
    """Names of the linear and convolutional layers behind which there is no other."""
    model = copied(setup.problem.model)
    return read_forward_pass(model, setup.inputs, training=False).last_layers(is_affine)


@contextlib.contextmanager
def _drawing(seed: int, device: torch.device) -> Iterator[None]:
    with rng_kept(device), torch.no_grad():
        seed_generators(seed, device)
        yield


def _normal(rows: Tensor, gain: float) -> Tensor:
    return rows.normal_(0.0, (gain / rows.shape[1]) ** 0.5)


def _orthogonal(rows: Tensor) -> Tensor:
    drawn = nn.init.orthogonal_(torch.empty_like(rows, dtype=torch.float32), gain=2**0.5)  # halves have no QR
    return rows.copy_(drawn)
