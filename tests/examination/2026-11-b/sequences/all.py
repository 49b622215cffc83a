import os
import sys

here = os.path.dirname(os.path.abspath(__file__))
for path in (os.path.dirname(here), here):
    if path not in sys.path:
        sys.path.insert(0, path)
import faults_attention  # noqa: E402,F401
import faults_recurrent  # noqa: E402,F401
import faults_training  # noqa: E402,F401
import faults_objectives  # noqa: E402,F401
import sound_models  # noqa: E402,F401
import sound_training  # noqa: E402,F401
