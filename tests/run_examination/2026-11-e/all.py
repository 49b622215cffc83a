"""All runs of this examiner."""
import sys
from pathlib import Path

for folder in (Path(__file__).resolve().parent, Path(__file__).resolve().parent.parent):
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))

import rne_faults_a  # noqa: E402,F401
import rne_faults_b  # noqa: E402,F401
import rne_healthy_a  # noqa: E402,F401
import rne_healthy_b  # noqa: E402,F401
