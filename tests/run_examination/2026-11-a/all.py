"""Everything in this folder: importing it fills program.FAULTS and program.HEALTHY."""

from __future__ import annotations

import sys
from pathlib import Path

_HERE = Path(__file__).resolve().parent
for _path in (str(_HERE.parent), str(_HERE)):
    if _path not in sys.path:
        sys.path.insert(0, _path)

import faults_loops  # noqa: E402, F401
import faults_numbers  # noqa: E402, F401
import faults_sequences  # noqa: E402, F401
import faults_vision  # noqa: E402, F401
import healthy_generative  # noqa: E402, F401
import healthy_schedules  # noqa: E402, F401
import healthy_tasks  # noqa: E402, F401
import healthy_unusual  # noqa: E402, F401
