import importlib
from pathlib import Path
for path in sorted(Path(__file__).parent.glob("sqr_*.py")):
    importlib.import_module(path.stem)
