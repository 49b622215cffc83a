"""Proposition 1 of zhang2018: one gradient step per block is back-propagation, for every kind of network."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from block_cases import CASES, X, frozen, wired
from references import assert_same, in_state
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from zoo import ARCHITECTURES, CLASSES, Case, classifier, integers, split

import wellcond as wc
from wellcond.measurements.blocks.back_matching import back_matching


def penalized(case: Case) -> Case:
    """A loss that sees the parameters of all blocks by itself."""
    model = case.model

    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(outputs, targets) + 0.01 * sum(p.square().sum() for p in model.parameters())

    return replace(case, loss=loss)


def linears(**sizes: tuple[int, int]) -> Callable[[], dict[str, nn.Module]]:
    return lambda: {name: nn.Linear(*size) for name, size in sizes.items()}


def two_outputs(m: Any, x: Tensor) -> tuple[Tensor, Tensor]:
    """The loss sees both."""
    z = torch.tanh(m.stem(x))
    return m.left(z), m.right(z)


def split_node(m: Any, x: Tensor) -> Tensor:
    """One operation with two outputs: a module passes the first on, and the second goes around it."""
    first, second = torch.split(m.stem(x), 3, dim=1)
    return m.head(torch.cat([m.pick(first), second.exp()], 1))


def skipping(m: Any, x: Tensor) -> Tensor:
    """A skip connection from the input of `first` to the head, written into the forward pass."""
    z = m.stem(x)
    return m.head(z + m.second(torch.tanh(m.first(z))))


def token_and_position(m: Any, x: Tensor) -> Tensor:
    """Two embeddings of integers, whose common past no graph shows."""
    return m.head(torch.tanh(m.mix(m.token(x) + m.position(torch.arange(x.shape[1])))).mean(1))


NETWORKS: dict[str, Callable[[], Case]] = ARCHITECTURES | {
    **{name: CASES[name] for name in ("tied", "last_state", "checkpointed", "tokens", "shared_activation")},
    "frozen_first": lambda: frozen(ARCHITECTURES["cnn_batch"](), "0.", "1."),
    "frozen_middle": lambda: frozen(ARCHITECTURES["mlp_relu"](), "2."),
    "frozen_bias": lambda: frozen(ARCHITECTURES["mlp_tanh"](), "0.bias"),
    "skipping": lambda: wired(linears(stem=(4, 5), first=(5, 5), second=(5, 5), head=(5, CLASSES)), skipping, X),
    "two_outputs": lambda: replace(
        wired(linears(stem=(4, 5), left=(5, CLASSES), right=(5, 2)), two_outputs, X),
        loss=lambda outputs, y: F.cross_entropy(outputs[0], y) + outputs[1].square().mean(),
    ),
    "split_node": lambda: wired(
        lambda: linears(stem=(4, 6), head=(6, CLASSES))() | {"pick": nn.Identity()}, split_node, X
    ),
    "penalized": lambda: penalized(ARCHITECTURES["mlp_tanh"]()),
    "dropout_off": lambda: classifier(
        lambda: nn.Sequential(nn.Linear(4, 5), nn.Dropout(0.5), nn.Tanh(), nn.Linear(5, CLASSES)), X, 6
    ),
    "one_layer": lambda: classifier(lambda: nn.Linear(4, CLASSES), X, 6),
    "token_and_position": lambda: wired(
        lambda: {
            "token": nn.Embedding(5, 4), "position": nn.Embedding(3, 4), **linears(mix=(4, 4), head=(4, CLASSES))()
        },
        token_and_position, integers(5, 4, 3),
    ),
}  # fmt: skip


BLOCKS = {
    "mlp_tanh": ("0", "1", "2"),
    "mlp_relu": ("0", "1", "2", "3", "4"),
    "cnn_batch": ("0", "1", "2", "3", "4", "5", "6", "7"),
    "resnet_batch": ("0", "1", "2"),
    "transformer": ("embed", "blocks.0", "blocks.1", "head"),
    "encoder_layer": ("0.norm1", "0.norm2", "1", "2"),  # a skip connection ends at each norm
    "multihead_attention": ("attention", "head"),
    "lstm": ("cell", "head"),
    "tied": ("embed", "twice", "between", "twice[1]", "head"),
    "frozen_first": ("0", "1", "2", "3", "4", "5", "6", "7"),
    "frozen_middle": ("0", "1", "2", "3", "4"),
    "skipping": ("stem", "head"),
    "two_outputs": ("stem", ""),
    "last_state": ("",),
    "split_node": ("stem", "head"),
    "token_and_position": ("token", "mix", "head"),
    "checkpointed": ("0", *(f"1.inside.{i}" for i in range(5)), "2"),
    "tokens": ("a", "r", "b", ""),
    "penalized": ("0", "1", "2"),
    "shared_activation": ("0", "1", "2", "1[1]", "4"),
    "dropout_off": ("0", "2", "3"),  # a module that hands its input on ends no block
    "one_layer": ("",),
}
"""Blocks lie between the outputs that nothing passes by."""


@pytest.mark.parametrize("name", NETWORKS)
def test_proposition_1_updates_and_targets_are_gradient_steps(name: str) -> None:
    case = NETWORKS[name]()
    step = back_matching(case.problem(), lr=0.3)
    assert step.blocks == BLOCKS.get(name, step.blocks)
    assert tuple(step.targets) == tuple(step.changes) == step.blocks[:-1]
    assert tuple(step.losses) == tuple(step.parameters) == step.blocks
    # the penalized loss holds the model itself, and not a copy
    model = case.model if name == "penalized" else in_state(case.model, case.batchnorm)
    outputs: dict[str, list[Tensor]] = defaultdict(list)
    for key, module in model.named_modules():
        keep = lambda _m, _args, out, key=key: outputs[key].append(out[0] if isinstance(out, tuple) else out)  # noqa: E731
        module.register_forward_hook(keep)
    x = case.batch[0].clone().requires_grad_(case.batch[0].is_floating_point())
    with sdpa_kernel(SDPBackend.MATH):
        loss = case.loss(model(x), case.batch[1])

    params = {key: p for key, p in model.named_parameters() if p.requires_grad}
    expected = dict(zip(params, torch.autograd.grad(loss, list(params.values()), retain_graph=True), strict=True))
    assert step.updates.keys() == params.keys()
    for key, gradient in expected.items():
        assert (step.updates[key] + 0.3 * gradient).norm() <= 1e-12 * max(1.0, float(gradient.norm()))
    total = torch.cat([u.flatten() for u in step.updates.values()])
    assert_same(total, -0.3 * torch.cat([g.flatten() for g in expected.values()]), 1e-12)
    assert step.losses[step.blocks[-1]] == pytest.approx(float(loss.detach()), rel=1e-12)

    for key, target in step.targets.items():
        module_name, _, turn = key.rstrip("]").partition("[")
        z = outputs[module_name][int(turn or 0)]
        (gradient,) = torch.autograd.grad(loss, z, retain_graph=True)
        assert_same(target, z - gradient, 1e-12)
        assert step.losses[key] == pytest.approx(float(gradient.square().sum() / 2), rel=1e-11)
        assert step.changes[key] == pytest.approx(float(gradient.norm() / z.detach().norm()), rel=1e-11)


def test_blocks_hold_the_parameters_used_in_them() -> None:
    step = back_matching(NETWORKS["tied"]().problem())
    twice = ("twice.weight", "twice.bias")
    assert step.parameters == {
        "embed": ("embed.weight",), "twice": twice, "between": (), "twice[1]": twice,
        "head": ("embed.weight", "head.bias"),
    }  # fmt: skip
    assert back_matching(NETWORKS["token_and_position"]().problem()).parameters["mix"][0] == "position.weight"


# chosen blocks


def test_chosen_blocks_are_coarser_and_the_updates_stay_a_gradient_step() -> None:
    problem = ARCHITECTURES["cnn_batch"]().problem()
    every = back_matching(problem, lr=0.2)
    step = back_matching(problem, lr=0.2, layers=["3", "1"])
    assert step.blocks == ("1", "3", "")
    assert step.parameters["1"] == ("0.weight", "0.bias", "1.weight", "1.bias")
    assert step.parameters["3"] == ()
    assert step.parameters[""] == ("4.weight", "4.bias", "7.weight", "7.bias")
    for name, update in every.updates.items():
        assert torch.allclose(step.updates[name], update, rtol=1e-11, atol=1e-14)
    assert_same(step.targets["3"], every.targets["3"], 1e-12)
    assert back_matching(problem, layers=["3", "7"]).blocks == ("3", "7")
    assert back_matching(problem, layers=[]).blocks == ("",)
    assert back_matching(problem, layers="3").blocks == ("3", "")
    assert back_matching(NETWORKS["tokens"]().problem(), layers=["a"]).blocks == ("a", "")


@pytest.mark.parametrize(
    ("network", "names", "message"),
    [
        ("skipping", ["first"], "'first' cannot end a block: something computed before"),
        ("resnet_batch", ["0.conv1"], r"'0\.conv1' cannot end a block"),
        ("resnet_batch", ["0.conv3"], r"no layer or parameter '0\.conv3'"),
        ("split_node", ["pick"], "'pick' cannot end a block"),
        ("last_state", ["cell"], "'cell' cannot end a block"),
        ("shared_activation", ["1"], r"'1' cannot end a block: its output had a gradient in 2 calls"),
        ("token_and_position", ["token", "position"], "'token' and 'position' do not follow each other"),
    ],
)
def test_modules_that_are_passed_by_cannot_be_chosen(network: str, names: list[str], message: str) -> None:
    with pytest.raises(wc.WellcondError, match=message):
        back_matching(NETWORKS[network]().problem(), layers=names)


# the result


def test_rows_and_text_name_every_block() -> None:
    step = back_matching(ARCHITECTURES["mlp_tanh"]().problem(), lr=0.5)
    assert {row.step for row in step.rows(2)} == {2}
    rows = {(row.layer, row.quantity): row.value for row in step.rows()}
    assert rows["0", "back_matching_loss"] == step.losses["0"]
    assert rows["2", "back_matching_loss"] == step.losses["2"]
    assert rows["1", "target_change"] == step.changes["1"]
    assert ("2", "target_change") not in rows
    text = str(step)
    assert [line.split()[0] for line in text.splitlines()] == ["block", "0", "1", "2", "step", "cost:"]
    assert "step 0.5 on the parameters" in text
    assert str(step.cost) in text
    assert (step.cost.forwards, step.cost.backwards, step.cost.u) == (1, 1, 1)


@pytest.mark.parametrize("lr", [float("nan"), float("inf")])
def test_a_step_that_is_not_finite_is_refused(lr: float) -> None:
    with pytest.raises(ValueError, match=f"lr is {lr}"):
        back_matching(ARCHITECTURES["mlp_tanh"]().problem(), lr=lr)


def test_the_first_batch_is_taken() -> None:
    case = ARCHITECTURES["mlp_tanh"]()
    parts = split(case.batch, [4, 2])
    result, first = (back_matching(case.problem(batches=batches)).updates for batches in (parts, parts[:1]))
    assert_same(result["0.weight"], first["0.weight"], 1e-15)


def test_it_costs_one_forward_and_one_backward_pass() -> None:
    """Every operation of the network is differentiated once."""
    case = ARCHITECTURES["cnn_batch"]()
    seen: Counter[str] = Counter()

    class Counted(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            seen["forward"] += 1
            return x.clone()

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            seen["backward"] += 1
            return g

    class Meter(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return Counted.apply(x)

    model = nn.Sequential(*(part for child in case.model for part in (Meter(), child)))
    back_matching(wc.Problem(model, case.loss, [case.batch]))
    assert seen == {"forward": 8, "backward": 8 - 1}  # nothing asks for the gradient of the data
