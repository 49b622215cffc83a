import sys
from pathlib import Path

_HERE = Path(__file__).resolve().parent
for _path in (str(_HERE.parent), str(_HERE)):
    if _path not in sys.path:
        sys.path.insert(0, _path)
import faults_a  # noqa: E402, F401
import faults_b  # noqa: E402, F401
import faults_c  # noqa: E402, F401
import healthy_a  # noqa: E402, F401
import healthy_b  # noqa: E402, F401
import healthy_c  # noqa: E402, F401
