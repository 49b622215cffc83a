"""HTML as tests read it."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from typing import Any

VOID = {"meta", "br", "link", "img", "input", "hr"}


class Document(HTMLParser):
    """Tags in balance, their attributes, the text outside scripts and styles, and the scripts."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self.scripts: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)
        if tag == "script":
            self.scripts.append("")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] == "script":
            self.scripts[-1] += data
        elif self.open and self.open[-1] != "style":
            self.text.append(data)

    @property
    def words(self) -> str:
        return " ".join(" ".join(self.text).split())

    @property
    def classes(self) -> list[str]:
        return [str(attributes["class"]) for _, attributes in self.tags if "class" in attributes]

    @property
    def figures(self) -> dict[str, dict[str, list[dict[str, Any]]]]:
        """What the script of the page draws."""
        plots: dict[str, dict[str, list[dict[str, Any]]]] = json.loads(self.scripts[0])
        return plots
