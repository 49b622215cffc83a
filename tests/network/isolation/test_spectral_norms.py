"""Fresh spectral norms as hooks are measured as they are after some steps of training."""

from __future__ import annotations

import torch
from torch import nn

from wellcond import Problem


def test_a_fresh_layer_has_its_largest_singular_value_divided_out() -> None:
    torch.manual_seed(0)
    layer = nn.utils.spectral_norm(nn.Linear(32, 32).double())
    x, y = torch.randn(64, 32).double(), torch.zeros(64, 32).double()
    before = {name: buffer.clone() for name, buffer in layer.named_buffers()}
    problem = Problem(layer, nn.MSELoss(), (x, y))
    with problem.measuring(), torch.no_grad():
        outputs = problem.forward(0, x)
    weight = layer.weight_orig.detach()
    expected = x @ (weight / torch.linalg.matrix_norm(weight, 2)).T + layer.bias.detach()
    # 15 power iterations have it to some percent; the estimate that they begin with is off by a factor of 6 to 100
    assert torch.allclose(outputs, expected, rtol=0.05, atol=0.05)
    assert all(torch.equal(buffer, before[name]) for name, buffer in layer.named_buffers())
