"""Sentences that can be read in two ways, since the source does not state a setting: each is one claim."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from wellcond_papers.experiments.claims import Claim, Outcome
from wellcond_papers.experiments.table import Table


def read_as(readings: Mapping[str, Sequence[Claim]]) -> list[Claim]:
    """One claim per sentence, judged under every reading that was run.

    The source had one of them, and we do not know which: a sentence that fails under all does not hold, and one that
    fails under some holds in part. To take the better reading of every sentence would be too kind, since the source had
    the same for all.

    Args:
        readings: The claims of each reading, by its name; the same sentences in the same order.

    Example:
        >>> yes, no = (Claim("BN trains", "", lambda table, v=v: Outcome(v, "1.0")) for v in ("holds", "does not hold"))
        >>> [claim] = read_as({"raw": [yes], "standardized": [no]})
        >>> claim.check(Table([]))
        Outcome(verdict='holds in part', measured='raw (holds): 1.0; standardized (does not hold): 1.0')
    """
    return [
        replace(sentence[0], check=_under_all(dict(zip(readings, sentence, strict=True))))
        for sentence in zip(*readings.values(), strict=True)
    ]


def _under_all(readings: Mapping[str, Claim]) -> Callable[[Table], Outcome]:
    def check(table: Table) -> Outcome:
        outcomes = {name: claim.check(table) for name, claim in readings.items()}
        tested = {name: outcome for name, outcome in outcomes.items() if outcome.verdict != "not tested"}
        if not tested:
            return next(iter(outcomes.values()))
        verdicts = {outcome.verdict for outcome in tested.values()}
        if len(verdicts) == 1:
            measured = [f"{name}: {outcome.measured}" for name, outcome in tested.items()]
        else:
            measured = [f"{name} ({outcome.verdict}): {outcome.measured}" for name, outcome in tested.items()]
        measured += [f"{name}: not tested" for name in outcomes if name not in tested]
        return Outcome(verdicts.pop() if len(verdicts) == 1 else "holds in part", "; ".join(measured))

    return check
