"""What may be a block and what may not; blocks are measured as they were called; nothing of the user's changes."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from references import assert_same, dense_ggn, dense_hessian
from test_nothing_changed import FAIL, Boom, OnceOnly, assert_unchanged, build, snapshot
from torch import Tensor, nn
from torch.autograd.functional import jacobian
from torch.nn.utils import parametrizations
from torch.utils.checkpoint import checkpoint
from zoo import ARCHITECTURES, CLASSES, classifier, integers, normal, seeded, split

import wellcond as wc
from wellcond.errors import NotDeterministic, UnknownLayer
from wellcond.local.back_matching import back_matching
from wellcond.local.local_hessian import local_hessian


def problem_of(build: Callable[[], nn.Module], inputs: Any, examples: int, **options: Any) -> wc.Problem:
    return classifier(build, inputs, examples).problem(**options)


def gauss_newton_by_hand(block: Callable[[Tensor], Tensor], z: Tensor) -> Tensor:
    j = jacobian(block, z)
    j = j.reshape(-1, z.numel())
    return j.T @ j


# names


@pytest.mark.parametrize("name", ["7", "features", "0.weight", "[0]", "blocks[0:1]", "[0:1:2]"])
def test_unknown_names_are_refused(name: str) -> None:
    with pytest.raises(UnknownLayer, match="Closest"):
        local_hessian(ARCHITECTURES["mlp_tanh"]().problem(), name)


@pytest.mark.parametrize("name", ["[2:2]", "[1:4]", "[3:]", "[:-3]", "[-4:2]", "[2:1]"])
def test_ranges_outside_the_sequential_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match=r"the model has 3 modules: write \[start:stop\] with 0 ≤ start < stop ≤ 3"):
        local_hessian(ARCHITECTURES["mlp_tanh"]().problem(), name)


def test_ranges_of_what_is_no_sequential_are_refused() -> None:
    with pytest.raises(wc.WellcondError, match="'head' is a Linear, which does not call its parts one after the other"):
        local_hessian(ARCHITECTURES["transformer"]().problem(), "head[0:1]")

    class Backwards(nn.Sequential):
        def forward(self, x: Tensor) -> Tensor:
            for module in reversed(self):
                x = module(x)
            return x

    with pytest.raises(wc.WellcondError, match="Backwards"):
        local_hessian(problem_of(lambda: Backwards(nn.Linear(4, 3), nn.Linear(4, 4)), normal(6, 4), 6), "[0:1]")


def test_only_two_losses_of_the_last_block_are_known() -> None:
    with pytest.raises(ValueError, match="last is 'mse'"):
        local_hessian(ARCHITECTURES["mlp_tanh"]().problem(), "0", last="mse")


# calls


def test_a_block_called_twice_is_refused_with_the_count_and_the_cure() -> None:
    linear = nn.Linear(4, 4)
    problem = problem_of(lambda: nn.Sequential(linear, nn.Tanh(), linear, nn.Linear(4, 3)), normal(6, 4), 6)
    with pytest.raises(wc.WellcondError, match=r"block '0' was called 2 times .* contains all its calls"):
        local_hessian(problem, "0")
    assert local_hessian(problem, "[0:3]").weight.names == ("0.weight", "0.bias")


def test_a_module_that_is_called_elsewhere_too_is_told_apart_by_its_turn_in_a_range() -> None:
    act = nn.Tanh()
    model = seeded(lambda: nn.Sequential(nn.Linear(4, 5), act, nn.Linear(5, 5), act, nn.Linear(5, 3)))
    x = normal(6, 4)
    problem = wc.Problem(model, nn.CrossEntropyLoss(), (x, integers(CLASSES, 6)))
    z = torch.tanh(model[2](torch.tanh(model[0](x)))).detach()
    found = local_hessian(problem, "[3:4]")
    assert_same(found.call.output, z, 1e-14)
    assert_same(found.z.gauss_newton.dense().diagonal(), ((1 - z**2) ** 2).flatten(), 1e-12)


def test_a_sequential_whose_children_are_called_one_by_one_has_ranges() -> None:
    class Loop(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))

        def forward(self, x: Tensor) -> Tensor:
            for layer in self.layers:
                x = layer(x)
            return x

    problem = problem_of(Loop, normal(6, 4), 6)
    layers = problem.model.layers
    found = local_hessian(problem, "layers[:2]")
    assert found.weight.names == ("layers.0.weight", "layers.0.bias")
    assert_same(found.z.gauss_newton.dense(), gauss_newton_by_hand(lambda z: layers[:2](z), normal(6, 4)), 1e-12)
    with pytest.raises(wc.WellcondError, match="'layers' was not called"):
        local_hessian(problem, "layers")


def test_a_module_that_is_never_called_is_refused() -> None:
    problem = ARCHITECTURES["multihead_attention"]().problem()
    with pytest.raises(wc.WellcondError, match=r"'attention\.out_proj' was not called .* block that contains it"):
        local_hessian(problem, "attention.out_proj")


def test_arguments_by_name_and_constants_among_them_are_repeated() -> None:
    class Named(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention, self.head = nn.MultiheadAttention(4, 2, batch_first=True), nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            mask = torch.ones(3, 3, dtype=torch.bool).triu(1)
            return self.head(self.attention(query=x, key=x, value=x, attn_mask=mask)[0].mean(1))

    x = normal(4, 3, 4)
    problem = problem_of(Named, x, 4)
    mask = torch.ones(3, 3, dtype=torch.bool).triu(1)
    expected = gauss_newton_by_hand(lambda z: problem.model.attention(z, z, z, attn_mask=mask)[0], x)
    assert_same(local_hessian(problem, "attention").z.gauss_newton.dense(), expected, 1e-10)


def test_only_the_first_of_several_different_arguments_is_z() -> None:
    class Bilinear(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.mix, self.head = nn.Bilinear(4, 2, 5), nn.Linear(5, 3)

        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            return self.head(self.mix(x, y))

    x, y = normal(6, 4), normal(6, 2, seed=1)
    problem = problem_of(Bilinear, (x, y), 6)
    found = local_hessian(problem, "mix")
    assert found.input_shape == (6, 4)
    assert_same(found.z.gauss_newton.dense(), gauss_newton_by_hand(lambda z: problem.model.mix(z, y), x), 1e-12)


def test_hooks_of_the_user_count_once() -> None:
    x = normal(6, 4)
    case = ARCHITECTURES["mlp_tanh"]()
    case.model[0].register_forward_pre_hook(lambda _m, args: (2 * args[0],))
    case.model[0].register_forward_hook(lambda _m, _args, output: 3 * output)
    w = case.model[0].weight.detach()
    found = local_hessian(case.problem(), "0")
    assert_same(found.call.z, x, 1e-15)
    assert_same(found.z.exact.dense(), torch.block_diag(*[36 * w.T @ w] * 6), 1e-12)


def test_a_block_that_keeps_a_state_is_refused() -> None:
    class Counting(nn.Module):
        calls = 0

        def forward(self, x: Tensor) -> Tensor:
            self.calls += 1
            return x * self.calls

    problem = problem_of(lambda: nn.Sequential(nn.Linear(4, 3), Counting()), normal(6, 4), 6)
    with pytest.raises(NotDeterministic, match="block '1', called again"):
        local_hessian(problem, "1")


def test_a_block_without_a_floating_point_output_is_refused() -> None:
    class Index(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.argmax(1)

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.index, self.table = Index(), nn.Embedding(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.table(self.index(x))

    with pytest.raises(wc.WellcondError, match="'index' gives a Tensor without a floating-point tensor"):
        local_hessian(problem_of(Model, normal(6, 4), 6), "index")


# what has no derivative


def test_an_embedding_has_weights_alone() -> None:
    found = local_hessian(ARCHITECTURES["transformer"]().problem(), "embed")
    assert found.input_shape is None
    with pytest.raises(wc.WellcondError, match="'embed' receives no floating-point tensor"):
        _ = found.z
    assert found.weight.shape == (20, 20)
    assert "no floating-point tensor" in str(found)


def test_a_block_without_trainable_parameters_has_an_input_alone() -> None:
    found = local_hessian(ARCHITECTURES["mlp_tanh"]().problem(), "1")
    with pytest.raises(wc.WellcondError, match="'1' has no trainable parameters"):
        _ = found.weight
    assert found.z.shape == (30, 30)
    assert "none trainable" in str(found)


@pytest.mark.parametrize("block", ["0", "[0:2]"])
def test_a_frozen_stem_has_a_target_though_nothing_before_it_is_trained(block: str) -> None:
    case = ARCHITECTURES["mlp_relu"]()
    case.model[0].requires_grad_(False)
    found = local_hessian(case.problem(), block)
    x, model = case.batch[0], case.model
    activation: Callable[[Tensor], Tensor] = F.relu if block == "0" else nn.Identity()
    out = (model[0](x) if block == "0" else F.relu(model[0](x))).detach().requires_grad_()
    h = F.relu(model[2](activation(out)))
    (gradient,) = torch.autograd.grad(F.cross_entropy(model[4](h), case.batch[1]), out)
    assert_same(found.target, out - gradient, 1e-12)
    assert found.loss == pytest.approx(float(gradient.square().sum()) / 2, rel=1e-11)
    with pytest.raises(wc.WellcondError, match="no trainable parameters"):
        _ = found.weight


def test_a_frozen_parameter_is_left_out_of_the_weights() -> None:
    case = ARCHITECTURES["mlp_tanh"]()
    case.model[0].bias.requires_grad_(False)
    found = local_hessian(case.problem(), "0")
    assert found.weight.names == ("0.weight",)
    with pytest.raises(wc.WellcondError, match="frozen"):
        found.weight.exact.layer("0.bias")


@pytest.mark.parametrize("without_gradient", [False, True])
def test_an_output_that_the_loss_does_not_depend_on_is_its_own_target(without_gradient: bool) -> None:
    class LastState(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cell, self.head = nn.GRU(2, 3, batch_first=True), nn.Linear(3, CLASSES)

        def forward(self, x: Tensor) -> Tensor:
            with torch.set_grad_enabled(not without_gradient):
                state = self.cell(x)[1][0]
            return self.head(state)

    x = normal(4, 3, 2)
    problem = problem_of(LastState, x, 4)
    found = local_hessian(problem, "cell")
    assert found.loss == 0.0
    assert torch.equal(found.target, found.call.output)
    assert "the loss does not depend on this output" in str(found)
    expected = gauss_newton_by_hand(lambda z: problem.model.cell(z)[0], x)
    assert_same(found.z.exact.dense(), expected, 1e-10)


def test_an_exact_hessian_through_weight_norm_is_refused_and_gauss_newton_is_right() -> None:
    x = normal(6, 4)
    problem = problem_of(
        lambda: nn.Sequential(parametrizations.weight_norm(nn.Linear(4, 5)), nn.Tanh(), nn.Linear(5, 3)), x, 6
    )
    found = local_hessian(problem, "[0:2]")
    with pytest.raises(wc.WellcondError, match="weight_norm"):
        _ = found.weight.exact
    w = problem.model[0].weight.detach()
    bias = problem.model[0].bias.detach()
    assert_same(found.z.gauss_newton.dense(), gauss_newton_by_hand(lambda z: torch.tanh(z @ w.T + bias), x), 1e-10)
    assert local_hessian(problem, "2", last="squared").z.exact.shape == (30, 30)


# whole models of other kinds


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(CLASSES, 4), nn.Linear(4, CLASSES)
        self.head.weight = self.embed.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.embed(x)))


class Checkpointed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.block = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 4), nn.Tanh())
        self.head = nn.Linear(4, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(checkpoint(self.block, x, use_reentrant=False))


@pytest.mark.parametrize(("model", "inputs"), [(Tied, integers(CLASSES, 6)), (Checkpointed, normal(6, 4))])
def test_tied_and_checkpointed_models_are_measured_exactly(model: Callable[[], nn.Module], inputs: Tensor) -> None:
    case = classifier(model, inputs, 6)
    found = local_hessian(case.problem(), "")
    assert_same(found.weight.exact.dense(), dense_hessian(case.model, case.loss, case.batch))
    assert_same(found.weight.gauss_newton.dense(), dense_ggn(case.model, case.loss, case.batch))


def test_a_block_inside_a_checkpoint_is_measured() -> None:
    case = classifier(Checkpointed, normal(6, 4), 6)
    block = case.model.block
    hidden = block[1](block[0](case.batch[0])).detach()
    out = block[2](hidden).detach().requires_grad_()
    loss = F.cross_entropy(case.model.head(torch.tanh(out)), case.batch[1])
    found = local_hessian(case.problem(), "block.2")
    assert_same(found.target, out - torch.autograd.grad(loss, out)[0], 1e-12)
    w = block[2].weight.detach()
    assert_same(found.z.exact.dense(), torch.block_diag(*[w.T @ w] * 6), 1e-12)


# dropout


def test_a_block_sees_the_dropout_masks_of_its_pass() -> None:
    model = seeded(
        lambda: nn.Sequential(
            nn.Linear(4, 6), nn.Dropout(0.5), nn.Linear(6, 5), nn.Tanh(), nn.Dropout(0.3), nn.Linear(5, 3)
        )
    )
    x, y = normal(6, 4), integers(CLASSES, 6)
    found = local_hessian(wc.Problem(model, nn.CrossEntropyLoss(), (x, y), dropout=7), "[2:5]")
    with torch.random.fork_rng():
        torch.manual_seed(7)
        first = F.dropout(torch.ones(6, 6, dtype=torch.float64), 0.5)
        second = F.dropout(torch.ones(6, 5, dtype=torch.float64), 0.3)
    z = (model[0](x) * first).detach()
    block = lambda z: torch.tanh(model[2](z)) * second  # noqa: E731
    out = block(z).detach().requires_grad_()
    (gradient,) = torch.autograd.grad(F.cross_entropy(model[5](out), y), out)
    assert_same(found.target, out - gradient, 1e-12)
    assert_same(found.z.gauss_newton.dense(), gauss_newton_by_hand(block, z), 1e-12)
    off = local_hessian(wc.Problem(model, nn.CrossEntropyLoss(), (x, y)), "[2:5]")
    assert_same(off.z.gauss_newton.dense(), gauss_newton_by_hand(lambda z: torch.tanh(model[2](z)), model[0](x)), 1e-12)


def test_random_numbers_of_python_in_a_block_are_drawn_again() -> None:
    class Noise(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x * random.random() * torch.rand(())

    problem = problem_of(lambda: nn.Sequential(nn.Linear(4, 3), Noise()), normal(6, 4), 6)
    found = local_hessian(problem, "1", last="squared")
    factor = found.call.output.detach() / found.call.z.detach()
    assert_same(factor, factor.mean().expand(6, 3), 1e-12)
    assert_same(found.z.exact.dense(), factor[0, 0] ** 2 * torch.eye(18, dtype=torch.float64), 1e-12)


# batches and later changes


def test_the_first_batch_is_taken_and_said() -> None:
    case = ARCHITECTURES["mlp_tanh"]()
    parts = split(case.batch, [4, 2])
    found = local_hessian(case.problem(batches=parts), "0")
    assert found.input_shape == (4, 4)
    alone = local_hessian(case.problem(batches=[parts[0]]), "0")
    assert found.loss == alone.loss
    assert "the first batch" in str(found)
    assert "the first batch" not in str(alone)


@pytest.mark.parametrize("through_data", [False, True])
def test_what_happens_to_the_model_later_does_not_change_a_local_hessian(through_data: bool) -> None:
    case = ARCHITECTURES["cnn_running"]()
    before = local_hessian(copy.deepcopy(case).problem(), "[0:2]")
    after = local_hessian(case.problem(), "[0:2]")
    with torch.no_grad():
        for t in (*case.model.parameters(), *case.model.buffers(), case.batch[0]):
            if through_data:
                t.data = t.data + 1
            else:
                t.add_(1)
    for part in ("z", "weight"):
        for kind in ("exact", "gauss_newton"):
            expected = getattr(getattr(before, part), kind).dense()
            assert_same(getattr(getattr(after, part), kind).dense(), expected, 1e-12)
    assert_same(after.closed_form().z.blocks, before.closed_form().z.blocks, 1e-12)


def test_rows_and_text_say_what_was_measured() -> None:
    found = local_hessian(ARCHITECTURES["cnn_batch"]().problem(), "[0:2]")
    rows = {row.quantity: row for row in found.rows()}
    assert {row.layer for row in rows.values()} == {"[0:2]"}
    assert rows["back_matching_loss"].value == found.loss
    change = float(found.output_gradient.norm() / found.call.output.detach().norm())
    assert rows["target_change"].value == pytest.approx(change)
    assert rows["input_entries"].value == 160
    assert rows["parameters"].value == 63
    text = str(found)
    for part in (
        "(5, 2, 4, 4) → H_z of side 160",
        "H_W of side 63",
        "batch statistics",
        "eqs. 17",
        "1 u",
        "5 examples",
    ):
        assert part in text
    assert repr(found) == f"LocalHessian('[0:2]', Conv2d → BatchNorm2d, loss={found.loss:.3g})"
    encoder = str(local_hessian(ARCHITECTURES["encoder_layer"]().problem(), "0"))
    assert "12, 0.self_attn.in_proj_weight to 0.norm2.bias → H_W" in encoder
    assert "the loss itself" in str(local_hessian(ARCHITECTURES["mlp_tanh"]().problem(), "2"))


# nothing changes

MEASUREMENTS: dict[str, Callable[[wc.Problem], Any]] = {
    "exact": lambda p: local_hessian(p, "conv").weight.exact.dense(),
    "gauss_newton": lambda p: local_hessian(p, "attention").z.gauss_newton.dense(),
    "spectrum": lambda p: wc.spectrum(local_hessian(p, "norm").weight.gauss_newton),
    "recurrent": lambda p: local_hessian(p, "rnn").z.exact.dense(),
    "embedding": lambda p: local_hessian(p, "embedding").weight.exact.dense(),
    "frozen": lambda p: local_hessian(p, "frozen").z.exact.dense(),
    "closed_form": lambda p: local_hessian(p, "conv").closed_form().z.dense(),
    "back_matching": lambda p: back_matching(p, lr=0.1),
}
every_measurement = pytest.mark.parametrize("measure", MEASUREMENTS.values(), ids=MEASUREMENTS)


@every_measurement
@pytest.mark.parametrize("batchnorm", ["batch", "running"])
@pytest.mark.parametrize("dropout", [None, 5])
def test_measuring_blocks_changes_nothing(measure: Any, batchnorm: Any, dropout: Any) -> None:
    model, loader = build()
    before = snapshot(model, loader)
    measure(wc.Problem(model, nn.CrossEntropyLoss(), loader, batchnorm, dropout=dropout))
    assert_unchanged(before, snapshot(model, loader))


@every_measurement
def test_a_model_that_raises_half_way_leaves_nothing_changed(measure: Any) -> None:
    model, loader = build()
    loader.dataset.tensors[0][:].fill_(FAIL)
    before = snapshot(model, loader)
    with pytest.raises(Boom) as held:
        measure(wc.Problem(model, nn.CrossEntropyLoss(), loader))
    assert held.tb is not None
    assert_unchanged(before, snapshot(model, loader))


def test_a_product_that_raises_leaves_nothing_changed() -> None:
    model, loader = build()
    model.conv.register_forward_hook(lambda _m, _x, output: OnceOnly.apply(output))
    before = snapshot(model, loader)
    with pytest.raises(Boom) as held:
        local_hessian(wc.Problem(model, nn.CrossEntropyLoss(), loader), "conv").weight.exact.dense()
    assert held.tb is not None
    assert_unchanged(before, snapshot(model, loader))
