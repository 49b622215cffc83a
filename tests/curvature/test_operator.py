"""What holds for every curvature operator: algebra, blocks, batches, graphs, counts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from layer_zoo import LAYERS
from loss_zoo import LOSSES
from references import assert_same, dense_fisher, dense_ggn, dense_hessian
from suites import assert_operator_conforms
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset
from zoo import ARCHITECTURES, Case, integers, mlp, normal, seeded, split

import wellcond as wc
from wellcond.errors import InvalidProblem, NonFinite, UnknownLayer
from wellcond.learning_rate.limits.preconditioned import Preconditioned

OPERATORS: dict[str, Any] = {
    "hessian": wc.Hessian,
    "ggn": wc.GGN,
    "fisher": wc.Fisher,
    "fisher_data": lambda problem, **layers: wc.Fisher(problem, "data", **layers),
    "fisher_sample": lambda problem, **layers: wc.Fisher(problem, "sample", **layers),
}
every_operator = pytest.mark.parametrize("build", OPERATORS.values(), ids=OPERATORS)


@pytest.fixture
def case() -> Case:
    return ARCHITECTURES["mlp_tanh"]()


@every_operator
def test_an_operator_conforms_to_its_dense_matrix(case: Case, build: Any) -> None:
    problem = case.problem()
    dense = {
        "hessian": lambda: dense_hessian(case.model, case.loss, case.batch),
        "ggn": lambda: dense_ggn(case.model, case.loss, case.batch),
        "fisher": lambda: dense_ggn(case.model, case.loss, case.batch),  # equal for cross-entropy
        "fisher_data": lambda: dense_fisher(case.model, case.terms, case.batch, "data"),
    }
    name = next(name for name, known in OPERATORS.items() if known is build)
    operator = build(problem)
    assert_operator_conforms(operator, dense[name]() if name in dense else build(problem).dense())


@pytest.mark.slow
def test_sums_multiples_and_preconditioned_operators_conform(case: Case) -> None:
    problem = case.problem()
    hessian, ggn = wc.Hessian(problem), wc.GGN(problem)
    h, g = dense_hessian(case.model, case.loss, case.batch), dense_ggn(case.model, case.loss, case.batch)
    assert_operator_conforms(hessian + 0.5 * ggn, h + 0.5 * g)
    assert_operator_conforms((hessian + 0.5 * ggn).layer("2"), (h + 0.5 * g)[25:, 25:])
    scale, shift = ({name: normal(*p.shape, seed=seed).abs() for name, p in problem.params.items()} for seed in (5, 6))
    root, diagonal = (torch.cat([part.flatten() for part in parts.values()]) for parts in (scale, shift))
    matrix = -root.sqrt()[:, None] * h * root.sqrt() + diagonal.diag()
    operator = Preconditioned(hessian, scale, shift, sign=-1.0)
    assert_operator_conforms(operator, matrix)
    assert_operator_conforms(operator.layer("0.bias"), matrix[20:25, 20:25])


def test_operators_of_different_sizes_are_not_added(case: Case) -> None:
    with pytest.raises(ValueError, match="cannot be added"):
        _ = wc.Hessian(case.problem()) + wc.Hessian(case.problem()).layer("0")


# blocks

SLICES = {
    "0": slice(0, 25),
    "0.weight": slice(0, 20),
    "0.bias": slice(20, 25),
    "2": slice(25, 43),
    "2.weight": slice(25, 40),
}


@every_operator
@pytest.mark.parametrize("name", SLICES)
def test_a_layer_is_a_diagonal_block(case: Case, build: Any, name: str) -> None:
    whole = build(case.problem()).dense()
    part = whole[SLICES[name], SLICES[name]]
    assert_same(build(case.problem()).layer(name).dense(), part, 1e-12)
    assert_same(build(case.problem(), layers=[name]).dense(), part, 1e-12)


def test_blocks_agree_with_the_dense_reference(case: Case) -> None:
    expected = dense_hessian(case.model, case.loss, case.batch)
    rows = [*range(20, 25), *range(25, 40)]
    result = wc.Hessian(case.problem(), layers=["2.weight", "0.bias"])  # in the model's order, whatever is asked
    assert result.names == ("0.bias", "2.weight")
    assert_same(result.dense(), expected[rows][:, rows])


@every_operator
def test_products_of_several_blocks_in_one_pass_are_those_of_the_layers(case: Case, build: Any) -> None:
    problem = case.problem(batches=split(case.batch, [4, 2]))
    operator = build(problem)
    v, w = normal(25, 2), normal(15, 1)
    first, second = operator.block_products([([0, 1], v), ([2], w)])
    assert operator.matvecs == 3
    assert_same(first, operator.layer("0") @ v, 1e-12)
    assert_same(second, operator.layer("2.weight") @ w, 1e-12)


def test_a_layer_outside_the_operator_is_refused(case: Case) -> None:
    part = wc.Hessian(case.problem()).layer("0")
    assert part.layer("0.bias").shape == (5, 5)
    with pytest.raises(UnknownLayer, match=r"0\.weight"):
        part.layer("2")


def test_tied_weights_are_found_under_any_of_their_names() -> None:
    problem = LAYERS["tied_modules"]().problem()
    by_first, by_second = wc.GGN(problem, layers="embed"), wc.GGN(problem, layers=["head.weight"])
    assert by_first.names == by_second.names == ("embed.weight",)
    assert_same(by_second.dense(), by_first.dense(), 1e-14)


# batches


@pytest.mark.parametrize("kind", [kind for kind in OPERATORS if kind != "fisher_sample"])  # it draws batch by batch
@pytest.mark.parametrize("sizes", [[6], [3, 3], [4, 2], [1, 1, 1, 1, 1, 1], "loader"], ids=str)
def test_batches_of_any_size_are_the_joined_data(case: Case, kind: str, sizes: Any) -> None:
    build = OPERATORS[kind]
    joined = build(case.problem()).dense()
    ragged = DataLoader(TensorDataset(*case.batch), batch_size=4)
    batches = ragged if sizes == "loader" else split(case.batch, sizes)
    assert_same(build(case.problem(batches=batches)).dense(), joined, 1e-12)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["ignore_index", "custom_ignore_index", "partial_ignore_index", "hidden_ignore_index", "tokens_ignored"]
)
def test_unevenly_ignored_targets_are_weighted_as_in_the_joined_data(name: str) -> None:
    """A batch weighs as much as its targets that count: here 1 of 4 and 5 of 5."""
    case = LOSSES[name]()
    batches = split(case.batch, [2, 1] if name == "tokens_ignored" else [4, 5])
    ggn = dense_ggn(case.model, case.loss, case.batch)
    fisher = dense_fisher(case.model, case.terms, case.batch, "data")
    for order in (batches, batches[::-1]):  # in the second order the first batch ignores nothing
        assert_same(wc.GGN(case.problem(batches=order)).dense(), ggn)
        assert_same(wc.Fisher(case.problem(batches=order), "data").dense(), fisher)


@pytest.mark.slow
def test_batchnorm_takes_the_statistics_of_each_batch() -> None:
    case = ARCHITECTURES["cnn_batch"]()
    batches = split(case.batch, [3, 2])
    parts = [len(b[1]) * dense_hessian(case.model, case.loss, b) for b in batches]
    assert_same(wc.Hessian(case.problem(batches=batches)).dense(), sum(parts) / 5)


# graphs


EDITS: dict[str, Callable[[nn.Module, Tensor], Any]] = {
    "in_place": lambda model, _x: model[0].weight.mul_(2),
    "data": lambda model, _x: model[0].weight.data.mul_(2),
    "assigned": lambda model, _x: setattr(model[0].weight, "data", 2 * model[0].weight.data),
    "swapped": lambda model, _x: model[0].weight.data.copy_(model[0].weight.data[[1, 0, 2, 3, 4]]),  # the sum stays
    "inputs": lambda _model, x: x.mul_(2),
}


@every_operator
@pytest.mark.parametrize("edit", EDITS.values(), ids=EDITS)
def test_what_has_changed_gives_the_new_matrix(case: Case, build: Any, edit: Any) -> None:
    operator = build(case.problem())
    before = operator.dense()
    with torch.no_grad():
        edit(case.model, case.batch[0])
    after = operator.dense()
    assert float((after - before).norm()) > 1e-3
    assert_same(after, build(case.problem()).dense(), 1e-13)


@pytest.mark.slow
def test_changed_running_statistics_give_the_new_matrix() -> None:
    case = ARCHITECTURES["cnn_running"]()
    operator = wc.Hessian(case.problem())
    operator.dense()
    case.model[1].running_var.mul_(3)
    assert_same(operator.dense(), dense_hessian(case.model, case.loss, case.batch, "running"))


def test_one_batch_is_evaluated_once_for_many_products(case: Case) -> None:
    calls = []
    case.model[0].register_forward_hook(lambda *_: calls.append(1))
    operator = wc.Hessian(case.problem())
    checked = len(calls)
    for seed in range(5):
        _ = operator @ normal(43, seed=seed)
    assert len(calls) == checked + 1


def test_what_has_no_influence_has_no_curvature(case: Case) -> None:
    for operator in (wc.Hessian, wc.GGN):
        assert float(operator(LAYERS["own_parameter"]().problem()).layer("unused").dense().norm()) == 0
    linear = wc.Problem(case.model, lambda f, y: f.mean(), case.batch)
    assert float(wc.GGN(linear).dense().norm()) == 0
    assert float(wc.Hessian(linear).dense().norm()) > 0


def test_an_infinite_second_derivative_names_the_parameter() -> None:
    model = mlp()
    batch = (torch.zeros(2, 4, dtype=torch.float64), integers(3, 2))
    model[0].bias.data.zero_()
    loss = lambda f, y: (f**2).sum(1).sqrt().mean() + nn.functional.cross_entropy(f, y)  # noqa: E731
    model[2].bias.data.zero_()
    with pytest.raises(NonFinite, match=r"NaN or inf at '\d\.(weight|bias)'"):
        wc.Hessian(wc.Problem(model, loss, batch)).dense()


def test_labels_that_do_not_exist_are_refused(case: Case) -> None:
    with pytest.raises(ValueError, match='"model", "sample" or "data"'):
        wc.Fisher(case.problem(), "truth")


@pytest.mark.parametrize(
    ("model", "inputs", "culprit"),
    [
        (lambda: nn.Sequential(nn.Linear(4, 3), nn.Hardsigmoid(), nn.Linear(3, 3)), normal(5, 4), "hardsigmoid"),
        (lambda: nn.Sequential(nn.EmbeddingBag(6, 3), nn.Linear(3, 3)), integers(6, 5, 2), "embedding_bag"),
    ],
    ids=["hardsigmoid", "embedding_bag"],
)
def test_a_function_without_second_derivative_is_named(model: Any, inputs: Any, culprit: str) -> None:
    problem = wc.Problem(seeded(model), nn.CrossEntropyLoss(), (inputs, integers(3, 5)))
    with pytest.raises(InvalidProblem, match=f"no second derivative of '{culprit}'"):
        _ = wc.Hessian(problem) @ torch.ones(problem.size)


def test_weight_norm_has_no_hessian_but_a_ggn() -> None:
    case = LAYERS["weight_norm"]()
    with pytest.raises(InvalidProblem, match="weight_norm"):
        wc.Hessian(case.problem())
