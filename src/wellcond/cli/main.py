"""The entry point of the `wellcond` command."""

from __future__ import annotations

import sys

from wellcond.errors import MissingExtra


def main() -> None:
    """Run the command line; if its libraries are missing, say which command installs them."""
    try:
        from wellcond.cli.app import app
    except MissingExtra as error:
        print(error, file=sys.stderr)
        raise SystemExit(1) from None
    app(prog_name="wellcond")
