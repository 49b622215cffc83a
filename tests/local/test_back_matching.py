"""Proposition 1 of zhang2018: one gradient step a block is back-propagation, for every kind of network."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from references import assert_same, in_state
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import checkpoint
from zoo import ARCHITECTURES, CLASSES, Case, classifier, integers, normal, seeded, split

import wellcond as wc
from wellcond.local.back_matching import back_matching
from wellcond.local.local_hessian import local_hessian


class Tied(nn.Module):
    """Tokens in and logits out by the same matrix, and a layer that is called twice."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(CLASSES, 4)
        self.twice = nn.Linear(4, 4)
        self.between = nn.Tanh()
        self.head = nn.Linear(4, CLASSES)
        self.head.weight = self.embed.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.twice(self.between(self.twice(self.embed(x)))))


class Skipping(nn.Module):
    """A skip connection from the input of `first` to the head, written into the forward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.first, self.second = nn.Linear(4, 5), nn.Linear(5, 5), nn.Linear(5, 5)
        self.head = nn.Linear(5, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        z = self.stem(x)
        return self.head(z + self.second(torch.tanh(self.first(z))))


class Outputs(nn.Module):
    """Two outputs, both of which the loss sees."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.left, self.right = nn.Linear(4, 5), nn.Linear(5, CLASSES), nn.Linear(5, 2)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        z = torch.tanh(self.stem(x))
        return self.left(z), self.right(z)


class LastState(nn.Module):
    """A GRU read by its last state, which is not its first output."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.head = nn.GRU(2, 3, batch_first=True), nn.Linear(3, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.cell(x)[1][0])


class SplitNode(nn.Module):
    """One operation with two outputs: a module gives the first, and the second goes round it."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.pick, self.head = nn.Linear(4, 6), nn.Identity(), nn.Linear(6, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        first, second = torch.split(self.stem(x), 3, dim=1)
        return self.head(torch.cat([self.pick(first), second.exp()], 1))


class TokenAndPosition(nn.Module):
    """Two embeddings of integers, whose common past no graph shows."""

    def __init__(self) -> None:
        super().__init__()
        self.token, self.position = nn.Embedding(5, 4), nn.Embedding(3, 4)
        self.mix, self.head = nn.Linear(4, 4), nn.Linear(4, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        z = self.token(x) + self.position(torch.arange(x.shape[1]))
        return self.head(torch.tanh(self.mix(z)).mean(1))


class Checkpointed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.block = nn.Sequential(nn.Linear(4, 5), nn.Tanh())
        self.head = nn.Linear(5, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(checkpoint(self.block, x, use_reentrant=False))


def frozen(case: Case, *names: str) -> Case:
    for name, p in case.model.named_parameters():
        if name.startswith(names):
            p.requires_grad_(False)
    return case


def two_losses(outputs: tuple[Tensor, Tensor], targets: Tensor) -> Tensor:
    return F.cross_entropy(outputs[0], targets) + outputs[1].square().mean()


def penalised(case: Case) -> Case:
    """A loss that sees the parameters of all blocks by itself."""
    model = case.model

    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(outputs, targets) + 0.01 * sum(p.square().sum() for p in model.parameters())

    return Case(model, loss, case.batch)


def shared_activation() -> nn.Module:
    act = nn.Tanh()
    return nn.Sequential(nn.Linear(4, 5), act, nn.Linear(5, 5), act, nn.Linear(5, CLASSES))


NETWORKS: dict[str, Callable[[], Case]] = ARCHITECTURES | {
    "tied": lambda: classifier(Tied, integers(CLASSES, 6), 6),
    "frozen_first": lambda: frozen(ARCHITECTURES["cnn_batch"](), "0.", "1."),
    "frozen_middle": lambda: frozen(ARCHITECTURES["mlp_relu"](), "2."),
    "frozen_bias": lambda: frozen(ARCHITECTURES["mlp_tanh"](), "0.bias"),
    "skipping": lambda: classifier(Skipping, normal(6, 4), 6),
    "two_outputs": lambda: Case(seeded(Outputs), two_losses, (normal(6, 4), integers(CLASSES, 6))),
    "last_state": lambda: classifier(LastState, normal(4, 3, 2), 4),
    "split_node": lambda: classifier(SplitNode, normal(6, 4), 6),
    "checkpointed": lambda: classifier(Checkpointed, normal(6, 4), 6),
    "penalised": lambda: penalised(ARCHITECTURES["mlp_tanh"]()),
    "shared_activation": lambda: classifier(shared_activation, normal(6, 4), 6),
    "dropout_off": lambda: classifier(
        lambda: nn.Sequential(nn.Linear(4, 5), nn.Dropout(0.5), nn.Tanh(), nn.Linear(5, CLASSES)), normal(6, 4), 6
    ),
    "one_layer": lambda: classifier(lambda: nn.Linear(4, CLASSES), normal(6, 4), 6),
    "token_and_position": lambda: classifier(TokenAndPosition, integers(5, 4, 3), 4),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_proposition_1_the_updates_are_a_gradient_step(name: str) -> None:
    case = NETWORKS[name]()
    found = back_matching(case.problem(), lr=0.3)
    # the penalised loss holds the model itself, and not a copy
    model = case.model if name == "penalised" else in_state(case.model, case.batchnorm)
    with sdpa_kernel(SDPBackend.MATH):
        loss = case.loss(model(case.batch[0]), case.batch[1])
    params = {key: p for key, p in model.named_parameters() if p.requires_grad}
    expected = dict(zip(params, torch.autograd.grad(loss, list(params.values())), strict=True))
    assert found.updates.keys() == params.keys()
    for key, gradient in expected.items():
        assert (found.updates[key] + 0.3 * gradient).norm() <= 1e-12 * max(1.0, float(gradient.norm()))
    total = torch.cat([u.flatten() for u in found.updates.values()])
    assert_same(total, -0.3 * torch.cat([g.flatten() for g in expected.values()]), 1e-12)
    assert found.losses[found.blocks[-1]] == pytest.approx(float(loss.detach()), rel=1e-12)


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
    "checkpointed": ("block.0", "block.1", "head"),
    "penalised": ("0", "1", "2"),
    "shared_activation": ("0", "1", "2", "1[1]", "4"),
    "dropout_off": ("0", "2", "3"),  # a module that hands its input on ends no block
    "one_layer": ("",),
}


@pytest.mark.parametrize("name", BLOCKS)
def test_blocks_lie_between_the_outputs_that_nothing_passes_by(name: str) -> None:
    found = back_matching(NETWORKS[name]().problem())
    assert found.blocks == BLOCKS[name]
    assert tuple(found.targets) == BLOCKS[name][:-1]
    assert tuple(found.losses) == tuple(found.parameters) == BLOCKS[name]


def test_blocks_hold_the_parameters_used_in_them() -> None:
    found = back_matching(NETWORKS["tied"]().problem())
    twice = ("twice.weight", "twice.bias")
    assert found.parameters == {
        "embed": ("embed.weight",), "twice": twice, "between": (), "twice[1]": twice,
        "head": ("embed.weight", "head.bias"),
    }  # fmt: skip
    assert back_matching(NETWORKS["token_and_position"]().problem()).parameters["mix"][0] == "position.weight"


def test_a_tied_parameter_gets_the_sum_of_what_its_blocks_ask_for() -> None:
    """By Procedure 1 written out: every block a function of its own copy of the parameters and of z_{b−1}."""
    case = NETWORKS["tied"]()
    found = back_matching(case.problem(), lr=0.3)
    model, (tokens, classes) = case.model, case.batch
    w = model.embed.weight.detach()
    head, embed = (w.clone().requires_grad_() for _ in range(2))
    z1 = F.embedding(tokens, embed)
    z1_in = z1.detach().requires_grad_()
    z2 = torch.tanh(model.twice(z1_in))
    z2_in = z2.detach().requires_grad_()
    z3 = model.twice(z2_in)
    z3_in = z3.detach().requires_grad_()
    loss = F.cross_entropy(F.linear(z3_in, head, model.head.bias), classes)
    of_head, g3 = torch.autograd.grad(loss, [head, z3_in])
    (g2,) = torch.autograd.grad((z3 - (z3 - g3).detach()).square().sum() / 2, z2_in)
    (g1,) = torch.autograd.grad((z2 - (z2 - g2).detach()).square().sum() / 2, z1_in)
    (of_embed,) = torch.autograd.grad((z1 - (z1 - g1).detach()).square().sum() / 2, embed)
    assert_same(found.updates["embed.weight"], -0.3 * (of_head + of_embed), 1e-12)
    assert_same(found.targets["embed"], z1 - g1, 1e-12)
    assert_same(found.targets["twice[1]"], z3 - g3, 1e-12)
    assert found.losses["twice[1]"] == pytest.approx(float(g3.square().sum() / 2), rel=1e-12)


@pytest.mark.parametrize("name", ["mlp_relu", "cnn_batch", "cnn_running", "resnet_batch", "shared_activation"])
def test_targets_are_a_unit_gradient_step_from_every_output(name: str) -> None:
    case = NETWORKS[name]()
    found = back_matching(case.problem())
    outputs = []
    x = case.batch[0]
    for child in in_state(case.model, case.batchnorm):
        x = child(x)
        outputs.append(x)
    gradients = torch.autograd.grad(case.loss(x, case.batch[1]), outputs)
    assert len(found.targets) == len(outputs) - 1
    for (block, target), z, g in zip(found.targets.items(), outputs, gradients, strict=False):
        assert_same(target, z - g, 1e-12)
        assert found.losses[block] == pytest.approx(float(g.square().sum() / 2), rel=1e-11)
        assert found.changes[block] == pytest.approx(float(g.norm() / z.detach().norm()), rel=1e-11)


def test_a_block_that_local_hessian_measures_has_the_same_target_and_loss() -> None:
    problem = ARCHITECTURES["transformer"]().problem()
    found = back_matching(problem)
    for name in ("embed", "blocks.0", "blocks.1", "head"):
        local = local_hessian(problem, name)
        assert local.loss == pytest.approx(found.losses[name], rel=1e-12)
        if name != "head":
            assert_same(local.target, found.targets[name], 1e-12)


# chosen blocks


def test_chosen_blocks_are_coarser_and_the_updates_stay_a_gradient_step() -> None:
    problem = ARCHITECTURES["cnn_batch"]().problem()
    every = back_matching(problem, lr=0.2)
    found = back_matching(problem, lr=0.2, blocks=["3", "1"])
    assert found.blocks == ("1", "3", "")
    assert found.parameters["1"] == ("0.weight", "0.bias", "1.weight", "1.bias")
    assert found.parameters["3"] == ()
    assert found.parameters[""] == ("4.weight", "4.bias", "7.weight", "7.bias")
    for name, update in every.updates.items():
        assert torch.allclose(found.updates[name], update, rtol=1e-11, atol=1e-14)
    assert_same(found.targets["3"], every.targets["3"], 1e-12)
    assert back_matching(problem, blocks=["3", "7"]).blocks == ("3", "7")
    assert back_matching(problem, blocks=[]).blocks == ("",)


@pytest.mark.parametrize(
    ("network", "names", "message"),
    [
        ("skipping", ["first"], "'first' cannot end a block: part of what is computed before"),
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
        back_matching(NETWORKS[network]().problem(), blocks=names)


# the result


def test_rows_and_text_name_every_block() -> None:
    found = back_matching(ARCHITECTURES["mlp_tanh"]().problem(), lr=0.5)
    rows = {(row.layer, row.quantity): row.value for row in found.rows()}
    assert rows["0", "back_matching_loss"] == found.losses["0"]
    assert rows["2", "back_matching_loss"] == found.losses["2"]
    assert rows["1", "target_change"] == found.changes["1"]
    assert ("2", "target_change") not in rows
    text = str(found)
    assert [line.split()[0] for line in text.splitlines()] == ["block", "0", "1", "2", "step"]
    assert "step 0.5 on the parameters" in text
    assert text.endswith("cost 1 u, in 3 backward runs")


def test_the_first_batch_is_taken() -> None:
    case = ARCHITECTURES["mlp_tanh"]()
    parts = split(case.batch, [4, 2])
    found, first = back_matching(case.problem(batches=parts)), back_matching(case.problem(batches=[parts[0]]))
    assert_same(found.updates["0.weight"], first.updates["0.weight"], 1e-15)


def test_it_costs_one_forward_and_one_backward_pass() -> None:
    """Every operation of the network is differentiated once."""
    case = ARCHITECTURES["cnn_batch"]()
    forward: list[str] = []
    backward: list[str] = []

    class Counted(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            forward.append("")
            return x.clone()

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            backward.append("")
            return g

    class Meter(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return Counted.apply(x)

    model = nn.Sequential(*(part for child in copy.deepcopy(case.model) for part in (Meter(), child)))
    back_matching(wc.Problem(model, case.loss, [case.batch]))
    assert len(forward) == 8
    assert len(backward) == 8 - 1  # nothing asks for the gradient of the data
