"""The pictures of the first pages: the report of the README's example, as Chromium shows it, and that of the demo.

python docs/scripts/report_picture.py   # needs `chromium` on the path
"""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path

from wellcond.cli.commands.demo import demo
from wellcond.diagnosis.diagnosis import Diagnosis

ROOT = Path(__file__).resolve().parents[2]
FIGURES = ROOT / "docs" / "figures"
SIZE = "1180,710"


def main() -> None:
    """Run the first block of the README, photograph the page of its diagnosis, and save the picture of the demo."""
    code = (ROOT / "README.md").read_text("utf-8").split("```python\n")[1].split("```")[0]
    lines = code.replace("print(wc.diagnose(problem, optimizer))", "diagnosis = wc.diagnose(problem, optimizer)")
    names: dict[str, Diagnosis] = {}
    exec(lines, names)
    with tempfile.TemporaryDirectory() as folder:
        page = names["diagnosis"].save(Path(folder) / "report.html")
        options = ["--headless", "--no-sandbox", "--hide-scrollbars", "--virtual-time-budget=8000"]
        picture = FIGURES / "report.png"
        subprocess.run(
            ["chromium", *options, f"--window-size={SIZE}", f"--screenshot={picture}", page.as_uri()],
            check=True,
            capture_output=True,
        )
    demo(out=[FIGURES / "demo.png"])


if __name__ == "__main__":
    main()
