"""Writes what pages show of the code into the pages: what their blocks print, the map of rooms, files and walks.

python docs/scripts/pages.py [docs/architecture.md …]
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
import rooms
import running

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / name for name in ("README.md", "docs/index.md", "docs/tour.md", "docs/architecture.md")]
DRAWINGS: dict[str, Callable[[dict[str, rooms.Room]], str]] = {"map": rooms.mermaid, "files": rooms.tables}
ROOMS = re.compile(r"<!-- rooms of (\w+): (map|files) -->.*?<!-- end of rooms -->", flags=re.DOTALL)


def with_rooms(page: str) -> str:
    """A page with the maps and lists of rooms as the sources are now."""

    def drawn(block: re.Match[str]) -> str:
        drawing = DRAWINGS[block[2]](rooms.read(ROOT / "src" / block[1]))
        return f"<!-- rooms of {block[1]}: {block[2]} -->\n\n{drawing}\n\n<!-- end of rooms -->"

    return ROOMS.sub(drawn, page)


def with_drawn_map(page: str) -> str:
    """A page of the site, where the maps are drawn and can be pointed at."""
    return re.sub(
        r"<!-- rooms of (\w+): map -->.*?<!-- end of rooms -->",
        lambda block: rooms.svg(rooms.read(ROOT / "src" / block[1])),
        page,
        flags=re.DOTALL,
    )


def filled(path: Path) -> str:
    """The text of a page with everything that is generated as it is now."""
    return with_rooms(running.filled_in(path.read_text(encoding="utf-8"), path.name))


if __name__ == "__main__":
    for path in [Path(name).resolve() for name in sys.argv[1:]] or PAGES:
        path.write_text(filled(path), encoding="utf-8")
