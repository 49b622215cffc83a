"""Faults of precision and sound set-ups of `benchmarks.precision_cases`, as a CPU judges them."""

from __future__ import annotations

import pytest

import wellcond as wc
from benchmarks.precision_cases import FAULTS, SOUND, Fault, Setup, trained

pytestmark = pytest.mark.slow
SLOW = "transformer, float16 and GradScaler"
"""Products in float16 take a CPU seconds; bfloat16 shows the same network."""


def diagnosed(setup: Setup) -> wc.Diagnosis:
    return wc.diagnose(setup.problem(), setup.optimizer)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_the_first_finding_of_a_fault_names_its_cause(fault: Fault) -> None:
    assert diagnosed(fault.build("cpu", False)).findings[0].rule in fault.rules


@pytest.mark.parametrize("name", [name for name in SOUND if name != SLOW])
def test_a_sound_set_up_is_not_accused(name: str) -> None:
    assert [finding.rule for finding in diagnosed(SOUND[name]("cpu")).findings if finding.severity == "severe"] == []


@pytest.mark.parametrize(
    "fault", [fault for fault in FAULTS if "exponentials" not in fault.name], ids=lambda fault: fault.name
)
def test_a_repaired_form_trains_further_than_the_faulty_one(fault: Fault) -> None:
    """Otherwise it would be no fault; 40 steps are enough to see it."""
    faulty, repaired = (trained(fault.build("cpu", is_repaired), 40) for is_repaired in (False, True))
    assert repaired < faulty
