"""The pages of the API reference, written from the package: its groups, its `__all__` lists and its annotations."""

from __future__ import annotations

import ast
import importlib
import inspect
import pkgutil
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from types import ModuleType
from typing import Any

import wellcond
import wellcond_papers

IN_FILES = {
    "wellcond_papers.training": (
        "classifier.train_classifier",
        "checkpoint.Checkpoint",
        "schedules.steps",
        "schedules.cosine",
        "schedules.warm_up",
        "schedules.plateau",
    ),
    "wellcond_papers.experiments": (
        "reproduce.reproduce",
        "sweep.sweep",
        "experiment.Experiment",
        "claims.claim",
        "claims.judged",
        "pictures.over_training",
        "pictures.by_layer",
        "pictures.heat_map",
    ),
}
"""Public names of rooms that are imported file by file."""


@dataclass
class Page:
    """One page of the reference.

    Attributes:
        path: Where it goes, relative to the docs.
        title: Its heading.
        intro: The sentence below the heading.
        names: Dotted names of what it documents, in order.
        results: Dotted names of the classes that those return or build on; of an exception, its kinds.
    """

    path: str
    title: str
    intro: str
    names: list[str] = field(default_factory=list)
    results: list[str] = field(default_factory=list)

    def markdown(self) -> str:
        """The page: a table of contents, then an entry for mkdocstrings to fill in per name."""
        parts = [f"# {self.title}", self.intro, _table(self.names), *(_entry(name, level=2) for name in self.names)]
        if self.results:
            kinds = all(issubclass(_object(name), Exception) for name in self.results)
            parts += [
                "## Kinds" if kinds else "## Results and bases",
                _table(self.results),
                *(_entry(name, level=3) for name in self.results),
            ]
        return "\n\n".join(part for part in parts if part) + "\n"


def index() -> str:
    """The first page of the reference: all names, with a sentence each."""
    parts = ["# API reference", "All names of `import wellcond as wc`, then the modules that hold more."]
    for page in pages():
        parts += [f"## [{page.title}]({page.path.partition('/')[2]})", page.intro, _table(page.names)]
    return "\n\n".join(part for part in parts if part) + "\n"


@cache
def pages() -> list[Page]:
    """All pages: one per commented group of `wellcond/__init__.py`, one per room with public names of its own."""
    top = {name: getattr(wellcond, name) for name in wellcond.__all__}
    grouped = [
        Page(
            f"reference/{_slug(title)}.md",
            title,
            intro,
            [f"wellcond.{n}" for n in names if not inspect.ismodule(top[n])],
        )
        for title, intro, names in groups()
    ]
    modules = [
        Page(f"reference/{path}.md", f"`{path}`", _summary(module), names)
        for path, module in public_modules().items()
        if (names := [f"{path}.{n}" for n in _public(module) if n not in top])
    ]
    written = [page for page in (*grouped, *modules) if page.names]
    missing = {f"wellcond.{name}" for name in top if not inspect.ismodule(top[name])} - {
        n for p in written for n in p.names
    }
    if missing:
        raise ValueError(f"public names outside every commented group of wellcond/__init__.py: {sorted(missing)}")
    _add_results(written)
    return written


def groups() -> list[tuple[str, str, list[str]]]:
    """Title, sentence and public names of each commented group of imports in `wellcond/__init__.py`."""
    source = inspect.getsource(wellcond)
    lines = source.splitlines()
    comments = {i + 1: line.strip()[1:].strip() for i, line in enumerate(lines) if line.lstrip().startswith("#")}
    by_comment: dict[str, list[str]] = {}
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "wellcond":
            above = [text for line, text in comments.items() if line < node.lineno]
            names = [alias.asname or alias.name for alias in node.names]
            by_comment.setdefault(above[-1] if above else "", []).extend(n for n in names if n in wellcond.__all__)
    return [(*_title(comment), names) for comment, names in by_comment.items()]


def _title(comment: str) -> tuple[str, str]:
    """`curvature: linear operators` as a title and a sentence."""
    title, _, intro = comment.partition(":")
    intro = intro.strip()
    return title[:1].upper() + title[1:], intro and f"{intro[0].upper()}{intro[1:]}."


def public_modules() -> dict[str, ModuleType]:
    """Modules with public names, by the path that a user writes: those of `wc`, then the rooms of both packages."""
    of_wc = {name: getattr(wellcond, name) for name in wellcond.__all__}
    modules = {f"wellcond.{name}": module for name, module in of_wc.items() if inspect.ismodule(module)}
    for package in (wellcond, wellcond_papers):
        for info in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
            modules.setdefault(info.name, importlib.import_module(info.name))
    return modules


def _public(module: ModuleType) -> Sequence[str]:
    names = IN_FILES.get(module.__name__) or getattr(module, "__all__", ())
    return [name for name in names if "." in name or not inspect.ismodule(getattr(module, name))]


def _add_results(written: list[Page]) -> None:
    """List on each page the package's classes that its names return or hold, unless they have an entry already."""
    seen = {_object(name) for page in written for name in page.names}
    for page in written:
        queue = [_object(name) for name in page.names]
        while queue:
            for cls in _mentioned(queue.pop(0)):
                if cls not in seen:
                    seen.add(cls)
                    queue.append(cls)
                    page.results.append(f"{cls.__module__}.{cls.__qualname__}")


def _mentioned(thing: Any) -> Iterator[type]:
    """Public classes of the package in the return type of a function; the bases of a class, its fields and returns."""
    if not inspect.isclass(thing):
        yield from _classes_in(thing, getattr(thing, "__annotations__", {}).get("return"))
        return
    kinds = thing.__subclasses__() if issubclass(thing, Exception) else thing.__bases__
    yield from filter(_is_public, kinds)
    for annotation in vars(thing).get("__annotations__", {}).values():
        yield from _classes_in(thing, annotation)
    for name, member in vars(thing).items():
        if not name.startswith("_") or name == "__getitem__":
            function = (
                member.fget if isinstance(member, property) else inspect.unwrap(getattr(member, "__func__", member))
            )
            yield from _classes_in(thing, getattr(function, "__annotations__", {}).get("return"))


def _classes_in(owner: Any, annotation: Any) -> Iterator[type]:
    text = annotation if isinstance(annotation, str) else getattr(annotation, "__name__", "")
    for name in re.findall(r"[A-Za-z_]\w*", text):
        cls = _lookup(owner.__module__, name)
        if inspect.isclass(cls) and _is_public(cls):
            yield cls


def _lookup(module: str, name: str) -> Any:
    """What `name` means in a module, also when it is imported for type checkers alone."""
    home = importlib.import_module(module)
    if hasattr(home, name):
        return getattr(home, name)
    if name not in _imports(module):
        return None
    source, own_name = _imports(module)[name]
    return getattr(importlib.import_module(source), own_name, None)


@cache
def _imports(module: str) -> dict[str, tuple[str, str]]:
    """What a module imports from the packages, by the name it has there: where from, and its own name."""
    return {
        alias.asname or alias.name: (node.module, alias.name)
        for node in ast.walk(ast.parse(inspect.getsource(importlib.import_module(module))))
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("wellcond")
        for alias in node.names
    }


def _is_public(cls: type) -> bool:
    return (
        cls.__module__.startswith("wellcond") and not cls.__qualname__.startswith("_") and "<" not in cls.__qualname__
    )


def _object(name: str) -> Any:
    module, _, attribute = name.rpartition(".")
    return getattr(pkgutil.resolve_name(module), attribute)


def has_signature(name: str) -> bool:
    """Whether the entry of a dotted name shows a signature: exceptions, named tuples, types and bases have none."""
    thing = _object(name)
    if inspect.isclass(thing):
        return not issubclass(thing, Exception | tuple) and bool(inspect.signature(thing).parameters)
    return inspect.isroutine(thing)


def identifier(name: str) -> str:
    """The dotted name under which mkdocstrings finds a public name: its definition, if a module has the same name."""
    module, _, attribute = name.rpartition(".")
    thing = _object(name)
    is_shadowed = f"{pkgutil.resolve_name(module).__name__}.{attribute}" in sys.modules
    return f"{thing.__module__}.{thing.__qualname__}" if is_shadowed else name


def _entry(name: str, level: int) -> str:
    anchor = f"[](){{#{name}}}\n\n" if identifier(name) != name else ""
    return f"{anchor}::: {identifier(name)}\n    options:\n      heading_level: {level}"


def _table(names: list[str]) -> str:
    rows = [f"| [`{name.rpartition('.')[2]}`][{name}] | {_summary(_object(name))} |" for name in names]
    return "\n".join(["| | |", "|---|---|", *rows])


def _summary(thing: Any) -> str:
    """The first sentence of a docstring, on one line."""
    first = " ".join((inspect.getdoc(thing) or "").split("\n\n")[0].split())
    return first.replace("|", "\\|")


def _slug(title: str) -> str:
    return re.sub(r"\W+", "-", title.lower()).strip("-")
