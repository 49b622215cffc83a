"""How a rate stands to its limit, in the words of a clean bill."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from wellcond.diagnosis.verdict import _rate


@pytest.mark.parametrize(
    ("lr", "trains", "words"),
    [
        (0.1, True, " The rate 0.1 is 20 % of the stability limit 0.5, and the loss goes down in the trial."),
        (0.1, None, " The rate 0.1 is 20 % of the stability limit 0.5."),
        (2.0, None, " The rate 2 is 4 times the stability limit at these weights."),
    ],
)
def test_below_the_limit_it_is_a_share_and_above_it_a_multiple(lr: float, trains: bool | None, words: str) -> None:
    known = SimpleNamespace(lr=lr, max_lr=SimpleNamespace(value=0.5), trial=SimpleNamespace(trains=trains))
    assert _rate(known) == words


def test_a_network_that_trains_above_the_limit_is_told_that_this_is_ordinary() -> None:
    known = SimpleNamespace(lr=2.0, max_lr=SimpleNamespace(value=0.5), trial=SimpleNamespace(trains=True))
    assert "4 times the stability limit at these weights, which is ordinary" in _rate(known)
