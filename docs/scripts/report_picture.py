"""The picture of the README: the report of its first example, as Chromium shows it. Needs `chromium` on the path."""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path

from wellcond.diagnosis.diagnosis import Diagnosis

ROOT = Path(__file__).parents[2]
PICTURE = ROOT / "docs" / "figures" / "report.png"
SIZE = "1180,880"


def main() -> None:
    """Run the first block of the README, and photograph the page of its diagnosis."""
    code = (ROOT / "README.md").read_text("utf-8").split("```python\n")[1].split("```")[0]
    lines = code.replace("print(wc.diagnose(problem, optimizer))", "diagnosis = wc.diagnose(problem, optimizer)")
    names: dict[str, Diagnosis] = {}
    exec(lines, names)
    with tempfile.TemporaryDirectory() as folder:
        page = names["diagnosis"].save(Path(folder) / "report.html")
        options = ["--headless", "--no-sandbox", "--hide-scrollbars", "--virtual-time-budget=8000"]
        subprocess.run(
            ["chromium", *options, f"--window-size={SIZE}", f"--screenshot={PICTURE}", page.as_uri()],
            check=True,
            capture_output=True,
        )


if __name__ == "__main__":
    main()
