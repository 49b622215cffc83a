"""All cases of this part."""

import importlib
from pathlib import Path

for _file in sorted(Path(__file__).parent.glob("ts_*.py")):
    importlib.import_module(_file.stem)
