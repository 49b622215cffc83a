"""The pictures of the pages on trainers and loggers: runs the code of a page, and photographs the page of its run.

python docs/scripts/trainer_pictures.py [lightning …]   # needs `chromium` on the path, and the library of each page
"""

from __future__ import annotations

import contextlib
import re
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import wellcond as wc

DOCS = Path(__file__).resolve().parents[1]
PICTURES = DOCS / "figures" / "trainers"
NAMES = ("lightning", "transformers", "accelerate", "peft", "ray-train", "loggers")
SIZE = "1180,760"
PORT = 6123
SHOWN = "loss|norm|update_ratio$"
"""Series that TensorBoard shows."""


def photograph(address: str, picture: Path, patience: int = 8000) -> None:
    """Save what Chromium shows of a page."""
    options = ["--headless", "--no-sandbox", "--hide-scrollbars", f"--virtual-time-budget={patience}"]
    options += [f"--window-size={SIZE}", f"--screenshot={picture}"]
    subprocess.run(["chromium", *options, address], check=True, capture_output=True)


@contextlib.contextmanager
def tensorboard(folder: Path) -> Iterator[str]:
    """TensorBoard on a folder, until it answers."""
    command = [sys.executable, "-m", "tensorboard.main", "--logdir", str(folder), "--port", str(PORT)]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    address = f"http://localhost:{PORT}"
    try:
        for _ in range(60):
            time.sleep(1)
            with contextlib.suppress(OSError):
                urllib.request.urlopen(address)
                break
        yield f"{address}/#scalars&_smoothingWeight=0&tagFilter={SHOWN}"
    finally:
        server.terminate()
        server.wait()


def draw(name: str) -> None:
    """Run the example of a page in a folder of its own, and photograph what it recorded."""
    (code,) = re.findall(r"^```python\n(.*?)^```$", (DOCS / "guides" / f"{name}.md").read_text("utf-8"), re.M | re.S)
    picture = PICTURES / f"{name}.png"
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        exec(compile(code, name, "exec"), {"__name__": "page"})
        (run,) = Path("runs").iterdir()
        if name == "loggers":
            with tensorboard(run) as address:
                photograph(address, picture, patience=30000)
        else:
            photograph(wc.read_run(run).save("run.html").resolve().as_uri(), picture)


if __name__ == "__main__":
    PICTURES.mkdir(parents=True, exist_ok=True)
    for name in sys.argv[1:] or NAMES:
        draw(name)
        print(name)
