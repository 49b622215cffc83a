"""What printed lines call the loss: by its name where the script has one."""

from __future__ import annotations

import types
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import wellcond as wc
from wellcond.remedies.loss_code import name_of_loss


def _of_script(name: str, module: str) -> Any:
    function = types.FunctionType(_squares.__code__, globals(), name)
    function.__module__, function.__qualname__ = module, name
    return function


def _squares(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs - targets).square().mean()


def test_a_model_that_returns_its_loss_has_none() -> None:
    class WithLoss(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(2, 1)

        def forward(self, x: Tensor) -> Tensor:
            return self.fc(x).square().mean()

    assert name_of_loss(wc.Problem(WithLoss(), None, [torch.ones(4, 2)])) == "None"


@pytest.mark.parametrize(
    ("loss", "name"),
    [
        (F.mse_loss, "nn.functional.mse_loss"),
        (_of_script("my_loss", "__main__"), "my_loss"),
        (_of_script("my_loss", "losses"), "loss"),  # imported under a name that is not known
        (_of_script("<lambda>", "__main__"), "loss"),
        (nn.MSELoss(), "loss"),
    ],
)
def test_functions_of_the_script_and_of_torch_keep_their_names(loss: Any, name: str) -> None:
    assert name_of_loss(wc.Problem(nn.Linear(2, 1), loss, (torch.ones(4, 2), torch.ones(4, 1)))) == name
