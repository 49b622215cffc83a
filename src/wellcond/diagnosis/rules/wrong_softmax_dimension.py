"""wrong-softmax-dimension: a softmax inside the network over another dimension than the one that is summed.

Wrong: `scores.softmax(dim=0)`. Right: `scores.softmax(dim=-1)`.
"""

from __future__ import annotations

from collections.abc import Iterator

from wellcond.diagnosis.evidence import Evidence
from wellcond.diagnosis.finding import Finding
from wellcond.diagnosis.rule import rule


@rule("wrong-softmax-dimension")
def wrong_softmax_dimension(evidence: Evidence) -> Iterator[Finding]:
    """A softmax over the examples of the batch, or attention weights that are summed over another dimension."""
    inspection = evidence.inspection
    if inspection is None:
        return
    for seen in inspection.attention:
        is_last = inspection.output is not None and inspection.output.shape == seen.shape
        over_examples = seen.dim == 0 and seen.ndim > 1 and seen.shape[0] == inspection.batch_size and not is_last
        if over_examples or (seen.is_summed_elsewhere and seen.ndim >= 3):
            yield Finding(
                rule="wrong-softmax-dimension",
                layer=seen.name,
                severity="severe",
                basis="proven",
                summary=f"the softmax after {seen.name} goes over dimension {seen.dim} of {list(seen.shape)}, "
                + ("the examples of the batch." if over_examples else "but the product after it sums over another."),
                evidence={"dimension": float(seen.dim), "shape": str(list(seen.shape))},
                reason="The weights of what is added up then do not sum to one.",
                treatment="class-dimension" if over_examples else "",
                remedy="# take the softmax over the positions that are looked at, the last dimension of the scores",
            )
