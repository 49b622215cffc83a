"""`no-decay-of-norms`: weight decay of matrices alone."""

from __future__ import annotations

from wellcond.network.norms import is_norm
from wellcond.remedies.remedy import remedy
from wellcond.remedies.setup import Setup


@remedy("no-decay-of-norms", "decay", rules=("weight-decay-dominates",))
def no_decay_of_norms(setup: Setup) -> Setup | None:
    """Takes weight decay off the scales of norms and off biases: all parameters with one dimension, as in GPT-2.

    A norm's scale decides how large the signal is; decay drives it to zero, and the signal with it.
    """
    optimizer = setup.optimizer
    scales = {p for m in setup.problem.model.modules() if is_norm(m) for p in m.parameters(recurse=False)}
    groups = [] if optimizer is None else optimizer.param_groups
    decayed = {p for group in groups if group.get("weight_decay") for p in group["params"]}
    if scales.isdisjoint(decayed):
        return None
    treated = setup.with_model(lambda model: model)
    assert treated.optimizer is not None
    for group in list(treated.optimizer.param_groups):
        vectors = [p for p in group["params"] if p.dim() <= 1]
        if group.get("weight_decay") and vectors:
            group["params"] = [p for p in group["params"] if p.dim() > 1]
            treated.optimizer.param_groups.append({**group, "params": vectors, "weight_decay": 0.0})
    return treated
