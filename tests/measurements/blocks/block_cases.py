"""Blocks of every kind, each with its model in three parts by hand, and their dense float64 references.

The reference runs a copy of the model in three parts, before, in and after the block, and differentiates
ℓ_b = ½‖z_b^{k+½} − F_b(W_b, z_{b−1})‖² twice by autograd.functional.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from references import in_state
from torch import Tensor, nn
from torch.autograd.functional import hessian, jacobian
from torch.func import functional_call
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence
from torch.utils.checkpoint import checkpoint
from zoo import ARCHITECTURES, CLASSES, Case, classifier, integers, normal

from wellcond.measurements.blocks.local_hessian import LocalHessian, local_hessian

# models whose graph or calls are out of the ordinary


class Wired(nn.Module):
    """Modules by name, called by a custom function."""

    def __init__(self, parts: dict[str, nn.Module], run: Callable[..., Any]) -> None:
        super().__init__()
        for name, part in parts.items():
            self.add_module(name, part)
        self.run = run

    def forward(self, *inputs: Tensor) -> Any:
        return self.run(self, *inputs)


def wired(parts: Callable[[], dict[str, nn.Module]], run: Callable[..., Any], *inputs: Tensor) -> Case:
    return classifier(lambda: Wired(parts(), run), inputs if len(inputs) > 1 else inputs[0], len(inputs[0]))


def body() -> dict[str, nn.Module]:
    return {"body": nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, CLASSES))}


def tied() -> dict[str, nn.Module]:
    parts = {"embed": nn.Embedding(CLASSES, 4), "twice": nn.Linear(4, 4), "between": nn.Tanh()}
    head = nn.Linear(4, CLASSES)
    head.weight = parts["embed"].weight
    return parts | {"head": head}


def cell(kind: type[nn.RNNBase] = nn.GRU) -> dict[str, nn.Module]:
    return {"cell": kind(2, 3, batch_first=True), "head": nn.Linear(3, CLASSES)}


def attention() -> dict[str, nn.Module]:
    return {"attention": nn.MultiheadAttention(4, 2, batch_first=True), "head": nn.Linear(4, CLASSES)}


def shared_activation() -> nn.Module:
    act = nn.Tanh()
    return nn.Sequential(nn.Linear(4, 5), act, nn.Linear(5, 5), act, nn.Linear(5, CLASSES))


def flattened() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.ReLU(inplace=True), nn.Linear(32, CLASSES))


def unflattened() -> nn.Module:
    parts = [nn.Linear(4, 8), nn.Unflatten(1, (2, 2, 2)), nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(8, CLASSES)]
    return nn.Sequential(*parts)


def pack(x: Tensor) -> PackedSequence:
    return pack_padded_sequence(x.transpose(0, 1), torch.full((len(x),), x.shape[1]))


def skip_in_place(m: Any, x: Tensor) -> Tensor:
    y = m.attention(x, x, x, need_weights=False)[0]
    y += x
    return m.head(y).mean(1)


def without_gradient(m: Any, x: Tensor) -> Tensor:
    with torch.no_grad():
        state = m.cell(x)[1][0]
    return m.head(state)


X, SECOND, TOKENS = normal(6, 4), normal(6, 2, seed=1), normal(6, 3, 4)
MASK = torch.ones(3, 3, dtype=torch.bool).triu(1)
CASES: dict[str, Callable[[], Case]] = ARCHITECTURES | {
    # by the same matrix tokens in and logits out, and a layer that is called twice
    "tied": lambda: wired(
        tied, lambda m, x: m.head(m.twice(m.between(m.twice(m.embed(x))))), integers(CLASSES, 6)
    ),
    # a recurrent layer read by its last state, which is not its first output
    "last_state": lambda: wired(cell, lambda m, x: m.head(m.cell(x)[1][0]), normal(4, 3, 2)),
    "last_state_without_gradient": lambda: wired(cell, without_gradient, normal(4, 3, 2)),
    "one_by_one": lambda: wired(body, lambda m, x: m.body[2](m.body[1](m.body[0](x))), X),
    "stray_call": lambda: wired(body, lambda m, x: m.body(m.body[0](x)), X),
    "shuffled": lambda: wired(body, lambda m, x: m.body[2](m.body[0](m.body[1](x))), X),
    "doubled": lambda: wired(body, lambda m, x: m.body[2](m.body[1](2 * m.body[0](x))), X),
    # arguments by name, and a constant among them
    "masked": lambda: wired(
        attention, lambda m, x: m.head(m.attention(query=x, key=x, value=x, attn_mask=MASK)[0].mean(1)), TOKENS
    ),
    "two_arguments": lambda: wired(
        lambda: {"mix": nn.Bilinear(4, 2, 5), "head": nn.Linear(5, CLASSES)}, lambda m, x, y: m.head(m.mix(x, y)),
        X, SECOND,
    ),
    # a linear layer on (N, T, d) returns a view, which the activation overwrites
    "tokens": lambda: wired(
        lambda: {"a": nn.Linear(4, 5), "r": nn.ReLU(inplace=True), "b": nn.Linear(5, CLASSES)},
        lambda m, x: m.b(m.r(m.a(x))).mean(1), TOKENS,
    ),
    "skip_in_place": lambda: wired(attention, skip_in_place, TOKENS),
    # frozen, so that the rows of its packed sequence have no graph yet
    "packed": lambda: frozen(wired(
        lambda: {"a": nn.LSTM(4, 5), "b": nn.Linear(5, CLASSES)},
        lambda m, x: m.b(m.a(pack(x))[0].data).reshape(3, 6, CLASSES).mean(0), TOKENS,
    ), "a."),
    "flattened": lambda: classifier(flattened, normal(6, 1, 6, 6), 6),
    "frozen_flattened": lambda: frozen(CASES["flattened"](), "0."),
    "unflattened": lambda: classifier(unflattened, X, 6),
    "frozen_stem": lambda: frozen(ARCHITECTURES["mlp_relu"](), "0."),
    "shared_activation": lambda: classifier(shared_activation, X, 6),
    "hooked": lambda: hooked(),
    "checkpointed": lambda: checkpointed(False),
    "strided_conv": lambda: convolution(stride=2, padding=1),
    "dilated_conv": lambda: convolution(dilation=2, padding=(2, 1)),
    "grouped_conv": lambda: convolution(groups=2, padding="same", padding_mode="circular"),
}  # fmt: skip


def frozen(case: Case, *names: str) -> Case:
    for name, p in case.model.named_parameters():
        if name.startswith(names):
            p.requires_grad_(False)
    return case


def hooked() -> Case:
    """Hooks of the user change what the first layer receives and gives."""
    case = ARCHITECTURES["mlp_tanh"]()
    case.model[0].register_forward_pre_hook(lambda _m, args: (2 * args[0],))
    case.model[0].register_forward_hook(lambda _m, _args, output: 3 * output)
    return case


def convolution(**options: Any) -> Case:
    def build() -> nn.Module:
        conv = nn.Conv2d(2, 4, **({"kernel_size": 3} | options))
        entries = conv(torch.zeros(1, 2, 5, 6)).numel()
        return nn.Sequential(conv, nn.Tanh(), nn.Flatten(), nn.Linear(entries, CLASSES))

    return classifier(build, normal(3, 2, 5, 6), 3)


class Checkpointed(nn.Module):
    def __init__(self, reentrant: bool | None) -> None:
        super().__init__()
        self.inside = nn.Sequential(nn.Linear(5, 5), nn.BatchNorm1d(5), nn.Tanh(), nn.Linear(5, 5), nn.Tanh())
        self.reentrant = reentrant

    def forward(self, x: Tensor) -> Tensor:
        return self.inside(x) if self.reentrant is None else checkpoint(self.inside, x, use_reentrant=self.reentrant)


def checkpointed(reentrant: bool | None) -> Case:
    """None: without a checkpoint."""
    build = lambda: nn.Sequential(nn.Linear(4, 5), Checkpointed(reentrant), nn.Linear(5, CLASSES))  # noqa: E731
    return classifier(build, X, 6, "running")


# blocks


@dataclass(frozen=True)
class ByHand:
    """A block, and its model in three parts; `after` also gets z, which a skip connection needs.

    before: by default the block comes first. params: what the names of its trainable parameters begin with.
    """

    case: str
    name: str
    block: Callable[[Any, Any], Tensor]
    after: Callable[[Any, Tensor, Any], Tensor]
    params: str | tuple[str, ...] = ()
    before: Callable[[Any, Any], Any] = lambda _m, x: x


def piece(case: str, name: str, start: int, stop: int, *, trainable: bool = True) -> ByHand:
    """Children start to stop of a Sequential."""

    def run(model: Any, x: Any, begin: int, end: int) -> Any:
        for child in list(model)[begin:end]:
            x = child(x)
        return x

    return ByHand(
        case,
        name,
        lambda m, z: run(m, z, start, stop),
        lambda m, out, _z: run(m, out, stop, len(m)),
        tuple(f"{i}." for i in range(start, stop)) if trainable else (),
        lambda m, x: run(m, x, 0, start),
    )


def after_self_attention(model: Any, out: Tensor, z: Tensor) -> Tensor:
    """nn.TransformerEncoderLayer after its self-attention."""
    layer = model[0]
    x = layer.norm1(z + out)
    x = layer.norm2(x + layer.linear2(F.relu(layer.linear1(x))))
    return model[2](model[1](x))


def self_attention(layer: Any, z: Tensor, **options: Any) -> Tensor:
    return layer(z, z, z, **options)[0]


VIEWS: dict[str, ByHand] = {
    "linear_on_tokens": ByHand(
        "tokens", "a", lambda m, z: m.a(z), lambda m, out, _z: m.b(F.relu(out)).mean(1), "a."
    ),
    "attention_and_skip": ByHand(
        "skip_in_place", "attention", lambda m, z: self_attention(m.attention, z),
        lambda m, out, z: m.head(out + z).mean(1), "attention.",
    ),
    "flatten": piece("flattened", "1", 1, 2, trainable=False),
    "frozen_before_flatten": piece("frozen_flattened", "1", 1, 2, trainable=False),
    "range_to_a_view": piece("unflattened", "[0:2]", 0, 2),
    "packed_sequence": ByHand(
        "packed", "a", lambda m, z: m.a(PackedSequence(z, torch.full((3,), 6)))[0].data,
        lambda m, out, _z: m.b(out).reshape(3, 6, CLASSES).mean(0), before=lambda _m, x: pack(x).data,
    ),
}  # fmt: skip
"""Blocks whose output is a view, or has no graph yet, and is overwritten in place after them."""
BLOCKS: dict[str, ByHand] = VIEWS | {
    "linear": piece("mlp_tanh", "0", 0, 1),
    "activation": piece("mlp_tanh", "1", 1, 2, trainable=False),
    "range": piece("mlp_tanh", "[0:2]", 0, 2),
    "open_range": piece("mlp_relu", "[:-2]", 0, 3),
    "linear_before_inplace_relu": piece("mlp_relu", "0", 0, 1),
    "inplace_relu": piece("mlp_relu", "1", 1, 2, trainable=False),
    "range_that_begins_with_inplace_relu": piece("mlp_relu", "[1:4]", 1, 4),
    "frozen_stem": piece("frozen_stem", "0", 0, 1, trainable=False),
    "range_of_a_frozen_stem": piece("frozen_stem", "[0:2]", 0, 2, trainable=False),
    "shared_activation_by_its_turn": piece("shared_activation", "[3:4]", 3, 4, trainable=False),
    "layer_with_hooks": piece("hooked", "0", 0, 1),
    "strided_padded_conv": piece("strided_conv", "0", 0, 1),
    "dilated_conv_and_tanh": piece("dilated_conv", "[0:2]", 0, 2),
    "grouped_conv_and_tanh": piece("grouped_conv", "[:2]", 0, 2),
    "conv_before_batchnorm": piece("cnn_batch", "0", 0, 1),
    "batchnorm_on_the_batch": piece("cnn_batch", "1", 1, 2),
    "batchnorm_on_running_statistics": piece("cnn_running", "1", 1, 2),
    "conv_batchnorm_inplace_relu": piece("cnn_batch", "[0:3]", 0, 3),
    "residual_batch": piece("resnet_batch", "0", 0, 1),
    "residual_running": piece("resnet_running", "0", 0, 1),
    "attention_layer": ByHand(
        "transformer", "blocks.0", lambda m, z: m.blocks[0](z), lambda m, out, _z: m.head(m.blocks[1](out)),
        "blocks.0.", lambda m, x: m.embed(x),
    ),
    "range_of_a_part": ByHand(
        "transformer", "blocks[1:2]", lambda m, z: m.blocks[1](z), lambda m, out, _z: m.head(out), "blocks.1.",
        lambda m, x: m.blocks[0](m.embed(x)),
    ),
    "multihead_attention": ByHand(
        "multihead_attention", "attention", lambda m, z: self_attention(m.attention, z),
        lambda m, out, _z: m.head(out.mean(1)), "attention.",
    ),
    "arguments_by_name": ByHand(
        "masked", "attention", lambda m, z: self_attention(m.attention, z, attn_mask=MASK),
        lambda m, out, _z: m.head(out.mean(1)), "attention.",
    ),
    "two_arguments": ByHand(
        "two_arguments", "mix", lambda m, z: m.mix(z, SECOND), lambda m, out, _z: m.head(out), "mix.",
        lambda _m, x: x[0],
    ),
    "encoder_layer": piece("encoder_layer", "0", 0, 1),
    "attention_inside_an_encoder_layer": ByHand(
        "encoder_layer", "0.self_attn", lambda m, z: self_attention(m[0].self_attn, z), after_self_attention,
        "0.self_attn.",
    ),
    "lstm": ByHand("lstm", "cell", lambda m, z: m.cell(z)[0], lambda m, out, _z: m.head(out[:, -1]), "cell."),
    "embedding": ByHand(
        "transformer", "embed", lambda m, z: m.embed(z), lambda m, out, _z: m.head(m.blocks(out)), "embed."
    ),
    "inside_a_checkpoint": ByHand(
        "checkpointed", "1.inside.3", lambda m, z: m[1].inside[3](z), lambda m, out, _z: m[2](torch.tanh(out)),
        "1.inside.3.", lambda m, x: m[1].inside[:3](m[0](x)),
    ),
    "children_called_one_by_one": ByHand(
        "one_by_one", "body[:2]", lambda m, z: torch.tanh(m.body[0](z)), lambda m, out, _z: m.body[2](out), "body.0."
    ),
}  # fmt: skip
WITHOUT_INPUT = ("embedding",)
WITHOUT_PARAMETERS = [name for name, hand in BLOCKS.items() if not hand.params]


class Part(nn.Module):
    def __init__(self, model: nn.Module, function: Callable[[Any, Any], Tensor]) -> None:
        super().__init__()
        self.model, self.function = model, function

    def forward(self, z: Any) -> Tensor:
        return self.function(self.model, z)


@dataclass(frozen=True)
class Reference:
    """Everything of one block. function: z_b of its parameters (as a vector) and of z."""

    function: Callable[[Tensor, Any], Tensor]
    theta: Tensor
    z: Any
    output: Tensor
    target: Tensor

    def loss(self, theta: Tensor, z: Any) -> Tensor:
        return (self.target - self.function(theta, z)).square().sum() / 2

    def matrix(self, part: str, kind: str) -> Tensor:
        """H_z or H_W, exact or Gauss-Newton, dense."""
        at, arguments = (self.z, lambda v: (self.theta, v)) if part == "z" else (self.theta, lambda v: (v, self.z))
        if kind == "exact":
            return hessian(lambda v: self.loss(*arguments(v)), at).reshape(at.numel(), at.numel())
        return gauss_newton_by_hand(lambda v: self.function(*arguments(v)), at)


@functools.cache
def reference(name: str) -> Reference:
    hand = BLOCKS[name]
    case = CASES[hand.case]()
    model = in_state(case.model, case.batchnorm)
    z = hand.before(model, case.batch[0]).detach()
    part = Part(model, hand.block)
    named = {k: p for k, p in part.named_parameters() if k.removeprefix("model.").startswith(hand.params or "-")}
    theta = torch.cat([torch.zeros(0, dtype=torch.float64), *(p.detach().flatten() for p in named.values())])

    def function(vector: Tensor, z: Any) -> Tensor:
        pieces = torch.split(vector, [p.numel() for p in named.values()])
        values = {k: piece.view_as(p) for (k, p), piece in zip(named.items(), pieces, strict=True)}
        with sdpa_kernel(SDPBackend.MATH):
            return functional_call(part, values, (z,))

    output = function(theta, z).detach().requires_grad_()
    loss = case.loss(hand.after(model, output, z), case.batch[1])
    (gradient,) = torch.autograd.grad(loss, output)
    return Reference(function, theta, z, output.detach(), (output - gradient).detach())


@functools.cache
def measured(name: str) -> LocalHessian:
    return local_hessian(CASES[BLOCKS[name].case]().problem(), BLOCKS[name].name)


def gauss_newton_by_hand(block: Callable[[Tensor], Tensor], z: Tensor) -> Tensor:
    rows = jacobian(block, z).reshape(-1, z.numel())
    return rows.T @ rows
