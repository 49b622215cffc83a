"""Finding the chain of layers in a forward pass: what is one, what is not, and that nothing is changed by looking."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm
from torch.utils.checkpoint import checkpoint
from unchanged import assert_unchanged, snapshot
from zoo import Mean, Recurrent

from wellcond.errors import Unsupported
from wellcond.optim.scale_amended import ScaleAmendedSGD
from wellcond_papers.models import mlp, resnet


class Net(nn.Module):
    """A stem, a block and a head, put together as asked for; other layers may be given by name."""

    def __init__(
        self,
        forward: Callable[[Any, Tensor], Any] = lambda net, x: net.head(net.block(net.start(x))),
        block: Callable[[Any, Tensor], Tensor] | None = None,
        **layers: nn.Module,
    ) -> None:
        super().__init__()
        self.how, self.how_block = forward, block or plain
        self.head = nn.Linear(6, 3)  # registered against the order of the calls
        self.inner, self.inner_norm = nn.Linear(6, 6), nn.BatchNorm1d(6)
        self.stem, self.stem_norm = nn.Linear(4, 6), nn.BatchNorm1d(6)
        for name, layer in layers.items():
            setattr(self, name, layer)

    def start(self, x: Tensor) -> Tensor:
        return self.stem_norm(self.stem(x)).relu_()

    def block(self, x: Tensor) -> Tensor:
        return self.how_block(self, x)

    def forward(self, x: Tensor) -> Any:
        return self.how(self, x)


X = torch.randn(5, 4, generator=torch.Generator().manual_seed(0))
EXPECTED = {"stem": 3 / 6, "inner": 3 / 6, "head": 1.0, "stem_norm": 3 / 6, "inner_norm": 3 / 6}
"""m of a chain 4 → 6 → 6 → 3."""


def backward_factors(optimizer: ScaleAmendedSGD) -> dict[str, float | None]:
    return {name: scale.m for name, scale in optimizer.factors.items()}


def first_pass(model: nn.Module, how: str) -> ScaleAmendedSGD:
    optimizer = ScaleAmendedSGD(model, inputs=X if how == "traced" else None)
    model(X)
    return optimizer


def hooks(model: nn.Module) -> int:
    return sum(len(module._forward_hooks) for module in model.modules())


# what is no chain


def residual(net: Any, x: Tensor) -> Tensor:
    x = net.start(x)
    return net.head(x + net.block(x))


def residual_at_the_end(net: Any, x: Tensor) -> Tensor:
    x = net.block(net.start(x))
    return net.head(x) + x[:, :3]


def concatenation(net: Any, x: Tensor) -> Tensor:
    x = net.start(x)
    return net.head(torch.cat([x, net.block(x)], 1))


def two_heads(net: Any, x: Tensor) -> Any:
    x = net.start(x)
    return {"logits": net.head(x), "features": net.block(x)}


def peeking(net: Any, x: Tensor) -> Tensor:
    net.inner.memory = x = net.stem(x)
    return net.head(net.block(net.stem_norm(x)))


class Adapted(nn.Linear):
    """A linear layer that contains another one."""

    def __init__(self) -> None:
        super().__init__(6, 6)
        self.adapter = nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + self.adapter(x)


class Peeking(nn.Linear):
    """A layer that uses something other than its input."""

    memory: Tensor

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + self.memory.mean()


TIED, OTHER = nn.Linear(6, 6), nn.Linear(6, 6)
TIED.weight = OTHER.weight
REFUSALS: dict[str, tuple[dict[str, Any], str]] = {
    "residual": (
        {"forward": residual}, "the paths from 'inner' and 'stem' meet in an operation 'add' before 'head'",
    ),
    "residual_at_the_end": (
        {"forward": residual_at_the_end}, "from 'head' and 'inner' meet in an operation 'add' before the output",
    ),
    "concatenation": (
        {"forward": concatenation, "head": nn.Linear(12, 3)},
        "the paths from 'inner' and 'stem' meet in an operation 'cat' before 'head'",
    ),
    "two_heads": ({"forward": two_heads}, "the paths from 'head' and 'inner' lead to different outputs"),
    "called_twice": ({"block": lambda net, x: net.inner(net.inner(x))}, "'inner' is called more than once"),
    "shared_norm": ({"block": lambda net, x: net.stem_norm(net.inner(x))}, "'stem_norm' is called more than once"),
    "tied": (
        {"block": lambda net, x: net.again(net.inner(x)), "again": TIED, "inner": OTHER},
        "'inner' and 'again' share a parameter",
    ),
    "nested": ({"inner": Adapted()}, "'inner.adapter' works inside another layer"),
    "peeking": ({"forward": peeking, "inner": Peeking(6, 6)}, "'inner' uses more of the network than its own input"),
    "no_layer": (
        {"forward": lambda net, x: net.stem_norm.bias * x.sum()},
        "no linear or convolutional layer leads to the output",
    ),
    "weight_norm": (
        {"inner": weight_norm(nn.Linear(6, 6))},
        "no formula for the scale of original0, original1 in 'inner.parametrizations",
    ),
}  # fmt: skip


@pytest.mark.parametrize("how", ["traced", "watched"])
@pytest.mark.parametrize("name", REFUSALS)
def test_what_is_no_chain_is_refused_by_the_place(name: str, how: str) -> None:
    changes, place = REFUSALS[name]
    model = Net(**changes)
    with pytest.raises(Unsupported) as refusal:
        first_pass(model, how)
    assert place in str(refusal.value)
    assert "pass factors={layer: backward factor m, …}" in str(refusal.value)
    assert hooks(model) == 0


@pytest.mark.parametrize(
    ("model", "inputs", "place"),
    [
        (
            resnet(14), torch.zeros(1, 3, 8, 8),
            "the paths from 'conv' and 'stage1.block1.conv2' meet in an operation 'add' before 'stage1.block2.conv1'",
        ),
        (
            nn.Sequential(nn.Embedding(5, 4), Mean(1), nn.Linear(4, 3)), torch.zeros(1, 3, dtype=torch.long),
            r"scale of weight in '0' \(Embedding\)",
        ),
        (Recurrent(), torch.zeros(1, 3, 2), r"weight_hh_l0, weight_ih_l0 in 'cell' \(LSTM\)"),
    ],
    ids=["first_join_of_a_deep_network", "embedding", "recurrent"],
)  # fmt: skip
def test_the_first_join_and_layers_without_a_formula_are_named(model: nn.Module, inputs: Tensor, place: str) -> None:
    with pytest.raises(Unsupported, match=place):
        ScaleAmendedSGD(model, inputs=inputs)


# what is one although it branches


def swish(net: Any, x: Tensor) -> Tensor:
    x = net.inner_norm(net.inner(x))
    return x * torch.sigmoid(x) + x.relu()


def hand_written_norm(net: Any, x: Tensor) -> Tensor:
    x = net.inner(x)
    return (net.inner_norm(x) - x.mean(0)) / x.std(0)


def data_beside(net: Any, x: Tensor) -> Tensor:
    """The data come in again: nothing that is trained is passed by."""
    return net.inner_norm(net.inner(x)) + X.sum(1, keepdim=True)


def checkpointed(net: Any, x: Tensor) -> Tensor:
    return checkpoint(lambda x: net.inner_norm(net.inner(x)).relu(), x, use_reentrant=False)


def in_place_on_tokens(net: Any, x: Tensor) -> Tensor:
    """The output of a linear layer on tokens is a view; in-place changes of it rewrite its history."""
    x = net.inner(x.unsqueeze(1)).relu_()
    x += 1
    return net.inner_norm(x.squeeze(1))


def plain(net: Any, x: Tensor) -> Tensor:
    return net.inner_norm(net.inner(x)).relu_()


@pytest.mark.parametrize("how", ["traced", "watched"])
@pytest.mark.parametrize("block", [plain, swish, hand_written_norm, data_beside, checkpointed, in_place_on_tokens])
def test_layers_are_a_chain_in_call_order_even_with_branches_between(block: Any, how: str) -> None:
    """And the hooks that watched the pass come off."""
    model = Net(block=block)
    optimizer = first_pass(model, how)
    assert backward_factors(optimizer) == EXPECTED
    assert optimizer.factors["stem"].m_z == 6 / 4
    assert hooks(model) == 0


# watching


def test_passes_without_gradients_of_copies_or_that_fail_do_not_count() -> None:
    model = Net()
    optimizer = ScaleAmendedSGD(model)
    with torch.no_grad():
        model.eval()(X)
    copy.deepcopy(model.train())(X)
    model.head.in_features, model.head.weight = 5, nn.Parameter(torch.zeros(3, 5))
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        model(X)
    assert set(backward_factors(optimizer).values()) == {None}
    model.head.weight = nn.Parameter(torch.ones(3, 6))
    model(X)
    assert backward_factors(optimizer) == EXPECTED


def test_a_step_before_any_forward_pass_says_what_to_do() -> None:
    model = Net()
    optimizer = ScaleAmendedSGD(model)
    for p in model.parameters():
        p.grad = torch.ones_like(p)
    with pytest.raises(Unsupported, match=r"no forward pass with gradients has been seen.*inputs=batch"):
        optimizer.step()


def test_a_layer_frozen_during_the_watched_pass_is_named_when_unfrozen() -> None:
    model = Net()
    model.stem.requires_grad_(False)
    model.stem_norm.requires_grad_(False)
    optimizer = ScaleAmendedSGD(model)
    model(X).sum().backward()
    optimizer.step()
    assert backward_factors(optimizer) == EXPECTED | {"stem": None, "stem_norm": None}
    model.requires_grad_(True)
    model(X).sum().backward()
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(Unsupported, match="'stem' has a gradient, but"):
        optimizer.step()
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_tracing_sees_frozen_and_unused_layers() -> None:
    model = Net(unused=nn.Linear(2, 2)).requires_grad_(False)
    assert backward_factors(ScaleAmendedSGD(model, inputs=X)) == EXPECTED | {"unused": None}


# wrappers


WRAPPERS: dict[str, Callable[[nn.Module], nn.Module]] = {
    "compiled": lambda net: torch.compile(net, backend="aot_eager", fullgraph=True),
    "ddp": nn.parallel.DistributedDataParallel,
    "ddp_of_compiled": lambda net: nn.parallel.DistributedDataParallel(torch.compile(net, backend="aot_eager")),
}


@pytest.mark.slow
@pytest.mark.parametrize("how", ["traced", "watched"])
@pytest.mark.parametrize("kind", WRAPPERS)
def test_wrapped_models_are_seen_through_to_the_module_inside(kind: str, how: str, process_group: None) -> None:
    model = WRAPPERS[kind](Net())
    optimizer = ScaleAmendedSGD(model, inputs=X if how == "traced" else None)
    loss = F.cross_entropy(model(X), torch.zeros(5, dtype=torch.long))
    loss.backward()
    optimizer.step()
    assert backward_factors(optimizer) == EXPECTED
    assert hooks(model) == 0
    assert F.cross_entropy(model(X), torch.zeros(5, dtype=torch.long)) < loss


@pytest.mark.slow
@pytest.mark.parametrize("what", ["in_place", "a_part", "later"])
def test_compiled_layers_that_cannot_be_watched_are_traced(what: str) -> None:
    model = Net()
    if what == "in_place":
        model.compile(backend="aot_eager", fullgraph=True)
    elif what == "a_part":
        model.inner = torch.compile(nn.Sequential(nn.Linear(6, 6), nn.Tanh()), backend="aot_eager", fullgraph=True)
    watching = ScaleAmendedSGD(model)
    assert hooks(model) == 0 or what != "in_place"
    called = torch.compile(model, backend="aot_eager", fullgraph=True) if what == "later" else model
    called(X).sum().backward()
    with pytest.raises(Unsupported, match=r"compiled.*inputs=batch"):
        watching.step()
    traced = ScaleAmendedSGD(model, inputs=X)
    assert all(m is not None for m in backward_factors(traced).values())
    called(X).sum().backward()
    traced.step()


# nothing changed


def random_forward(net: Any, x: Tensor) -> Tensor:
    random.random(), np.random.rand()
    net.calls += 1
    return net.head(net.block(net.start(net.dropout(x))))


def test_tracing_changes_nothing_also_when_the_model_fails() -> None:
    model = Net(random_forward, dropout=nn.Dropout(0.5))
    model.register_buffer("calls", torch.zeros(()))
    model.stem_norm.eval()
    model.inner.weight.requires_grad_(False)
    model(X).sum().backward()
    before = snapshot(model, X)
    ScaleAmendedSGD(model, inputs=X)
    assert_unchanged(before, snapshot(model, X))
    with pytest.raises(Unsupported, match=r"layer 'stem' \(Linear\): .*shapes cannot be multiplied"):
        ScaleAmendedSGD(model, inputs=torch.zeros(2, 5))
    assert_unchanged(before, snapshot(model, X))


@pytest.mark.parametrize("inputs", [X, (X,), [X], {"x": X}])
def test_inputs_are_a_tensor_a_tuple_or_a_dict(inputs: Any) -> None:
    assert backward_factors(ScaleAmendedSGD(Net(), inputs=inputs)) == EXPECTED


def test_a_model_that_writes_to_its_inputs_writes_to_copies() -> None:
    model, x = nn.Sequential(nn.ReLU(inplace=True), Net()), X.clone()
    ScaleAmendedSGD(model, inputs=x)
    assert torch.equal(x, X)


def test_parameters_instead_of_the_model_are_refused() -> None:
    with pytest.raises(TypeError, match="takes the model itself, not generator"):
        ScaleAmendedSGD(mlp([4, 3]).parameters())
