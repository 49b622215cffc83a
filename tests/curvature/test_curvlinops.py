"""Against curvlinops, another implementation of the same matrices."""

from __future__ import annotations

import pytest
import torch
from loss_zoo import LOSSES
from references import assert_same
from zoo import ARCHITECTURES, split

import wellcond as wc

curvlinops = pytest.importorskip("curvlinops")

# without attention: there curvlinops' Hessian, forward over reverse, is not symmetric, and 8 % off finite differences
NAMES = ["mlp_tanh", "mlp_relu", "cnn_running", "resnet_running", "mse", "bce_many"]


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("kind", ["Hessian", "GGN"])
def test_products_are_those_of_curvlinops(name: str, kind: str) -> None:
    case = (ARCHITECTURES | LOSSES)[name]()
    sizes = [2, len(case.batch[1]) - 2]
    batches = split(case.batch, sizes)
    model = case.model.eval()
    ours = getattr(wc, kind)(case.problem(batches=batches))
    identity = torch.eye(ours.shape[0], dtype=torch.float64)
    peer = getattr(curvlinops, f"{kind}LinearOperator")(model, case.loss, list(model.parameters()), batches)
    assert_same(ours @ identity, peer @ identity)


def test_second_moment_is_the_empirical_fisher_of_curvlinops() -> None:
    case = ARCHITECTURES["mlp_relu"]()
    peer = curvlinops.EFLinearOperator(case.model, case.loss, list(case.model.parameters()), [case.batch])
    ours = wc.Fisher(case.problem(), "data")
    identity = torch.eye(ours.shape[0], dtype=torch.float64)
    assert_same(ours @ identity, peer @ identity)
