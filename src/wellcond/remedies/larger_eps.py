"""`larger-eps`: an ε of Adam that the precision can hold."""

from __future__ import annotations

import torch

from wellcond.remedies.remedy import remedy
from wellcond.remedies.setup import Setup


@remedy("larger-eps", "eps", rules=("non-finite", "learning-rate-too-high", "optimizer-setting"))
def larger_eps(setup: Setup) -> Setup | None:
    """Raises Adam's ε to 1e-8, torch's default, or to 1e-4 in half precision, where it is far smaller.

    A gradient that underflows leaves 0/(0 + ε): with an ε that is itself 0 in this precision, NaN.
    """
    is_half = setup.problem.dtype in (torch.float16, torch.bfloat16)
    least, usual = (1e-6, 1e-4) if is_half else (1e-12, 1e-8)
    groups = [] if setup.optimizer is None else setup.optimizer.param_groups
    is_small = any(isinstance(eps := group.get("eps"), (int, float)) and eps < least for group in groups)
    return setup.with_setting("eps", usual) if is_small else None
