"""All small faults by name."""

from __future__ import annotations

from benchmarks.verdicts import repairs_of_data, repairs_of_training, repairs_of_weights, repairs_of_wiring
from benchmarks.verdicts.repair_cases import REPAIRS as REPAIRS

MODULES = (repairs_of_weights, repairs_of_wiring, repairs_of_data, repairs_of_training)
