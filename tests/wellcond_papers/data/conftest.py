from __future__ import annotations

import os
from pathlib import Path

import pytest


@pytest.fixture
def real_data() -> Path:
    """The folder of the real data sets; tests that need it are skipped where $WELLCOND_DATA is not set."""
    root = os.environ.get("WELLCOND_DATA")
    if not root:
        pytest.skip("set WELLCOND_DATA to the folder that holds MNIST and CIFAR-10")
    return Path(root)
