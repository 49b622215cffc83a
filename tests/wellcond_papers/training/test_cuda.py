"""Captured steps on a GPU."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from on_cuda import TESTS


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("holds", TESTS, ids=lambda function: function.__name__)
def test_on_a_gpu(holds: Callable[[], None], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    holds()
