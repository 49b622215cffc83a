"""Scale-amended SGD (zhang2018, algorithm 2): the gradient of every layer in the scale of its own local Hessian."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from wellcond.errors import Unsupported
from wellcond.network.calling import unwrapped
from wellcond.network.forward_pass import ForwardPass, read_forward_pass, watch_forward_pass
from wellcond.optim.factors import Factors, LayerScale, chain_scales, check_factors, given_scales
from wellcond.optim.scaled_sgd import Group, ScaledSGD, Tensors, norms

NEVER_SEEN = (
    "no forward pass with gradients has been seen, so the scales of the layers are unknown. Call the model before "
    "step(); if it is compiled, or only parts of it are called, write ScaleAmendedSGD(model, inputs=batch)."
)
OFF_THE_PATH = (
    "{layer!r} has a gradient, but in the forward pass that was watched it was frozen, compiled, or did not lead to "
    "the output. Write ScaleAmendedSGD(model, inputs=batch), or pass factors={{layer: backward factor m, …}}."
)


def amending_scales(params: Tensors, m: Sequence[float], q: Sequence[int], units: Sequence[int | None]) -> Tensors:
    """1/(m·m_W) of each tensor: of a weight with m_W = q/‖W‖²_{2,μ} = q·units/‖W‖², of anything else with m_W = q.

    `units` is the number of rows of a weight; None for a module that has none.
    """
    rows = [u if u is not None and p.dim() > 1 else None for p, u in zip(params, units, strict=True)]
    squares = torch._foreach_pow(norms(params), [0.0 if r is None else 2.0 for r in rows])
    return torch._foreach_mul(squares, [1 / (m_b * q_b * (r or 1)) for m_b, q_b, r in zip(m, q, rows, strict=True)])


class ScaleAmendedSGD(ScaledSGD):
    """SGD that steps in every layer at the scale of that layer's own local Hessian: δ'W = δW/(m·m_W).

    A block goes from the input of a linear or convolutional layer to the input of the next one: the layer, its
    norm, activation and pooling. From the last block, where m = 1, to the first:

        δ'W = δW/(m·m_W),  m_W = q/‖W‖²_{2,μ};      m ← m·m_z,  m_z = n_out/(n_in·c)

    ‖W‖²_{2,μ} is the mean squared norm of a row of the current W; n_in and n_out are features or channels; q is the
    number of positions of the layer's output (pixels, tokens; 1 for a dense layer), and c the ratio of positions at
    the block's start and end (4 for a stride or pooling of 2). So m is the network's outputs over the elements that
    leave the block.

    Weight decay comes first and is amended with the gradient; momentum is that of `torch.optim.SGD`, on δ'W. Biases
    and norms are divided by m·q, in the block of the layer called before them: after a norm, the local Hessian of a
    shift or a gain of one feature is the number of positions it acts on. The formulas are those of normalized blocks;
    a hidden layer with no norm in its block is warned about.

    There is one parameter group per module, whose entries `m`, `m_z`, `q`, `c` and `why` say how it is scaled.
    Parameters added by `add_param_group` take plain SGD steps (m = q = 1), as parameters of the loss should.

    Args:
        model: The model. Its chain of layers and their sizes are read off a forward pass, through `torch.compile` and
            DDP. It is not changed.
        lr: Learning rate of SGD for the last layer of a network with ‖W‖²_{2,μ} = 1. The paper uses 0.1, and 0.005 for
            CIFAR-10, with momentum 0.9 and weight decay 5e-3.
        momentum: μ, as in `torch.optim.SGD`.
        nesterov: Whether the momentum is Nesterov's.
        weight_decay: λ, added to the gradient as λW.
        inputs: A batch to read the network with now; one example is enough. By default the first forward pass with
            gradients is read.
        factors: {layer: m} for every linear and convolutional layer of a network that is not a chain; the name of a
            module stands for all layers in it.

    Raises:
        Unsupported: The layers do not form a chain, there is no formula for one of them, or `factors` misses one. Also
            raised by `step()` if a layer has a gradient but was not seen in a forward pass.
        UnknownLayer: `factors` names something that is not in the model.

    Example:
        >>> model = nn.Sequential(
        ...     nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8, affine=False), nn.ReLU(), nn.MaxPool2d(2),
        ...     nn.Flatten(), nn.Linear(8 * 4 * 4, 10, bias=False),
        ... )
        >>> ScaleAmendedSGD(model, inputs=torch.zeros(1, 3, 8, 8)).factors
        layer       m     m_z   q  c  why
        0      0.0781   0.667  64  4  3→8 features, 64→16 positions
        5           1  0.0781   1  1  128→10 features; the last layer
    """

    def __init__(
        self,
        model: nn.Module,
        lr: float = 0.1,
        *,
        momentum: float = 0.0,
        nesterov: bool = False,
        weight_decay: float = 0.0,
        inputs: Any = None,
        factors: Mapping[str, float] | None = None,
    ) -> None:
        if not isinstance(model, nn.Module):
            raise TypeError(f"ScaleAmendedSGD takes the model itself, not {type(model).__name__}")
        inner = unwrapped(model)
        modules = dict(inner.named_modules())
        check_factors(factors or {}, modules)
        options = {"lr": lr, "momentum": momentum, "nesterov": nesterov, "weight_decay": weight_decay}
        plain = LayerScale(m=1.0, why="plain SGD")
        super().__init__(list(_groups(inner)), options | {"layer": None, **plain._asdict()})

        def read(seen: ForwardPass) -> None:
            self._take(chain_scales(seen) if factors is None else given_scales(seen, factors, modules))

        if inputs is None:
            watch_forward_pass(model, read)
        else:
            read(read_forward_pass(model, inputs))

    @property
    def factors(self) -> Factors:
        """How each layer is scaled, and why."""
        layers = [group for group in self.param_groups if group["layer"] is not None]
        return Factors({group["layer"]: LayerScale(*(group[key] for key in LayerScale._fields)) for group in layers})

    def check(self, options: Group) -> None:
        super().check(options)
        for name in ("m", "q"):
            if options[name] is not None and not options[name] > 0:
                raise ValueError(f"{name} must be > 0, not {options[name]}")

    def scales(self, params: Tensors, gradients: Tensors, groups: list[Group]) -> Tensors:
        for group in groups:
            if group["m"] is None:
                nothing_seen = all(other["m"] is None for other in self.param_groups if other["layer"] is not None)
                raise Unsupported(NEVER_SEEN if nothing_seen else OFF_THE_PATH.format(**group))
        m, q, units = ([group[name] for group in groups] for name in ("m", "q", "units"))
        return amending_scales(params, m, q, units)

    def _take(self, scales: Mapping[str, LayerScale]) -> None:
        for group in self.param_groups:
            if group["layer"] is None:
                continue
            scale = scales.get(group["layer"], LayerScale())
            group.update(scale._asdict())
            if scale.units and not any(p.any() for p in group["params"] if p.dim() > 1):
                text = (
                    f"the weight of {group['layer']!r} is zero and so is its scale ‖W‖²: it never moves; initialize it."
                )
                warnings.warn(text, stacklevel=2)


def _groups(model: nn.Module) -> Iterator[Group]:
    """One group per module that owns parameters; a tied one belongs to the first."""
    held: set[Tensor] = set()
    for name, module in model.named_modules():
        if params := [p for p in module.parameters(recurse=False) if p not in held]:
            held.update(params)
            yield {"params": params, "layer": name, **LayerScale()._asdict()}
