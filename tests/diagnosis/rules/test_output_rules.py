"""Outputs against the loss: every mismatch is found at its layer, and its healthy twin is silent."""

from __future__ import annotations

import math

import pytest
import torch
from rule_cases import CLASSES, N, findings, perceptron, severe, table
from torch import Tensor, nn
from torch.nn import functional as F

MISMATCH = "output-loss-mismatch"


@pytest.mark.parametrize("tail", [nn.Softmax(1), nn.Sigmoid(), nn.Tanh(), nn.ReLU()])
def test_a_squashed_logit_is_found_at_the_module_that_squashes(tail: nn.Module) -> None:
    finding = findings(perceptron(tail), nn.CrossEntropyLoss(), table())[MISMATCH]
    assert (finding.severity, finding.layer) == ("severe", "5")


def test_the_least_loss_behind_a_softmax_is_that_of_a_sure_and_right_one() -> None:
    """Probabilities 1 and 0 as logits; the bound is reached there."""
    finding = findings(perceptron(nn.Softmax(1)), nn.CrossEntropyLoss(), table())[MISMATCH]
    sure = F.cross_entropy(F.one_hot(torch.arange(CLASSES)).float(), torch.arange(CLASSES))
    assert finding.evidence["least possible loss"] == pytest.approx(float(sure), rel=1e-5)


def test_a_softmax_in_forward_is_seen_without_a_module() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = perceptron()

        def forward(self, x: Tensor) -> Tensor:
            return self.body(x).softmax(-1).view(N, CLASSES)

    assert findings(Model(), F.cross_entropy, table())[MISMATCH].layer == "body.4"


@pytest.mark.parametrize(
    ("tail", "loss"),
    [
        (nn.LogSoftmax(1), nn.NLLLoss()),
        (nn.Identity(), nn.CrossEntropyLoss()),
        (nn.LogSoftmax(1), nn.CrossEntropyLoss()),
        (nn.Softmax(1), lambda p, y: F.nll_loss(p.log(), y)),
    ],
)
def test_fitting_outputs_are_silent(tail: nn.Module, loss: nn.Module) -> None:
    assert severe(perceptron(tail), loss, table()) == []


@pytest.mark.parametrize("tail", [nn.Identity(), nn.Softmax(1)])
def test_nll_of_what_is_no_log_probability(tail: nn.Module) -> None:
    assert severe(perceptron(tail), nn.NLLLoss(), table())[0] == MISMATCH


def test_a_softmax_over_the_examples() -> None:
    finding = findings(perceptron(nn.LogSoftmax(0)), nn.NLLLoss(), table())[MISMATCH]
    assert finding.severity == "severe"
    assert "dimension 0" in finding.summary


def test_a_softmax_over_one_unit() -> None:
    x, y = table()
    target = (y > 1).float()[:, None]
    by_rule = findings(perceptron(nn.Softmax(1), outputs=1), nn.BCELoss(), (x, target))
    assert "one unit" in by_rule[MISMATCH].summary
    assert severe(perceptron(nn.Sigmoid(), outputs=1), nn.BCELoss(), (x, target)) == []


def test_broadcast_targets_are_proven_by_the_loss_itself() -> None:
    x, _ = table()
    y = x.sum(1)
    model = perceptron(outputs=1)
    finding = findings(model, nn.MSELoss(), (x, y))[MISMATCH]
    right = float(F.mse_loss(model(x)[:, 0], y))
    assert finding.evidence["loss in one shape"] == pytest.approx(right, rel=1e-5)
    assert severe(model, nn.MSELoss(), (x, y[:, None])) == []
    assert severe(model, lambda f, t: F.mse_loss(f.squeeze(1), t), (x, y)) == []


@pytest.mark.parametrize(("tail", "low", "high"), [(nn.Sigmoid(), 0, 1), (nn.Tanh(), -1, 1), (nn.ReLU(), 0, 5)])
def test_targets_out_of_reach(tail: nn.Module, low: float, high: float) -> None:
    x, _ = table()
    y = torch.linspace(low, high, N)[:, None]
    assert severe(perceptron(tail, outputs=1), nn.MSELoss(), (x, y)) == []
    assert severe(perceptron(tail, outputs=1), nn.MSELoss(), (x, y - 2)) == [MISMATCH]


def test_labels_of_minus_one_under_a_binary_cross_entropy() -> None:
    x, y = table()
    labels = torch.where(y > 1, 1.0, -1.0)[:, None]
    assert severe(perceptron(outputs=1), nn.BCEWithLogitsLoss(), (x, labels)) == [MISMATCH]
    assert severe(perceptron(outputs=1), nn.BCEWithLogitsLoss(), (x, labels.clamp_min(0))) == []


def test_a_loss_with_the_wrong_sign() -> None:
    assert severe(perceptron(), lambda f, y: -F.cross_entropy(f, y), table()) == [MISMATCH]


def test_a_loss_that_raises_is_a_finding() -> None:
    x, y = table()
    target = (y > 1).float()[:, None]
    finding = findings(perceptron(outputs=1), nn.BCELoss(), (3 * x, target))[MISMATCH]
    assert finding.severity == "severe"
    assert "between 0 and 1" in finding.summary


def test_a_logarithm_of_raw_outputs() -> None:
    by_rule = findings(perceptron(), lambda f, y: F.nll_loss(f.log(), y), table())
    assert by_rule[MISMATCH].severity == "severe"
    assert by_rule["non-finite"].severity == "severe"


def test_saturated_and_wrong_is_found_and_saturated_and_right_is_not() -> None:
    x, _ = table()
    wrong = perceptron(outputs=2)
    with torch.no_grad():
        wrong[-1].weight *= 300
    y = wrong(x).argmin(1)
    assert "saturated-output" in findings(wrong, nn.CrossEntropyLoss(), (x, y))
    assert "saturated-output" not in findings(wrong, nn.CrossEntropyLoss(), (x, 1 - y))


def test_the_best_constant_of_a_classifier_is_the_entropy_of_its_labels() -> None:
    from rule_cases import seen

    x, y = table()
    inspection, _ = seen(perceptron(), nn.CrossEntropyLoss(), (x, y))
    p = torch.bincount(y) / len(y)
    assert inspection.output is not None
    assert inspection.output.best_constant == pytest.approx(-float((p * p.log()).sum()), rel=1e-5)
    assert inspection.output.perfect_loss == pytest.approx(
        math.log1p((CLASSES - 1) * 0.01), rel=1e-4
    )  # odds of 100 to 1


def test_a_relu_before_the_last_softmax() -> None:
    finding = findings(perceptron(nn.ReLU(), nn.LogSoftmax(1)), nn.NLLLoss(), table())[MISMATCH]
    assert (finding.severity, finding.layer) == ("severe", "4")


def test_a_divergence_of_probabilities() -> None:
    x, y = table()
    target = 0.9 * F.one_hot(y, CLASSES).float() + 0.025
    loss = nn.KLDivLoss(reduction="batchmean")
    assert severe(perceptron(nn.Softmax(1)), loss, (x, target)) == [MISMATCH]
    assert severe(perceptron(nn.LogSoftmax(1)), loss, (x, target)) == []


def test_targets_that_the_loss_reshapes_itself_are_not_broadcast() -> None:
    assert severe(perceptron(outputs=1), lambda f, y: F.mse_loss(f, y.float()[:, None]), table()) == []


@pytest.mark.parametrize(
    "loss",
    [
        nn.PoissonNLLLoss(),
        lambda f, y: (f * (y - 3)).mean(),
        lambda f, y: F.gaussian_nll_loss(f, y, F.softplus(f) + 1e-3),
    ],
)
def test_losses_of_other_kinds_are_silent(loss: nn.Module) -> None:
    x, _ = table()
    counts = torch.poisson(torch.full((N, 1), 3.0), generator=torch.Generator().manual_seed(0))
    assert severe(perceptron(outputs=1), loss, (x, counts)) == []


def test_labels_that_are_probabilities() -> None:
    x, _ = table()
    assert severe(perceptron(), nn.CrossEntropyLoss(), (x, x[:, :CLASSES].softmax(1))) == []


@pytest.mark.parametrize("loss", [nn.CrossEntropyLoss(reduction="none"), lambda f, y: -F.log_softmax(f, 1)[:, 0]])
def test_a_loss_of_several_numbers(loss: nn.Module) -> None:
    finding = findings(perceptron(), loss, table())[MISMATCH]
    assert (finding.severity, finding.evidence["shape of the loss"]) == ("severe", f"[{N}]")


@pytest.mark.parametrize("tail", [nn.Identity(), nn.LogSoftmax(1)])
def test_few_examples_of_many_classes_start_at_the_loss_of_equal_probabilities(tail: nn.Module) -> None:
    """A constant that fits 8 labels of 1,000 classes has log 8, a fresh network log 1000."""
    x, _ = table()
    y = torch.arange(8) * 100
    loss = nn.CrossEntropyLoss() if isinstance(tail, nn.Identity) else nn.NLLLoss()
    assert "bad-initialisation" not in findings(perceptron(tail, outputs=1000), loss, (x[:8], y))
    large = perceptron(tail, outputs=1000)
    with torch.no_grad():
        large[4].weight *= 100
    finding = findings(large, loss, (x[:8], y))["bad-initialisation"]
    assert finding.severity == "severe"


def test_a_trained_network_that_meets_other_labels_is_not_badly_initialized() -> None:
    x, y = table()
    model = perceptron(width=64)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(300):
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    others = (y + 1) % CLASSES
    assert float(F.cross_entropy(model(x), others)) > 3 * math.log(CLASSES) + 3
    assert "bad-initialisation" not in findings(model, nn.CrossEntropyLoss(), (x, others))
    with torch.no_grad():  # a new head that is too large is one
        nn.init.normal_(model[4].weight, std=10)
    assert findings(model, nn.CrossEntropyLoss(), (x, others))["bad-initialisation"].layer == "4"


def test_few_labels_of_many_classes_do_not_make_a_loss_of_the_wrong_sign() -> None:
    """A constant that fits four labels has log 4; perfect outputs are better, whatever the number of classes."""
    x, _ = table()
    assert severe(perceptron(outputs=1000), nn.CrossEntropyLoss(), (x[:4], torch.arange(4))) == []
    finding = findings(perceptron(outputs=1000), lambda f, y: -F.cross_entropy(f, y), (x[:4], torch.arange(4)))
    assert "return -" in finding[MISMATCH].remedy
