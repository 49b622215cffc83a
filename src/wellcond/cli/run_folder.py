"""The argument of commands that read a recorded run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

RunFolder = Annotated[Path, typer.Argument(metavar="DIR", help="The run_dir of a recorder.")]
