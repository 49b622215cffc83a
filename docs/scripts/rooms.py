"""The room map: folders of the package in layers, drawn as SVG from the imports in their files."""

from __future__ import annotations

import ast
from collections import defaultdict
from dataclasses import dataclass, field
from functools import cache
from html import escape
from itertools import pairwise
from pathlib import Path

BOX, HEIGHT, GAP, LANE, RISE = 118, 46, 14, 12, 44  # width and height of a box, gaps, width of a line, gap of layers


@dataclass
class Room:
    """A folder of the package, or a file at its top.

    Attributes:
        name: Its name below the package.
        files: Its files, with their lengths in lines.
        about: What it is for: the docstring's first paragraph.
        imports: Names of the rooms it imports.
    """

    name: str
    files: dict[Path, int] = field(default_factory=dict)
    about: str = ""
    imports: set[str] = field(default_factory=set)

    @property
    def lines(self) -> int:
        return sum(self.files.values())


@cache
def read(package: Path) -> dict[str, Room]:
    """The rooms of the package at a path, each after those it imports.

    Raises:
        ValueError: Rooms import each other in a circle.
    """
    rooms: dict[str, Room] = {}
    for path in sorted(package.rglob("*.py")):
        parts = path.relative_to(package).with_suffix("").parts
        if parts == ("__init__",):
            continue
        room = rooms.setdefault(parts[0], Room(parts[0]))
        source = path.read_text(encoding="utf-8")
        tree = _parsed(path)
        room.files[path] = len(source.splitlines())
        room.imports |= _imported(tree, package.name) - {room.name}
        if len(parts) == 1 or parts[1:] == ("__init__",):
            room.about = first_paragraph(tree)
    for room in rooms.values():
        room.imports &= rooms.keys()
    ordered: dict[str, Room] = {}
    while len(ordered) < len(rooms):
        ready = [name for name in sorted(rooms) if name not in ordered and rooms[name].imports <= ordered.keys()]
        if not ready:
            raise ValueError(f"rooms import each other: {sorted(rooms.keys() - ordered.keys())}")
        ordered |= {name: rooms[name] for name in ready}
    return ordered


@cache
def _parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def first_paragraph(tree: ast.Module) -> str:
    """The first paragraph of a module's docstring, on one line."""
    return " ".join((ast.get_docstring(tree) or "").split("\n\n")[0].split())


def _imported(tree: ast.Module, package: str) -> set[str]:
    names_of_rooms = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        else:
            continue
        names_of_rooms |= {name.split(".")[1] for name in names if name.startswith(f"{package}.")}
    return names_of_rooms


def drawn_imports(rooms: dict[str, Room]) -> set[tuple[str, str]]:
    """Pairs (imported, importer) that no chain of other imports implies."""
    reach: dict[str, set[str]] = {}
    for name, room in rooms.items():
        reach[name] = room.imports.union(*(reach[other] for other in room.imports))
    return {
        (other, name)
        for name, room in rooms.items()
        for other in room.imports
        if not any(other in reach[between] for between in room.imports)
    }


def svg(rooms: dict[str, Room]) -> str:
    """The map: a room stands below all that it imports, and an arrow leads from a room to those that import it."""
    arrows = sorted(drawn_imports(rooms))
    layer: dict[str, int] = {}
    for name, room in rooms.items():
        layer[name] = 1 + max((layer[other] for other in room.imports), default=-1)
    for name in reversed(rooms):  # closer to those that import it, where this shortens more arrows than it lengthens
        users = [layer[end] for start, end in arrows if start == name]
        if len(users) > sum(end == name for _, end in arrows):
            layer[name] = min(users) - 1
    rows: list[list[str]] = [[] for _ in range(1 + max(layer.values()))]
    for name in rooms:
        rows[layer[name]].append(name)

    # an arrow over several layers passes through a lane of its own in each of them
    paths: list[list[str]] = []
    for start, end in arrows:
        lanes = [f"{start}>{end}@{level}" for level in range(layer[start] + 1, layer[end])]
        for level, lane in enumerate(lanes, layer[start] + 1):
            rows[level].append(lane)
        paths.append([start, *lanes, end])
    x = _place(rows, paths, rooms)
    y = {node: level * (HEIGHT + RISE) for level, row in enumerate(rows) for node in row}

    left, right = min(x[name] for name in rooms) - BOX / 2, max(x[name] for name in rooms) + BOX / 2
    left, right = min([left, *x.values()]) - 4, max([right, *x.values()]) + 4
    height = max(y.values()) + HEIGHT
    parts = [
        f'<div class="rooms-frame"><svg class="rooms" viewBox="{left:.0f} -4 {right - left:.0f} {height + 8}" '
        'role="img" aria-label="Rooms of the package and their imports" xmlns="http://www.w3.org/2000/svg">',
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        '<path d="M0,0 L8,4 L0,8 z"/></marker></defs>',
    ]
    for path in paths:
        curve = _curve(path, x, y)
        parts.append(f'<path class="import" data-from="{path[0]}" data-to="{path[-1]}" d="{curve}"/>')
    longest = max(room.lines for room in rooms.values())
    parts += [_box(room, x[name], y[name], longest) for name, room in rooms.items()]
    return "\n".join([*parts, "</svg></div>"])


def _place(rows: list[list[str]], paths: list[list[str]], rooms: dict[str, Room]) -> dict[str, float]:
    """Order every layer by its neighbors, then pull each node toward them as far as the others leave room."""
    neighbors: dict[str, list[str]] = defaultdict(list)
    for path in paths:
        for a, b in pairwise(path):
            pull = 1 if a in rooms or b in rooms else 8  # long arrows run straight
            neighbors[a] += pull * [b]
            neighbors[b] += pull * [a]
    width = {node: BOX + GAP if node in rooms else LANE for row in rows for node in row}
    x = {node: place for row in rows for node, place in zip(row, _spread(row, width), strict=True)}
    for sweep in range(200):
        for row in rows if sweep % 2 else rows[::-1]:
            wish = {n: sum(x[m] for m in neighbors[n]) / len(neighbors[n]) if neighbors[n] else x[n] for n in row}
            if sweep < 40:
                row.sort(key=wish.__getitem__)
            gaps = [(width[a] + width[b]) / 2 for a, b in pairwise(row)]
            from_left, from_right = [wish[n] for n in row], [wish[n] for n in row]
            for i, gap in enumerate(gaps):
                from_left[i + 1] = max(from_left[i + 1], from_left[i] + gap)
            for i, gap in reversed(list(enumerate(gaps))):
                from_right[i] = min(from_right[i], from_right[i + 1] - gap)
            x.update({n: (a + b) / 2 for n, a, b in zip(row, from_left, from_right, strict=True)})
    return x


def _spread(row: list[str], width: dict[str, float]) -> list[float]:
    """Places side by side, around zero."""
    places, total = [], 0.0
    for node in row:
        places.append(total + width[node] / 2)
        total += width[node]
    return [place - total / 2 for place in places]


def _curve(path: list[str], x: dict[str, float], y: dict[str, float]) -> str:
    parts = []
    for a, b in pairwise(path):
        top, bottom = y[a] + HEIGHT, y[b] - (3 if b == path[-1] else 0)
        middle = (top + bottom) / 2
        begin = f"M{x[a]:.1f},{top} " if a == path[0] else f"L{x[a]:.1f},{top} "
        parts.append(f"{begin}C{x[a]:.1f},{middle} {x[b]:.1f},{middle} {x[b]:.1f},{bottom}")
    return " ".join(parts)


def _box(room: Room, x: float, y: float, longest: int) -> str:
    files = f"{len(room.files)} files, " if len(room.files) > 1 else ""
    bar = (BOX - 12) * room.lines / longest
    return (
        f'<g class="room" data-room="{room.name}" data-imports="{" ".join(sorted(room.imports))}" tabindex="0">'
        f"<title>{escape(room.about)}\nimports: {', '.join(sorted(room.imports)) or 'nothing'}</title>"
        f'<rect x="{x - BOX / 2:.1f}" y="{y}" width="{BOX}" height="{HEIGHT}" rx="5"/>'
        f'<text class="name" x="{x:.1f}" y="{y + 18}">{room.name}</text>'
        f'<text class="size" x="{x:.1f}" y="{y + 33}">{files}{room.lines:,} lines</text>'
        f'<rect class="bar" x="{x - BOX / 2 + 6:.1f}" y="{y + HEIGHT - 7}" width="{bar:.1f}" height="3"/></g>'
    )


def mermaid(rooms: dict[str, Room]) -> str:
    """The same map as a Mermaid flowchart, which GitHub draws."""
    arrows = [f"    {start} --> {end}" for start, end in sorted(drawn_imports(rooms))]
    return "\n".join(["```mermaid", "flowchart TD", *arrows, "```"])


def tables(rooms: dict[str, Room]) -> str:
    """What each room is for, and its files with their first sentences, to be opened one by one."""
    parts = []
    for room in rooms.values():
        imports = ", ".join(f"`{name}`" for name in sorted(room.imports)) or "nothing"
        is_folder = len(room.files) > 1
        parts += ['<details markdown="1">', f"<summary>{room.name}{'/' if is_folder else '.py'}</summary>", ""]
        parts += [f"{room.about} Imports {imports}.", ""]
        if is_folder:
            parts += ["| file | |", "|---|---|"]
            folder = next(parent for path in room.files for parent in path.parents if parent.name == room.name)
            abouts: dict[str, str] = {}
            for path in room.files:
                name = shown_name(path, folder)
                about = REGISTRIES.get(name.rpartition("/")[2]) or first_paragraph(_parsed(path))
                abouts.setdefault(name, about.replace("|", "\\|"))
            parts += [f"| `{name}` | {about} |" for name, about in abouts.items() if name != "__init__"]
            parts.append("")
        parts += ["</details>", ""]
    return "\n".join(parts).rstrip()


REGISTRIES = {
    "<rule>": "One file per rule: thresholds with their origin, and the function that judges.",
    "<remedy>": "One file per remedy: what it does to a set-up, and the lines a person writes.",
    "<figure>": "One file per figure or table of a paper: what it measures, its claims and its picture.",
    "<command>": "One file per command.",
}
"""Files that are listed as one, so that a page stays true when another of them is added."""
_MARKS = {"@rule(": "<rule>", "@remedy(": "<remedy>", "EXPERIMENT = ": "<figure>"}


def shown_name(path: Path, folder: Path) -> str:
    """Name of a file in its room; that of its registry if it is one of many alike."""
    lines = path.read_text(encoding="utf-8").splitlines()
    inside = path.relative_to(folder).with_suffix("")
    kinds = [kind for mark, kind in _MARKS.items() if any(line.startswith(mark) for line in lines)]
    kinds += ["<command>"] if inside.parent.name == "commands" and inside.name != "__init__" else []
    return (inside.with_name(kinds[0]) if kinds else inside).as_posix()
