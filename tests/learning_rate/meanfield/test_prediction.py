"""Predictions for modules and problems, what a prediction says, and what is refused."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import nn
from wei2019_recursions import SIGMA_B2 as B2
from wei2019_recursions import SIGMA_W2 as W2
from zoo import normal

import wellcond as wc
from wellcond.errors import InvalidProblem, NonFinite, Unsupported
from wellcond.learning_rate.meanfield import predict
from wellcond.learning_rate.meanfield.stages import Variant
from wellcond.results import Row

FC = "fc 784-1000-1000-1000-10"
CONV = "conv 1x28x28 30-60-90 k3 s2 10"


def seeded_network() -> nn.Sequential:
    layers: list[nn.Module] = []
    for k, (n, m) in enumerate(((50, 400), (400, 400), (400, 10))):
        layer = nn.Linear(n, m)
        layer.weight.data = normal(m, n, seed=k).float() * math.sqrt(W2 / n)
        layer.bias.data = normal(m, seed=k + 10).float() * math.sqrt(B2)
        layers += [layer, nn.BatchNorm1d(m), nn.ReLU()]
    return nn.Sequential(*layers[:-2])


@pytest.mark.parametrize("variant", ["detached", "batch"])
@pytest.mark.parametrize(
    ("options", "names"),
    [
        ({"parameters": "weights", "gamma": 0.5}, ["0", "3", "6"]),
        ({"parameters": "all"}, ["0", "1", "3", "4", "6"]),
        ({}, ["0", "1", "3", "4", "6"]),
        ({"examples": 50}, ["0", "1", "3", "4", "6"]),
    ],
)
def test_a_module_is_predicted_as_its_architecture(variant: Variant, options: dict[str, Any], names: list[str]) -> None:
    """All parameters of a module count by default."""
    module = predict(seeded_network(), variant=variant, **options)
    line = predict("fc 50-400-400-10", variant=variant, **{"parameters": "all"} | options)
    assert module.lambda_max == pytest.approx(line.lambda_max, rel=0.03)  # σ² of the weights drawn
    assert [layer.name for layer in module.layers] == names


def test_a_module_takes_other_numbers() -> None:
    grid = predict(seeded_network(), torch.tensor([0.5, 1.0]), sigma_w2=2.0, sigma_b2=0.5, parameters="weights")
    assert grid.lambda_max.tolist() == pytest.approx([400 * 0.25 / (2 * math.pi), 400 / (2 * math.pi)], rel=1e-5)


def test_rows_hold_lambda_max_rate_and_terms_and_the_ends_of_a_grid() -> None:
    prediction = predict(FC, variant="detached")
    assert prediction.rows(step=7) == [
        Row(7, "", "lambda_max", prediction.lambda_max, ""),
        Row(7, "", "max_lr", prediction.max_lr, "lr"),
        *(Row(7, layer.name, "term", layer.term, "") for layer in prediction.layers),
    ]
    grid = predict(FC, torch.tensor([[1.0, 3.0, 2.0]]))
    values = {row.quantity: row.value for row in grid.rows()}
    assert values["lambda_max_greatest"] == pytest.approx(9 * values["lambda_max_least"], rel=1e-12)
    assert [values["max_lr_least"], values["max_lr_greatest"]] == [float(grid.max_lr.min()), float(grid.max_lr.max())]


def test_the_text_says_what_limits_the_rate_and_what_was_assumed() -> None:
    text = str(predict(FC))
    assert "the last layer limits the rate, its term is 100 %" in text
    assert "differentiated, as in training (variant 'batch')" in text
    assert "no pass over the data" in text
    assert "conv3 limits the rate, its term is 44 %" in str(predict(CONV, variant="detached"))
    assert "BatchNorm" not in str(predict(f"{FC} vanilla"))
    assert "a grid of 2 × 3 networks" in str(predict(FC, torch.ones(2, 1), sigma_w2=torch.ones(3)))
    assert "equally likely" in str(predict(FC, loss="cross-entropy"))


def test_gradients_that_share_nothing_do_not_limit_the_rate() -> None:
    """An odd activation after a norm has a mean of 0: for very many examples no direction is common to them."""
    prediction = predict("fc 784-300-300-10 tanh")
    assert (prediction.lambda_max, prediction.max_lr) == (0.0, math.inf)
    assert "nothing in common" in str(prediction)
    assert predict("fc 784-300-300-10 tanh", examples=400).lambda_max > 0


def normed(activation: nn.Module | None = None) -> nn.Sequential:
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), activation or nn.ReLU(), nn.Linear(8, 2))


def with_zeros() -> nn.Sequential:
    model = normed()
    nn.init.zeros_(model[0].weight)
    nn.init.zeros_(model[0].bias)
    return model


REFUSED: list[tuple[Any, dict[str, Any], type[Exception], str]] = [
    (FC, {"variant": "running"}, ValueError, "variant is 'running'.*'detached'"),
    (FC, {"variant": "source"}, ValueError, "variant is 'source'.*'batch', 'detached'"),
    (FC, {"loss": "hinge"}, ValueError, "loss is 'hinge'.*'mse'"),
    (FC, {"parameters": "biases"}, ValueError, "parameters is 'biases'"),
    (FC, {"momentum": 1.0}, ValueError, "momentum is 1.0.*below 1"),
    (FC, {"momentum": -0.1}, ValueError, "momentum is -0.1"),
    (FC, {"momentum": "0.9"}, TypeError, "momentum is of type str"),
    (FC, {"gamma": 0.0}, ValueError, "gamma is 0.0; it must be above 0"),
    (FC, {"gamma": torch.tensor([1.0, -1.0])}, ValueError, "gamma is -1.0"),
    (FC, {"gamma": math.inf}, ValueError, "gamma is inf; it must be finite"),
    (FC, {"gamma": torch.ones(0)}, ValueError, "gamma is a tensor without elements"),
    (FC, {"gamma": [1.0]}, TypeError, "gamma is of type list"),
    (
        FC,
        {"gamma": torch.ones(3), "sigma_w2": torch.ones(4)},
        ValueError,
        r"not broadcast.*gamma \(3,\), sigma_w2 \(4,\)",
    ),
    (FC, {"sigma_w2": -1.0}, ValueError, "sigma_w2 is -1.0"),
    (FC, {"width": 0}, ValueError, "hidden is 0"),
    (FC, {"inputs": torch.ones(5, 3)}, ValueError, "inputs is 5×3; it must be N×784"),
    (FC, {"inputs": torch.ones(1, 784)}, ValueError, "with N > 1"),
    (FC, {"inputs": (784,)}, TypeError, "inputs is of type tuple.*N×784"),
    (FC, {"examples": 0}, ValueError, "examples is 0"),
    (FC, {"examples": 2.5}, ValueError, "examples is 2.5; it must be a whole number"),
    (FC, {"examples": math.nan}, ValueError, "examples is nan"),
    (FC, {"examples": 1}, ValueError, "examples is 1.*2 or more"),
    (3, {}, TypeError, "network is of type int; pass an nn.Module, a Problem, a line"),
    ("fc 10-10-1", {"loss": "cross-entropy"}, ValueError, "two or more"),
    (normed(), {"width": 3}, ValueError, "width is 3"),
    (normed(), {"gamma": -1.0}, ValueError, "gamma is -1"),
    (normed(), {"inputs": torch.full((5, 6), math.nan)}, NonFinite, "inputs: they hold NaN"),
    (normed(), {"inputs": torch.ones(5, 6)}, InvalidProblem, "all examples are equal"),
    (normed().requires_grad_(False), {}, InvalidProblem, "no parameter is trained"),
    (with_zeros(), {"inputs": normal(5, 6)}, NonFinite, "weights of layer '0' are all 0"),
    ("fc 6-8-2", {"inputs": torch.full((5, 6), math.inf)}, NonFinite, "inputs: they hold NaN"),
    ("fc 6-8-2", {"inputs": torch.zeros(5, 6)}, InvalidProblem, "all examples are equal"),
    ("fc 6-8-2", {"gamma": 1e-200}, NonFinite, "no finite λ_max: numbers over- or underflow"),
    ("fc 6-8-2 vanilla", {"sigma_w2": torch.tensor([1.0, 1e200], dtype=torch.float64)}, NonFinite, "no finite λ_max"),
    ("fc 6-8-2 ln", {"inputs": torch.zeros(5, 6), "sigma_b2": 0.0}, NonFinite, "no finite λ_max: the inputs are all 0"),
]


@pytest.mark.parametrize(("network", "options", "error", "message"), REFUSED)
def test_what_cannot_be_predicted_is_refused_by_name(
    network: Any, options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        predict(network, **options)


@pytest.mark.parametrize(
    ("network", "options", "caution"),
    [
        # maps of 6×6, 4×4 and 2×2 positions: the second norm sees fewest, 4 × 100 values
        ("conv 1x6x6 8-8 k3 10", {"examples": 100}, "BatchNorm norm2 sees only 400 values per channel"),
        ("conv 1x6x6 8-8 k3 10", {"inputs": normal(100, 1, 6, 6)}, "BatchNorm norm2 sees only 400 values per channel"),
        ("conv 1x6x6 8-8 k3 10", {"examples": 250}, None),
        ("conv 1x6x6 8-8 k3 10 vanilla", {"examples": 100}, None),
        # after a norm and an odd activation two examples share little
        (normed(nn.Tanh()), {"inputs": normal(20, 6)}, "a lower bound"),
        (normed(), {"inputs": normal(20, 6)}, None),
        ("fc 6-8-2 tanh", {"examples": 999}, "a lower bound"),
        ("fc 6-8-2 tanh", {"examples": 1000}, None),
    ],
)
def test_too_few_examples_are_noted(network: Any, options: dict[str, Any], caution: str | None) -> None:
    results = [note for note in predict(network, **options).notes if "per channel" in note or "lower bound" in note]
    assert [note.partition(":")[0] for note in results] == ([] if caution is None else [caution])


def test_a_norm_that_limits_the_rate_is_called_by_its_name() -> None:
    model = normed()
    model[3].requires_grad_(False)
    assert ": 1 limits the rate" in str(predict(model))


def test_the_curvature_of_cross_entropy_is_that_of_the_own_outputs() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(30, 400), nn.ReLU(), nn.Linear(400, 5)).double()
    with torch.no_grad():
        model[2].bias.copy_(torch.tensor([2.0, 0.0, 0.0, 0.0, -1.0]))  # classes that are not equally likely
    inputs = torch.randn(80, 30, dtype=torch.float64)
    p = model(inputs).detach().softmax(1)
    mean = torch.stack([row.diag() - torch.outer(row, row) for row in p]).mean(0)
    expected = float(torch.linalg.eigvalsh(mean)[-1]) * predict(model, inputs=inputs).lambda_max
    prediction = predict(model, inputs=inputs, loss="cross-entropy").lambda_max
    assert prediction == pytest.approx(expected, rel=1e-10)
    problem = wc.Problem(model, nn.CrossEntropyLoss(), (inputs, torch.arange(80) % 5))
    measured = float(wc.eigenvalues(wc.GGN(problem)).values[-1])
    assert prediction == pytest.approx(measured, rel=0.15)


# problems


def classification(batchnorm: str = "batch", batches: int = 1) -> wc.Problem:
    torch.manual_seed(0)
    x, y = torch.randn(30, 6), torch.randint(0, 2, (30,))
    data = [(x[k::batches], y[k::batches]) for k in range(batches)]
    return wc.Problem(normed(), nn.CrossEntropyLoss(), data, batchnorm=batchnorm)


@pytest.mark.parametrize("batches", [1, 3])
@pytest.mark.parametrize(("batchnorm", "variant"), [("batch", "batch"), ("running", "detached")])
def test_a_problem_says_its_inputs_loss_and_variant(batchnorm: str, variant: Variant, batches: int) -> None:
    """Only the first of several batches is used."""
    problem = classification(batchnorm, batches)
    prediction = predict(problem, momentum=0.5)
    by_hand = predict(problem.model, None, 0.5, variant, inputs=problem.batches[0][0], loss="cross-entropy")
    assert (prediction.variant, prediction.loss) == (variant, "cross-entropy")
    assert prediction.rows() == by_hand.rows()
    assert (prediction.cost.forwards, prediction.cost.backwards) == (1.0, 0.0)
    assert ("only the first batch is used" in prediction.notes) == (batches > 1)


def test_what_is_given_with_a_problem_counts() -> None:
    problem, x = classification(), normal(9, 6)
    prediction = predict(problem, 0.5, variant="detached", inputs=x, loss="mse")
    assert prediction.rows() == predict(problem.model, 0.5, variant="detached", inputs=x, loss="mse").rows()
    assert prediction.cost.forwards == 0
    assert predict(problem, inputs=x).rows() == predict(problem.model, inputs=x, loss="cross-entropy").rows()


@pytest.mark.parametrize(
    ("loss", "name"),
    [
        (nn.MSELoss(), "mse"),
        (lambda f, y: (f - y).square().sum(1).mean() / 2, "half-squared"),
        (lambda f, y: 7 * (f - y).square().mean(), None),
        (nn.L1Loss(), None),
    ],
)
def test_the_loss_of_a_problem_is_recognized(loss: Any, name: str | None) -> None:
    problem = wc.Problem(nn.Linear(6, 3), loss, (normal(9, 6).float(), normal(9, 3, seed=1).float()))
    if name is not None:
        assert predict(problem).loss == name
        return
    with pytest.raises(Unsupported, match="cross-entropy or squared error"):
        predict(problem)


def test_a_problem_with_two_inputs_is_refused() -> None:
    problem = wc.Problem(nn.Bilinear(2, 3, 1), nn.MSELoss(), ((torch.ones(4, 2), torch.ones(4, 3)), torch.zeros(4, 1)))
    with pytest.raises(Unsupported, match="one tensor as input"):
        predict(problem)
