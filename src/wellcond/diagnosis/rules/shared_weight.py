"""shared-weight: two layers that hold one and the same weight.

Wrong: `nn.ModuleList([layer] * 6)`. Right: `nn.ModuleList([copy.deepcopy(layer) for _ in range(6)])`.
"""

from __future__ import annotations

from collections.abc import Iterator

from torch import nn

from wellcond.diagnosis.evidence import Evidence
from wellcond.diagnosis.finding import Finding
from wellcond.diagnosis.reading import listed
from wellcond.diagnosis.rule import rule


@rule("shared-weight")
def shared_weight(evidence: Evidence) -> Iterator[Finding]:
    """One weight in two layers that are both called, or two weights in the same memory.

    An embedding and a decoder may share theirs, and one module may be called again and again; two layers of one type
    that hold the same tensor are one layer that was assigned or listed twice.
    """
    inspection = evidence.inspection
    if inspection is None:
        return
    modules: dict[str, nn.Module] = dict(evidence.problem.model.named_modules(remove_duplicate=False))
    again = {s.name for s in inspection.weighted() if s.calls > 1}
    aliases = {
        one: names for one in again if (names := [n for n in modules if modules[n] is modules[one] and n != one])
    }
    for w in inspection.weights:
        if w.role not in ("weight", "recurrent"):
            continue
        others = [name.rpartition(".")[0] for name in w.also]
        kinds = {type(modules[name]) for name in others if name in modules}
        if w.shares_memory_with is not None:
            others = [w.shares_memory_with.rpartition(".")[0]]
        elif w.layer in aliases:
            others = aliases[w.layer]
        elif not others or any(issubclass(kind, (nn.Embedding, nn.EmbeddingBag)) for kind in kinds):
            continue
        yield Finding(
            rule="shared-weight",
            layer=w.layer,
            severity="severe",
            basis="proven",
            summary=f"{w.layer} and {listed(others)} hold the same weight, of shape {list(w.shape)}, and cannot learn "
            "different things.",
            evidence={"shape": str(list(w.shape)), "shared with": listed(others)},
            reason="Their gradients add up in one tensor. Only an embedding and its decoder usually share on purpose.",
            treatment="own-layers",
            remedy="# make a layer for each place: [make() for _ in range(n)], not [layer] * n",
        )
