"""The public names, called as the plan of the library writes them down."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from torch import nn

import wellcond as wc


@pytest.mark.slow
def test_the_public_names_work_as_written(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))
    batches = [(torch.randn(32, 6), torch.randint(0, 3, (32,)))]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    problem = wc.Problem(model, nn.CrossEntropyLoss(), batches, batchnorm="batch")

    H, G = wc.Hessian(problem), wc.GGN(problem)
    F = wc.Fisher(problem, labels="model")
    n = problem.size
    assert F.shape == (n, n)
    assert (F @ torch.ones(n)).shape == (n,)
    assert (F @ torch.ones(n, 2)).shape == (n, 2)
    assert F.layer("3.weight").dense().shape == (24, 24)
    assert torch.allclose(G.dense(), F.dense(), atol=1e-6)

    s = wc.eigenvalues(H, k=1, which="largest", tol=1e-3)
    assert s.converged
    assert len(s.values) == len(s.errors) == 1
    assert s.matvecs > 0
    assert len(wc.spectrum(F).values) == n
    assert wc.density(H, probes=2, iterations=5).matvecs == 10
    assert wc.trace(H).error >= 0
    assert wc.condition_number(torch.tensor([4.0, 2.0, 1.0]), p=1.0) == 4

    table = wc.conditioning(problem, p=(0.2, 0.5, 0.8, 1.0))
    assert table["3"].x is not None
    assert table["3"].x.kappa[0.5] >= 1
    assert wc.neurons(problem)["0"].units == 8

    walk = wc.landscape(problem, lr=0.1, span=(0.5, 4.0), steps=8)
    assert len(walk.step_lengths) == len(walk.losses) == len(walk.gradient_changes) == 8
    assert walk.beta > 0
    shift = wc.covariate_shift(problem, optimizer)["3"]
    assert shift.difference > 0
    assert -1 <= shift.cosine <= 1
    local = wc.local_hessian(problem, "0")
    assert local.z.exact.shape == local.z.gauss_newton.shape
    assert local.weight.exact.shape == (56, 56)
    limit = wc.max_lr(problem, momentum=0.9)
    assert math.isclose(limit.value, 3.8 / float(s.values[-1]), rel_tol=0.02)
    prediction = wc.meanfield.predict(model, gamma=1.0, momentum=0.9, variant="batch")
    assert prediction.lambda_max > 0
    assert prediction.max_lr == 3.8 / prediction.lambda_max
    assert wc.meanfield.predict(problem).layers

    diagnosis = wc.diagnose(problem, optimizer=optimizer)
    assert diagnosis.rows()
    assert "loss" in str(diagnosis)
    assert diagnosis.save(tmp_path / "report.html").exists()
    suggested = wc.suggest_lr(problem, optimizer, steps=20)
    assert suggested.low <= suggested.lr <= suggested.high
    assert suggested.limit.value > 0
    treatment = wc.treat(problem, optimizer, steps=5, seeds=(0,))
    assert treatment.best is None or treatment.best in treatment.arms.values()
    assert treatment.cost.u > 0

    bnp = wc.BNP(model, torch.optim.SGD(model.parameters(), lr=0.1), rho=0.99, eps1=1e-2, eps2=1e-4)
    bnp.remove()
    for remedy in (
        wc.ScaleAmendedSGD(model, lr=0.1),
        wc.LARS(model.parameters(), lr=2.0),
        wc.LSALR(model.parameters(), lr=0.1),
    ):
        assert isinstance(remedy, torch.optim.Optimizer)
    assert wc.nn.with_last_batchnorm(model)(batches[0][0]).shape == (32, 3)
    assert isinstance(wc.nn.replace_norm(model, nn.LayerNorm)[1], nn.LayerNorm)
    for kind in ("Noisy", "Lp", "Ghost", "FourThings"):
        for dims in ("1d", "2d"):
            assert issubclass(getattr(wc.nn, f"{kind}BatchNorm{dims}"), nn.Module)
    assert issubclass(wc.nn.BatchRenorm2d, nn.Module)
