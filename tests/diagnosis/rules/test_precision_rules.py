"""Half precision: overflow, underflow, rounding and lost steps are named with their layer; sound set-ups are not."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from rule_cases import perceptron, table
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import SGD

import wellcond as wc
from wellcond.diagnosis.evidence import Evidence
from wellcond.diagnosis.finding import Finding
from wellcond.diagnosis.inspection.inspect import inspect
from wellcond.diagnosis.inspection.inspection import Inspection
from wellcond.diagnosis.inspection.rounding import Rounded, Rounding
from wellcond.diagnosis.judge import judged
from wellcond.diagnosis.rule import RULES

X, Y = table()


def scaler(scale: float = 2.0**16) -> torch.amp.GradScaler:
    return torch.amp.GradScaler("cpu", init_scale=scale)


def findings(model: nn.Module, loss: Any = F.cross_entropy, **options: Any) -> tuple[Finding, ...]:
    """Those of an inspection in the precision of training; the others are among the consequences of one."""
    of = wc.Problem(model, loss, list(zip(X.split(32), Y.split(32), strict=True)), **options)
    with of.as_trained():
        inspection = inspect(of)
    assert not inspection.failures
    return judged(Evidence(of, None, inspection))


def first(*args: Any, **options: Any) -> Finding:
    return findings(*args, **options)[0]


def rules(*args: Any, **options: Any) -> list[str]:
    """Of all findings, also of those that another one explains."""
    roots = findings(*args, **options)
    return [each.rule for root in roots for each in (root, *root.consequences)]


class Step(nn.Module):
    """A function as a layer."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


def with_step(function: Callable[[Tensor], Tensor]) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(10, 16), Step(function), nn.LayerNorm(16), nn.Linear(16, 4))


# what goes beyond the range


@pytest.mark.parametrize("has_scaler", [False, True])
def test_a_layer_beyond_float16_is_named_with_its_size(has_scaler: bool) -> None:
    model = nn.Sequential(nn.Linear(10, 16), nn.ReLU(), nn.Linear(16, 16), nn.LayerNorm(16), nn.Linear(16, 4))
    with torch.no_grad():
        model[0].weight.mul_(1e3)
        model[2].weight.mul_(1e3)
    finding = first(model, autocast=torch.float16, scaler=scaler() if has_scaler else None)
    assert (finding.rule, finding.layer, finding.severity) == ("half-overflow", "2", "severe")
    assert "layer 2 is the first to return NaN or infinity in float16, which ends at 65,504" in finding.summary
    assert finding.evidence["largest number in float32"] > 65504
    assert "torch.bfloat16" in finding.remedy


def test_code_just_before_a_layer_is_named() -> None:
    class Squares(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.norm, self.head = nn.Linear(10, 16), nn.LayerNorm(16), nn.Linear(16, 4)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.norm(self.a(x) ** 2 * 3e5))

    finding = first(Squares(), autocast=torch.float16)
    assert (finding.rule, finding.layer) == ("half-overflow", "norm")
    assert "the code just before norm is the first" in finding.summary


def test_a_number_inside_of_a_layer_that_is_rounded_to_zero_is_told_from_one_that_is_too_large() -> None:
    """0 / 0 in float16, which has no 10⁻⁸, and one or minus one in float32."""
    finding = first(with_step(lambda h: (h * 1e-8).half() / (h.detach().abs().half() * 1e-8)), autocast=torch.float16)
    assert (finding.rule, finding.layer) == ("half-overflow", "1")
    assert "is rounded to zero" in finding.summary
    assert "an eps below 6e-8 is zero in float16" in finding.remedy


def test_a_loss_that_is_infinite_in_float16_alone() -> None:
    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        p = outputs.softmax(1).half()
        return -(p * 1e-7 * 1e-2).log().float().gather(1, targets[:, None]).mean()

    finding = first(perceptron(), loss, autocast=torch.float16)
    assert (finding.rule, finding.layer) == ("half-overflow", "")
    assert finding.summary.startswith("the loss is inf in float16 although all layers are finite")
    assert "in float32" in finding.remedy


@pytest.mark.parametrize(("scale", "words"), [(None, "a loss that is not scaled"), (2.0**16, "every loss scale")])
def test_a_gradient_beyond_float16_at_every_scale(scale: float | None, words: str) -> None:
    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        return 1e8 * F.cross_entropy(outputs.float(), targets)

    of = None if scale is None else scaler(scale)
    finding = first(perceptron(), loss, autocast=torch.float16, scaler=of)
    assert (finding.rule, finding.layer, finding.severity) == ("half-overflow", "4", "severe")
    assert words in finding.summary


def test_the_same_in_bfloat16_or_float32_is_no_overflow() -> None:
    def large() -> nn.Module:
        return with_step(lambda h: h * 1e5)

    assert rules(large(), autocast=torch.float16)[0] == "half-overflow"
    assert "half-overflow" not in rules(large(), autocast=torch.bfloat16)
    assert "half-overflow" not in rules(large())


def test_nan_in_float32_too_is_no_fault_of_half_precision() -> None:
    assert "half-overflow" not in rules(with_step(lambda h: h.log()), autocast=torch.float16)
    assert first(with_step(lambda h: h.log()), autocast=torch.float16).rule == "non-finite"


# what falls below it


def tiny(outputs: Tensor, targets: Tensor) -> Tensor:
    return 1e-6 * F.cross_entropy(outputs.float(), targets)


def test_gradients_that_vanish_without_a_scale_and_with_one_that_is_too_low() -> None:
    finding = first(perceptron(), tiny, autocast=torch.float16)
    assert (finding.rule, finding.severity) == ("gradient-underflow", "severe")
    assert "without a loss scale" in finding.summary
    assert "GradScaler()" in finding.remedy
    assert finding.evidence["share that is zero"] > 0.5
    finding = first(perceptron(), tiny, autocast=torch.float16, scaler=scaler(2.0))
    assert finding.rule == "gradient-underflow"
    assert "at a loss scale of 2" in finding.summary
    assert "65536" in finding.remedy


@pytest.mark.parametrize("options", [{"scaler": scaler(2.0**20)}, {"autocast": torch.bfloat16}, {"autocast": None}])
def test_gradients_do_not_vanish_with_a_scale_or_more_range(options: dict[str, Any]) -> None:
    assert "gradient-underflow" not in rules(perceptron(), tiny, **({"autocast": torch.float16} | options))


# what is rounded


def moments(x: Tensor) -> Tensor:
    """A norm of one's own, by E x² − (E x)²: a difference of large numbers."""
    mean = x.mean(-1, keepdim=True)
    variance = (x * x).mean(-1, keepdim=True) - mean * mean
    return (x - mean) / (variance.clamp_min(0) + 1e-5).sqrt()


def plain_softmax(x: Tensor) -> Tensor:
    """A softmax by hand, of logits that are far from zero."""
    weights = (x + 300.0 - (x + 300.0).amax(-1, keepdim=True)).exp()
    return 16 * weights / weights.sum(-1, keepdim=True)


@pytest.mark.parametrize(
    "function", [lambda h: moments(h + 30.0), lambda h: plain_softmax(h)], ids=["layer_norm", "softmax"]
)
def test_a_norm_and_a_softmax_in_bfloat16_are_named_and_in_float32_are_not(function: Any) -> None:
    finding = first(with_step(function), autocast=torch.bfloat16)
    assert (finding.rule, finding.layer) == ("rounding-error", "1")
    assert "in bfloat16 layer 1 differs from float32" in finding.summary
    assert "bfloat16 keeps 8 bits" in finding.reason
    assert "above 256" in finding.reason
    assert "enabled=False" in finding.remedy
    assert "rounding-error" not in rules(with_step(lambda h: function(h.float())), autocast=torch.bfloat16)


def test_models_that_draw_are_not_compared() -> None:
    model = nn.Sequential(nn.Linear(10, 16), Step(lambda h: moments(h + 30.0) + 0.1 * torch.randn(1)), nn.Linear(16, 4))
    assert "rounding-error" not in rules(model, autocast=torch.bfloat16)


# limits, by made-up numbers

LAYER = Rounded("a", "Linear", torch.bfloat16, 0.004, 0.005, True, True, 1.0)


def made(**changes: Any) -> Rounding:
    usual = Rounding(torch.bfloat16, None, (LAYER,), 1.0, 1.0, False, gradient_error=0.01)
    return replace(usual, **changes)


def said(rule: str, of: Rounding | None) -> list[Finding]:
    evidence = Evidence(wc.Problem(perceptron(), F.cross_entropy, (X, Y)), None, Inspection(rounding=of))
    return [finding for each in RULES[rule] for finding in each.judge(evidence)]


@pytest.mark.parametrize("rule", ["half-overflow", "gradient-underflow", "rounding-error"])
def test_without_half_precision_or_with_ordinary_rounding_nothing_is_said(rule: str) -> None:
    assert said(rule, None) == []
    assert said(rule, made()) == []
    assert said(rule, made(dtype=torch.float16, scale=1024.0)) == []


@pytest.mark.parametrize(
    ("lost", "wrong", "severity"), [(0.19, 0.9, None), (0.3, 0.05, None), (0.3, 0.2, "warning"), (0.6, 0.9, "severe")]
)
def test_underflow_counts_where_the_gradient_is_wrong(lost: float, wrong: float, severity: str | None) -> None:
    of = made(dtype=torch.float16, lost=lost, most_lost=("a.weight", 1.0), gradient_error=wrong)
    assert [(f.severity, f.layer) for f in said("gradient-underflow", of)] == ([(severity, "a")] if severity else [])
    assert said("gradient-underflow", replace(of, dtype=torch.bfloat16)) == []  # which has the range of float32


@pytest.mark.parametrize(
    ("before", "after", "wrong", "severity"),
    [
        (0.01, 0.25, 0.9, None),  # below a warning
        (0.06, 0.4, 0.9, None),  # no jump
        (0.01, 0.4, 0.9, "warning"),
        (0.01, 0.7, 0.9, "severe"),
        (0.01, 0.7, 0.2, "warning"),  # the gradient is right
    ],
)
def test_rounding_counts_where_it_jumps(before: float, after: float, wrong: float, severity: str | None) -> None:
    layers = (
        LAYER,
        replace(LAYER, layer="b", before=before, after=after),
        replace(LAYER, layer="c", before=after, after=after),
    )
    places = [(f.severity, f.layer) for f in said("rounding-error", made(layers=layers, gradient_error=wrong))]
    assert places == ([(severity, "b")] if severity else [])


def test_rounding_of_code_between_layers_and_of_the_loss() -> None:
    between = made(layers=(LAYER, replace(LAYER, layer="b", before=0.7, after=0.7)), gradient_error=0.9)
    (finding,) = said("rounding-error", between)
    assert (finding.layer, finding.severity) == ("b", "severe")
    assert "the code just before b differs from float32 by 70%" in finding.summary
    (finding,) = said("rounding-error", made(loss=1.6, gradient_error=0.9))
    assert (finding.layer, finding.severity) == ("", "severe")
    assert "the loss differs from float32 by 60%" in finding.summary
    (finding,) = said("rounding-error", made(loss=1.2, gradient_error=None))
    assert finding.severity == "warning"
    assert finding.evidence["error of the gradient"] == "not known"


def test_what_overflows_is_left_to_that_rule() -> None:
    layers = LAYER, replace(LAYER, layer="b", after=0.9, is_finite=False, has_finite_input=True, largest=1e39)
    of = made(layers=layers, loss=math.nan)
    assert said("rounding-error", of) == []
    (finding,) = said("half-overflow", of)
    assert (finding.layer, finding.severity) == ("b", "severe")
    assert said("half-overflow", replace(of, reference_loss=math.inf)) == []


# weights in half precision


@pytest.mark.slow
def test_lost_steps_name_the_share_the_weights_and_the_cure() -> None:
    model = perceptron().bfloat16()
    data = list(zip(X.bfloat16().split(32), Y.split(32), strict=True))
    of = wc.Problem(model, lambda f, y: F.cross_entropy(f.float(), y), data)
    finding = wc.diagnose(of, SGD(model.parameters(), 1e-3)).findings[0]
    assert (finding.rule, finding.severity) == ("lost-updates", "severe")
    share = finding.evidence["share of weights that stay"]
    assert f"leave {share:.0%} of the weights as they were" in finding.summary
    assert finding.layer in finding.summary
    assert "model.float()" in finding.remedy
    assert "autocast" in finding.remedy


@pytest.mark.slow
def test_a_scaler_with_weights_in_float16_is_named() -> None:
    model = perceptron().half()
    data = list(zip(X.half().split(32), Y.split(32), strict=True))
    with pytest.raises(ValueError, match="unscale FP16"):
        a_step(model, data[0], scaler())
    of = wc.Problem(model, lambda f, y: F.cross_entropy(f.float(), y), data, scaler=scaler())
    finding = wc.diagnose(of, SGD(model.parameters(), 0.1)).findings[0]
    assert (finding.rule, finding.layer, finding.severity) == ("model-fails", "0", "severe")
    assert "0.weight is float16, and GradScaler refuses its gradient" in finding.summary
    exec(finding.remedy, {"model": model})
    a_step(model, (X[:32], Y[:32]), scaler())


def a_step(model: nn.Module, batch: tuple[Tensor, Tensor], of: torch.amp.GradScaler) -> None:
    """As in a script."""
    optimizer = SGD(model.parameters(), 0.1)
    of.scale(F.cross_entropy(model(batch[0]).float(), batch[1])).backward()
    of.step(optimizer)
