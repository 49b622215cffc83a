"""shared-weight: two layers that hold one and the same weight, or two places with one BatchNorm.

Wrong:
    blocks = nn.ModuleList([block] * 6)
Right:
    blocks = nn.ModuleList([copy.deepcopy(block) for _ in range(6)])

Wrong:
    self.users = self.items = nn.Embedding(1000, 16)
Right:
    self.users, self.items = nn.Embedding(1000, 16), nn.Embedding(1000, 16)
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from torch import nn

from wellcond.diagnosis.evidence import Evidence
from wellcond.diagnosis.finding import Finding
from wellcond.diagnosis.inspection.signal import Signal
from wellcond.diagnosis.reading import layer_named, listed
from wellcond.diagnosis.rule import rule
from wellcond.diagnosis.threshold import Condition, Threshold
from wellcond.results import number

GAP = Threshold(
    "loss with running statistics / loss with batch statistics, of a network whose BatchNorm is called several times",
    1.5, math.nan,
    origin="0.65 to 1.1 for sides of siamese and triplet networks and for a recurrence; 2.3 to 32 where signals differ",
)  # fmt: skip
MARGIN = Condition("loss difference / loss of the best constant", 0.1, origin="less is not worth a warning")
CLEARLY_LEARNED = Condition("loss / loss of the best constant", 0.5, origin="below it the network has clearly learned")


@rule("shared-weight")
def shared_weight(evidence: Evidence) -> Iterator[Finding]:
    """One weight in two layers that are both called, or two weights in the same memory.

    An embedding and a decoder may share theirs, and one module may be called again and again; two layers of one type
    that hold the same tensor are one layer that was assigned or listed twice. A warning for an embedding that is listed
    several times: fields may have one vocabulary, but then they need no list. Likewise for an embedding with several
    names in one module, if each is called once, with one index of every example, as those of users and items are. A
    block that is fed its own outputs, in a network that trains, may be meant to share, as in ALBERT: a warning.
    """
    inspection = evidence.inspection
    if inspection is None:
        return
    modules: dict[str, nn.Module] = dict(evidence.problem.model.named_modules(remove_duplicate=False))
    again = {s.name: s for s in inspection.weighted() if s.calls > 1}
    aliases = {
        one: names for one in again if (names := [n for n in modules if modules[n] is modules[one] and n != one])
    }
    for w in inspection.weights:
        is_table = w.role == "embedding" and _is_another(
            modules, again.get(w.layer), inspection.examples, aliases.get(w.layer, [])
        )
        if w.role not in ("weight", "recurrent") and not is_table:
            continue
        others = [name.rpartition(".")[0] for name in w.also]
        kinds = {type(modules[name]) for name in others if name in modules}
        if w.shares_memory_with is not None:
            others = [w.shares_memory_with.rpartition(".")[0]]
        elif w.layer in aliases:
            others = aliases[w.layer]
        elif not others or any(issubclass(kind, (nn.Embedding, nn.EmbeddingBag)) for kind in kinds):
            continue
        is_meant = is_table or (_feeds_itself(w.layer, again) and evidence.trial is not None and evidence.trial.trains)
        yield Finding(
            rule="shared-weight",
            layer=w.layer,
            severity="warning" if is_meant else "severe",
            basis="proven",
            summary=f"{layer_named(w.layer)} and {listed(others)} hold the same weight, of shape {list(w.shape)}, and "
            "cannot learn different things.",
            evidence={"shape": str(list(w.shape)), "shared with": listed(others)},
            reason="Their gradients add up in one tensor. Only an embedding and its decoder usually share on purpose.",
            treatment="own-layers",
            remedy="# make a layer for each place: [make() for _ in range(n)], not [layer] * n",
        )


def _feeds_itself(layer: str, again: Mapping[str, Signal]) -> bool:
    """Whether a layer that is called again gets what other such layers have made of its own outputs."""
    before, new = set[str](), {layer}
    while new:
        feeding = {name for one in new if one in again for name in again[one].after}
        new = feeding - before
        before |= new
    return layer in before


def _is_another(modules: dict[str, nn.Module], table: Signal | None, examples: int, others: list[str]) -> bool:
    """Whether other names of a table, next to it, are meant for others: an encoder and a decoder may share one."""
    if table is None:
        return False
    parent = table.name.rpartition(".")[0]
    siblings = [name for name in others if name.rpartition(".")[0] == parent]
    is_listed = isinstance(modules.get(parent), nn.ModuleList)
    # sequences of one vocabulary have many tokens an example, and a loop over their steps makes more calls than names
    has_one_index_each = table.calls == 1 + len(others) and table.rows == table.calls * examples
    return bool(siblings) and (is_listed or (len(siblings) == len(others) and has_one_index_each))


@rule("shared-weight")
def shared_statistics(evidence: Evidence) -> Iterator[Finding]:
    """One BatchNorm at several places whose signals differ: its running statistics are a mix that fits none of them.

    After the trial's run they are averaged anew. Means or deviations of the places differ, and the loss with running
    statistics is above one and a half times that with each batch's own by a tenth of a constant's loss. Severe if that
    with each batch's own is below half of a constant's and the other is not; otherwise a warning. Places that see the
    same kind of signal, as the two sides of a siamese network, may share one.
    """
    trial = evidence.trial
    norm = None if trial is None else trial.shared_norm
    if trial is None or norm is None or norm.is_by_pass:
        return
    constant = trial.loss if trial.constant is None else trial.constant
    if not norm.running > GAP.warn * norm.batch + MARGIN.at * abs(constant):
        return
    is_lost = norm.batch < CLEARLY_LEARNED.at * constant < norm.running
    yield Finding(
        rule="shared-weight",
        layer=norm.name,
        severity="severe" if is_lost else "warning",
        basis="tried",
        summary=f"{layer_named(norm.name)} is called {norm.calls} times in a pass, on signals that differ: after the "
        f"trial the loss is {number(norm.batch)} with the statistics of each batch, and {number(norm.running)} with "
        "running ones, which evaluation uses.",
        evidence={
            "calls": float(norm.calls),
            "loss with batch statistics": norm.batch,
            "loss with running statistics": norm.running,
        },
        limits=GAP.limits(),
        reason="Running statistics are one mean and one variance for all calls. In training each call has its own.",
        remedy="# make a BatchNorm for each place",
    )
