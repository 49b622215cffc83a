"""All runs of this examiner."""

import sys
from pathlib import Path

for _folder in (Path(__file__).resolve().parent.parent, Path(__file__).resolve().parent):
    if str(_folder) not in sys.path:
        sys.path.insert(0, str(_folder))

import run_faults_a  # noqa: E402, F401
import run_faults_b  # noqa: E402, F401
import run_healthy_a  # noqa: E402, F401
import run_healthy_b  # noqa: E402, F401
