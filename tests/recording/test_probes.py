"""What probes measure during a run equals what the library measures when it is asked."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

import wellcond as wc
from wellcond.recording.allowance import Allowance
from wellcond.recording.probes.conditioning import ConditioningProbe
from wellcond.recording.probes.curvature import CurvatureProbe
from wellcond.recording.probes.noise import NoiseScale
from wellcond.recording.probes.probing import CURVATURE, GRADIENT_OF_FEW, INSPECTION, Probing, probe_parts
from wellcond.recording.probes.shift import ShiftProbe
from wellcond.recording.probes.subject import Subject
from wellcond.recording.watching.layout import Layout
from wellcond.results import Row


def small() -> tuple[nn.Sequential, tuple[torch.Tensor, torch.Tensor]]:
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 2)).double()
    return model, (torch.randn(20, 3).double(), torch.randint(0, 2, (20,)))


def value(rows: list[Row], quantity: str, layer: str = "") -> float:
    return next(row.value for row in rows if row.quantity == quantity and row.layer == layer)


@pytest.mark.slow
@pytest.mark.parametrize(
    "make",
    [
        lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.01),
        lambda p: torch.optim.Adam(p, lr=0.01, weight_decay=0.01),
        lambda p: torch.optim.AdamW(p, lr=0.01),
    ],
    ids=["SGD", "Adam", "AdamW"],
)
def test_the_warm_start_converges_to_the_limit_of_the_optimizer(make) -> None:
    model, batch = small()
    optimizer = make(model.parameters())
    for _ in range(3):  # so that it has a state
        nn.functional.cross_entropy(model(batch[0]), batch[1]).backward()
        optimizer.step()
        optimizer.zero_grad()
    problem = wc.Problem(model, nn.CrossEntropyLoss(), [batch])
    probe = CurvatureProbe([optimizer])
    runs = [probe.run(problem, step, products=2) for step in range(1, 81)]
    errors = [value(rows, "hessian_lambda_max_error") for rows in runs]
    dense = torch.linalg.eigvalsh(wc.Hessian(problem).dense())[-1]
    tops = [value(rows, "hessian_lambda_max") for rows in runs]
    assert tops[-1] == pytest.approx(float(dense), rel=1e-6)
    assert all(top <= float(dense) * (1 + 1e-9) for top in tops)  # a Rayleigh quotient
    # within its residual of some eigenvalue
    every = torch.linalg.eigvalsh(wc.Hessian(problem).dense())
    assert all(float((every - top).abs().min()) <= error + 1e-9 for top, error in zip(tops, errors, strict=True))
    limit = wc.max_lr(problem, optimizer, tol=1e-6)
    assert value(runs[-1], "max_lr") == pytest.approx(limit.value, rel=1e-4)
    assert value(runs[-1], "max_lr_low") <= value(runs[-1], "max_lr") <= value(runs[-1], "max_lr_high")


@pytest.mark.slow
def test_one_product_in_each_turn_converges_too() -> None:
    model, batch = small()
    problem = wc.Problem(model, nn.CrossEntropyLoss(), [batch])
    probe = CurvatureProbe([torch.optim.SGD(model.parameters(), lr=0.1)])
    rows = [probe.run(problem, step, products=1) for step in range(1, 81)][-1]
    dense = torch.linalg.eigvalsh(wc.Hessian(problem).dense())[-1]
    assert value(rows, "hessian_lambda_max") == pytest.approx(float(dense), rel=1e-5)


def test_several_products_are_lanczos() -> None:
    model, batch = small()
    problem = wc.Problem(model, nn.CrossEntropyLoss(), [batch])
    rows = CurvatureProbe([torch.optim.SGD(model.parameters(), lr=0.1)]).run(problem, 1, products=25)
    dense = torch.linalg.eigvalsh(wc.Hessian(problem).dense())[-1]
    assert value(rows, "hessian_lambda_max") == pytest.approx(float(dense), rel=1e-9)
    assert value(rows, "max_lr") == pytest.approx(2 / float(dense), rel=1e-9)


def test_the_walk_is_that_of_the_landscape() -> None:
    model, batch = small()
    problem = wc.Problem(model, nn.CrossEntropyLoss(), [batch])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    rows = CurvatureProbe([optimizer]).run(problem, 1, products=1)
    walk = wc.landscape(problem, lr=0.1, span=(1.0, 4.0), steps=2)
    assert value(rows, "loss_least") == pytest.approx(walk.loss_range[0], rel=1e-12)
    assert value(rows, "loss_greatest") == pytest.approx(walk.loss_range[1], rel=1e-12)
    assert value(rows, "beta") == pytest.approx(float(walk.smoothness[0]), rel=1e-9)


def test_an_optimizer_without_a_known_limit_still_has_a_hessian() -> None:
    model, batch = small()
    probe = CurvatureProbe([torch.optim.Adadelta(model.parameters())])
    rows = probe.run(wc.Problem(model, nn.CrossEntropyLoss(), [batch]), 1, products=1)
    assert not any(row.quantity == "max_lr" for row in rows)
    assert value(rows, "hessian_lambda_max") > 0
    assert "Adadelta" in probe.note
    assert "\n" not in probe.note


def test_shift_is_that_of_the_step_that_was_taken() -> None:
    model, batch = small()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    problem = wc.Problem(model, nn.CrossEntropyLoss(), [batch])
    expected = wc.covariate_shift(problem, optimizer)
    before = {p: p.detach().clone() for p in model.parameters()}
    nn.functional.cross_entropy(model(batch[0]), batch[1]).backward()
    optimizer.step()
    probe = ShiftProbe(Layout(model))
    rows = [row for _ in range(3) for row in probe.run(problem, 1, before, ["0", "2", "4"])]
    assert [row.layer for row in rows if row.quantity == "shift_cosine"] == ["2", "4", "2"]
    for layer in ("2", "4"):
        assert value(rows, "shift_difference", layer) == pytest.approx(expected[layer].difference, rel=1e-9)
        assert value(rows, "shift_cosine", layer) == pytest.approx(expected[layer].cosine, rel=1e-9)


def test_conditioning_takes_layers_in_turn() -> None:
    model, batch = small()
    problem = wc.Problem(model, nn.CrossEntropyLoss(), [batch])
    expected, probe = wc.conditioning(problem), ConditioningProbe()
    rows = [row for _ in range(2) for row in probe.run(problem, 1, 2)]
    assert list(dict.fromkeys(row.layer for row in rows)) == ["0", "2", "4"]
    for layer in ("0", "2", "4"):
        assert value(rows, "input_lambda_max", layer) == pytest.approx(expected[layer].x.lambda_max)
        assert value(rows, "gradient_kappa_all", layer) == pytest.approx(expected[layer].g.kappa[1.0], nan_ok=True)


def test_the_noise_scale_of_a_linear_model() -> None:
    """Gradients of single examples are drawn with |G|² = 1 and tr Σ = 30, so that the scale is 30 examples."""
    generator = torch.Generator().manual_seed(0)
    noise, scales = NoiseScale(), []
    mean = torch.zeros(30)
    mean[0] = 1.0
    for step in range(1, 400):
        small, large = (mean + torch.randn(n, 30, generator=generator).mean(0) for n in (8, 128))
        noise.expect(step, float(small.square().sum()), 8, 128)
        scales += [row.value for row in noise.rows({step: float(large.square().sum())})]
    assert len(scales) == 399
    finite = torch.tensor([scale for scale in scales if math.isfinite(scale)])
    assert float(finite.median()) == pytest.approx(30, rel=0.1)


def test_a_batch_that_cannot_be_cut_is_taken_whole() -> None:
    class Pairs(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(2, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if len(x) != 16:
                raise ValueError("needs all of them")
            return self.layer(x)

    subject = Subject(Pairs(), nn.MSELoss())
    batch = torch.randn(16, 2), torch.randn(16, 1)
    assert len(subject.problem(batch, 4).batches[0][0]) == 16
    assert len(Subject(nn.Linear(2, 1), nn.MSELoss()).problem(batch, 4).batches[0][0]) == 4


# networks whose examples depend on each other


def normalized() -> tuple[nn.Sequential, tuple[torch.Tensor, torch.Tensor]]:
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5), nn.Tanh(), nn.Linear(5, 2)).double()
    return model, (torch.randn(64, 3).double(), torch.randint(0, 2, (64,)))


def probing_of(model: nn.Module) -> tuple[Probing, Allowance]:
    allowance = Allowance(1.0, probe_parts())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return Probing(model, nn.CrossEntropyLoss(), [optimizer], Layout(model), allowance), allowance


def largest(model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> float:
    dense = wc.Hessian(wc.Problem(model, nn.CrossEntropyLoss(), [batch])).dense()
    return float(torch.linalg.eigvalsh(dense)[-1])


def gradient_norm(model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> float:
    loss = nn.functional.cross_entropy(model(batch[0]), batch[1])
    return math.hypot(*(float(g.norm()) for g in torch.autograd.grad(loss, list(model.parameters()))))


def test_curvature_of_a_network_with_batchnorm_is_that_of_the_whole_batch() -> None:
    model, batch = normalized()
    before = {name: t.clone() for name, t in model.state_dict().items()}
    probing, _ = probing_of(model)
    rows = probing.run(CURVATURE, 1, batch, {}, [])
    assert value(rows, "probed_examples") == 64
    assert all(torch.equal(before[name], t) for name, t in model.state_dict().items())
    assert probing.gradient_norm == pytest.approx(gradient_norm(model, batch), rel=1e-9)
    probing.load_state_dict(probing.state_dict() | {"levels": {CURVATURE: 5}})  # six products in a turn
    rows = [probing.run(CURVATURE, step, batch, {}, []) for step in range(2, 12)][-1]
    whole, few = largest(model, batch), largest(model, (batch[0][:8], batch[1][:8]))
    assert value(rows, "hessian_lambda_max") == pytest.approx(whole, rel=1e-6)
    assert few > 1.3 * whole  # which is why


@pytest.mark.parametrize("part", [CURVATURE, INSPECTION])
def test_only_where_examples_depend_on_each_other_is_the_whole_batch_probed(part: str) -> None:
    model, batch = normalized()
    for norm, examples in ((nn.BatchNorm1d(5), 64), (nn.LayerNorm(5), 8), (nn.BatchNorm1d(5).eval(), 64)):
        model[1] = norm.double()
        probing, _ = probing_of(model)
        rows = probing.run(part, 1, batch, {}, [])
        assert value(rows, "probed_examples") == probing.examples == examples
        if part == CURVATURE:
            model.train()
            first = batch[0][:examples], batch[1][:examples]
            assert probing.gradient_norm == pytest.approx(gradient_norm(model, first), rel=1e-9)


def test_the_gradient_of_few_examples_is_measured_where_the_curvature_is_that_of_all() -> None:
    """It shows the noise; elsewhere the gradient of the curvature's examples does."""
    model, batch = normalized()
    probing, allowance = probing_of(model)
    probing.run(CURVATURE, 1, batch, {}, [])
    assert allowance.parts[GRADIENT_OF_FEW].is_open
    probing.run(GRADIENT_OF_FEW, 2, batch, {}, [])
    assert probing.examples == 8
    few = batch[0][:8], batch[1][:8]
    assert probing.gradient_norm == pytest.approx(gradient_norm(model, few), rel=1e-9)
    plain, examples = small()
    probing, allowance = probing_of(plain)
    probing.run(CURVATURE, 1, examples, {}, [])
    assert not allowance.parts[GRADIENT_OF_FEW].is_open
    assert probing.gradient_norm == probing.curvature.gradient_norm > 0
