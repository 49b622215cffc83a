"""All cases by name, in the order of the list of real faults."""

from __future__ import annotations

from benchmarks.verdicts import faults_architectures, faults_images, faults_tables, faults_training
from benchmarks.verdicts.case import CASES as _CASES
from benchmarks.verdicts.case import Case

MODULES = (faults_tables, faults_images, faults_training, faults_architectures)
CASES: dict[str, Case] = dict(sorted(_CASES.items(), key=lambda item: item[1].number))
