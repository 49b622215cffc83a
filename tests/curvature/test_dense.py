"""Every curvature operator against dense float64 references."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal

import pytest
import torch
from layer_zoo import LAYERS
from loss_zoo import LOSSES, OTHER_LOSSES
from references import (
    assert_same,
    dense_fisher,
    dense_ggn,
    dense_hessian,
    flat_parameters,
    hessian_products,
    network,
)
from torch import Tensor, nn
from zoo import ARCHITECTURES, Case, normal

import wellcond as wc
from wellcond.errors import InvalidProblem, Unsupported
from wellcond.problem.loss.likelihoods import Bernoulli, CrossEntropy, Gaussian

EVERYTHING = ARCHITECTURES | OTHER_LOSSES | LOSSES | {f"layer_{name}": build for name, build in LAYERS.items()}
WITH_LIKELIHOOD = ARCHITECTURES | LOSSES


def cases(table: dict[str, Callable[[], Case]]) -> Any:
    return pytest.mark.parametrize("build", table.values(), ids=table)


def matrix(operator: Any) -> torch.Tensor:
    """Products with the unit vectors: unlike `.dense()` they are not made symmetric afterwards."""
    return operator @ torch.eye(operator.shape[0], dtype=operator.dtype)


def directions(problem: wc.Problem) -> torch.Tensor:
    """Random ones: a matrix with a wrong entry anywhere multiplies them wrongly."""
    return normal(problem.size, 16, seed=1)


@cases({name: build for name, build in EVERYTHING.items() if name != "layer_weight_norm"})  # which the Hessian refuses
def test_hessian_is_the_second_derivative_of_the_loss(build: Callable[[], Case]) -> None:
    case = build()
    v = directions(problem := case.problem())
    assert_same(wc.Hessian(problem) @ v, hessian_products(case.model, case.loss, case.batch, v, case.batchnorm))


@cases(EVERYTHING)
def test_ggn_is_the_curvature_of_the_loss_pulled_back_by_the_jacobian(build: Callable[[], Case]) -> None:
    case = build()
    v = directions(problem := case.problem())
    assert_same(wc.GGN(problem) @ v, dense_ggn(case.model, case.loss, case.batch, case.batchnorm) @ v)


@cases(WITH_LIKELIHOOD)
@pytest.mark.parametrize("labels", ["model", "data"])
def test_fisher_is_the_second_moment_of_the_term_gradients(build: Callable[[], Case], labels: Any) -> None:
    case = build()
    v = directions(problem := case.problem())
    expected = dense_fisher(case.model, case.terms, case.batch, labels, case.batchnorm)
    assert_same(wc.Fisher(problem, labels) @ v, expected @ v)


LIKELIHOODS = {
    "cross_entropy": ("ignore_index", CrossEntropy),
    "token_cross_entropy": ("tokens_ignored", CrossEntropy),
    "position_cross_entropy": ("positions", CrossEntropy),
    "class_probabilities": ("class_probabilities", CrossEntropy),
    "squared_error": ("mse", Gaussian),
    "binary_cross_entropy": ("bce_many", Bernoulli),
}


@pytest.mark.parametrize("name", LIKELIHOODS)
def test_sampled_fisher_is_the_second_moment_under_the_labels_it_drew(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    loss, kind = LIKELIHOODS[name]
    case = LOSSES[loss]()
    drawn: list[Any] = []
    original = kind.sample
    monkeypatch.setattr(kind, "sample", lambda *args: drawn.append(original(*args)) or drawn[-1])
    result = matrix(wc.Fisher(case.problem(), "sample", samples=3))
    assert len(drawn) == 3
    moments = [dense_fisher(case.model, case.terms, (case.batch[0], labels), "data") for labels in drawn]
    assert_same(result, sum(moments) / 3)
    assert not torch.equal(drawn[0], drawn[1])


@pytest.mark.slow
@pytest.mark.parametrize("name", LIKELIHOODS)
def test_sampled_fisher_is_unbiased(name: str) -> None:
    """z-test of vᵀFv for three directions over 200 seeds; |z| < 4.2 holds by chance with probability 1 − 1e-4."""
    case = LOSSES[LIKELIHOODS[name][0]]()
    problem = case.problem()
    v = normal(problem.size, 3, seed=1)
    exact = (v * (dense_fisher(case.model, case.terms, case.batch, "model") @ v)).sum(0)
    draws = torch.stack([(v * (wc.Fisher(problem, "sample", seed=s) @ v)).sum(0) for s in range(200)])
    z = (draws.mean(0) - exact) / (draws.std(0) / len(draws) ** 0.5)
    assert float(z.abs().max()) < 4.2


def test_a_seed_fixes_the_sample() -> None:
    case = LOSSES["mse"]()
    first, again, other = (matrix(wc.Fisher(case.problem(), "sample", seed=s)) for s in (3, 3, 4))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


@pytest.mark.parametrize(
    ("name", "factor"),
    [
        ("mlp_tanh", 1), ("transformer", 1), ("class_probabilities", 1), ("mse", 1), ("mse_of_sums", 1), ("bce_one", 1),
        ("bce_many", 3),  # an average over three outputs
    ],
)  # fmt: skip
def test_fisher_is_the_ggn_of_a_likelihood_in_its_natural_parameter(name: str, factor: float) -> None:
    case = WITH_LIKELIHOOD[name]()
    assert_same(factor * matrix(wc.Fisher(case.problem())), dense_ggn(case.model, case.loss, case.batch))


def test_hessian_and_ggn_agree_for_a_linear_model() -> None:
    case = ARCHITECTURES["mlp_tanh"]()
    problem = wc.Problem(case.model[0], nn.MSELoss(), (case.batch[0], normal(6, 5)))
    assert_same(matrix(wc.Hessian(problem)), matrix(wc.GGN(problem)))


def test_the_two_meanings_of_batchnorm_differ() -> None:
    batch, running = (
        matrix(wc.Hessian(ARCHITECTURES[f"cnn_{meaning}"]().problem())) for meaning in ("batch", "running")
    )
    assert float((batch - running).norm() / running.norm()) > 0.1


@pytest.mark.parametrize("name", ["log_cosh", "label_smoothing", "class_weights"])
def test_a_loss_without_likelihood_has_no_fisher_but_a_second_moment(name: str) -> None:
    case = OTHER_LOSSES[name]()
    for labels in ("model", "sample"):
        with pytest.raises(InvalidProblem, match='labels="data"'):
            _ = wc.Fisher(case.problem(), labels) @ torch.ones(case.problem().size)
    moment = matrix(wc.Fisher(case.problem(), "data"))
    assert float(torch.linalg.eigvalsh(moment)[0]) > -1e-12


@pytest.mark.parametrize("name", ["log_cosh", "poisson"])
def test_second_moment_of_another_loss_is_that_of_the_examples(name: str) -> None:
    case = OTHER_LOSSES[name]()
    inputs, targets = case.batch
    total = 0
    for n in range(len(targets)):
        theta = flat_parameters(case.model).requires_grad_()
        loss = case.loss(network(case.model, inputs[n : n + 1])(theta), targets[n : n + 1])
        (gradient,) = torch.autograd.grad(loss, theta)
        total = total + torch.outer(gradient, gradient) / len(targets)
    assert_same(matrix(wc.Fisher(case.problem(), "data")), total)


def test_nll_of_log_softmax_has_the_curvature_of_cross_entropy() -> None:
    """The same function of the parameters; only the line between model and loss is drawn elsewhere."""
    case = ARCHITECTURES["mlp_tanh"]()
    problem = wc.Problem(nn.Sequential(*case.model, nn.LogSoftmax(1)), nn.NLLLoss(), case.batch)
    ggn = dense_ggn(case.model, case.loss, case.batch)
    assert_same(matrix(wc.GGN(problem)), ggn)
    assert_same(matrix(wc.Fisher(problem)), ggn)
    assert_same(matrix(wc.Fisher(problem, "data")), dense_fisher(case.model, case.terms, case.batch, "data"))
    assert_same(matrix(wc.Hessian(problem)), dense_hessian(case.model, case.loss, case.batch))
    assert_same(wc.spectrum(wc.GGN(problem)).values, torch.linalg.eigvalsh(ggn))


def test_a_perfect_fit_still_has_a_likelihood() -> None:
    """Where outputs and targets agree, the loss and its gradient are zero and tell nothing."""
    case = LOSSES["mse"]()
    case = replace(case, batch=(case.batch[0], case.model(case.batch[0]).detach()))
    expected = dense_fisher(case.model, case.terms, case.batch, "model")
    assert_same(matrix(wc.Fisher(case.problem())), expected)


def test_saturated_logits_still_have_a_likelihood() -> None:
    case = ARCHITECTURES["mlp_tanh"]()
    case.model[2].weight.data.mul_(1e4)
    targets = case.model(case.batch[0]).argmax(1)
    wc.Fisher(replace(case, batch=(case.batch[0], targets)).problem()) @ torch.ones(43)


def test_float32_products_agree_with_float64_to_rounding() -> None:
    case = ARCHITECTURES["mlp_tanh"]()
    expected = dense_hessian(case.model, case.loss, case.batch)
    single = replace(case, model=copy.deepcopy(case.model).float(), batch=(case.batch[0].float(), case.batch[1]))
    result = matrix(wc.Hessian(single.problem()))
    assert result.dtype == torch.float32
    assert_same(result, expected, 1e-5)  # a hundred roundings of 1e-7


@pytest.mark.parametrize("name", ["transformer", "encoder_layer", "lstm", "resnet_batch"])
def test_hessian_agrees_with_differences_of_gradients(name: str) -> None:
    """Autograd's second derivatives have errors of their own in places; differences of gradients have not.

    Central differences of step 1e-5 are good to about 1e-10 / 1e-5 and 1e-10 here: 1e-7 leaves room.
    """
    case = ARCHITECTURES[name]()
    theta, direction = flat_parameters(case.model), normal(case.problem().size)
    outputs = network(case.model, case.batch[0], case.batchnorm)

    def gradient(step: float) -> torch.Tensor:
        point = (theta + step * direction).requires_grad_()
        return torch.autograd.grad(case.loss(outputs(point), case.batch[1]), point)[0]

    assert_same(wc.Hessian(case.problem()) @ direction, (gradient(1e-5) - gradient(-1e-5)) / 2e-5, 1e-7)


# a loss with a derivative in it


def slope(model: nn.Module, batch: Tensor) -> Tensor:
    """The square of the slope of the outputs by the inputs, as in a gradient penalty."""
    x = batch.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(model(x).tanh().sum(), x, create_graph=True)
    return gradient.square().sum(1).mean()


def with_norm(norm: nn.Module) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), norm, nn.Tanh(), nn.Linear(4, 1)).double()


@pytest.mark.parametrize(
    ("norm", "batchnorm"),
    [(nn.GroupNorm(1, 4), "batch"), (nn.RMSNorm(4), "batch"), (nn.BatchNorm1d(4), "running")],
    ids=["group", "rms", "running"],
)
def test_the_hessian_of_a_gradient_penalty_is_that_of_differences(
    norm: nn.Module, batchnorm: Literal["batch", "running"]
) -> None:
    model, x = with_norm(norm), torch.randn(6, 3, dtype=torch.float64)
    problem = wc.Problem.from_step(model, slope, [x], batchnorm)
    model.eval()
    weights = model[0].weight  # type: ignore[index]
    columns = []
    for i in range(weights.numel()):
        gradients = []
        for sign in (1, -1):
            with torch.no_grad():
                weights.view(-1)[i] += sign * 1e-5
            gradients.append(torch.autograd.grad(slope(model, x), weights)[0].reshape(-1))
            with torch.no_grad():
                weights.view(-1)[i] -= sign * 1e-5
        columns.append((gradients[0] - gradients[1]) / 2e-5)
    expected = torch.stack(columns)
    torch.testing.assert_close(wc.Hessian(problem, layers="0.weight").dense(), expected, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("norm", [nn.BatchNorm1d(4), nn.LayerNorm(4)], ids=["BatchNorm", "LayerNorm"])
def test_a_gradient_penalty_through_a_norm_whose_third_derivative_is_wrong_is_refused(norm: nn.Module) -> None:
    problem = wc.Problem.from_step(with_norm(norm), slope, [torch.randn(6, 3, dtype=torch.float64)])
    with pytest.raises(Unsupported, match=f"derivative through a {type(norm).__name__[:9]}, as a gradient pen"):
        wc.max_lr(problem)


@pytest.mark.parametrize("norm", [nn.BatchNorm1d(4), nn.LayerNorm(4)], ids=["BatchNorm", "LayerNorm"])
def test_the_third_derivative_of_a_norm_is_still_wrong_in_torch(norm: nn.Module) -> None:
    """The slope does not change with a bias before a BatchNorm, nor with one number added to all before a LayerNorm."""
    model, x = with_norm(norm), torch.randn(6, 3, dtype=torch.float64)
    bias = model[0].bias  # type: ignore[index]
    (gradient,) = torch.autograd.grad(slope(model, x), bias, create_graph=True)
    direction = torch.ones(4, dtype=torch.float64)
    assert abs(float((gradient @ direction).detach())) < 1e-12
    (curvature,) = torch.autograd.grad(gradient @ direction, bias)
    assert float(curvature.abs().max()) > 1e-4
