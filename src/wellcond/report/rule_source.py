"""What stands in the file of a rule: its mistake, and the reasons, remedies and bases of the findings it makes.

A value that a finding fills in, such as the name of a layer, is `…` here.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from pathlib import Path
from types import ModuleType

from wellcond.diagnosis.finding import BASES, Basis
from wellcond.remedies import REMEDIES

FILLED_IN = "…"


@dataclass(frozen=True)
class RuleSource:
    """The source of one rule.

    Attributes:
        name: The rule's name.
        file: Its module, or the package of its modules.
    """

    name: str
    file: ModuleType

    @cached_property
    def summary(self) -> str:
        """What is wrong, in a sentence: the first line of the file, without the rule's name."""
        first = inspect.cleandoc(self.file.__doc__ or "").partition("\n\n")[0]
        text = " ".join(first.split()).removeprefix(f"{self.name}: ")
        return text[:1].upper() + text[1:]

    @cached_property
    def mistakes(self) -> list[tuple[str, str]]:
        """Wrong and right code, in pairs, from the docstring of the file."""
        blocks = re.findall(
            r"^Wrong:\n((?:    .*\n?|\n)+?)Right:\n((?:    .*\n?|\n(?=    ))+)", _cleaned(self.file), re.MULTILINE
        )
        return [(inspect.cleandoc(f"\n{wrong}"), inspect.cleandoc(f"\n{right}")) for wrong, right in blocks]

    @cached_property
    def bases(self) -> list[Basis]:
        """Bases that its findings may have, the strongest first."""
        strings = set(_strings(self._tree))
        return [basis for basis in BASES if basis in strings]

    @cached_property
    def reasons(self) -> list[str]:
        """Why it matters: the reasons of its findings."""
        return list(dict.fromkeys(text for text in self._texts("reason") if text.endswith(".")))

    @cached_property
    def own_remedies(self) -> list[str]:
        """Remedies of the rule's own: lines of code, or comments that say what to look at."""
        texts = dict.fromkeys(self._texts("remedy"))
        return [
            text
            for text in texts
            if text and not any(line.strip("# ").startswith(FILLED_IN) for line in text.splitlines())
        ]

    @cached_property
    def advised(self) -> list[str]:
        """Names of the remedies whose lines its findings print."""
        passed = set(self._texts("treatment"))
        strings = set(_strings(self._tree))
        return [
            name for name, each in REMEDIES.items() if name in passed or (name in strings and self.name in each.rules)
        ]

    @cached_property
    def _tree(self) -> ast.Module:
        folder = getattr(self.file, "__path__", None)
        source = Path(inspect.getsourcefile(self.file) or "")
        paths = [source] if folder is None else sorted(Path(folder[0]).glob("[!_]*.py"))
        # one tree for all of them, for which each future import would have to be the first line
        lines = (path.read_text(encoding="utf-8").replace("from __future__ import annotations", "") for path in paths)
        return ast.parse("\n".join(lines))

    def _texts(self, argument: str) -> Iterator[str]:
        """Texts that are passed as an argument of a name, or assigned to that name first."""
        functions = {node.name: node for node in ast.walk(self._tree) if isinstance(node, ast.FunctionDef)}
        for node in ast.walk(self._tree):
            named: list[tuple[str | None, ast.expr]] = []
            if isinstance(node, ast.Call):
                called = functions.get(getattr(node.func, "id", ""))
                named = [(each.arg, each.value) for each in node.keywords]
                named += zip([each.arg for each in called.args.args] if called else [], node.args, strict=False)
            elif isinstance(node, ast.Assign):
                named = [(getattr(node.targets[0], "id", None), node.value)]
            for name, value in named:
                yield from _branches(value, functions) if name == argument else ()


def _cleaned(file: ModuleType) -> str:
    return inspect.cleandoc(file.__doc__ or "") + "\n"


def _branches(value: ast.expr, functions: Mapping[str, ast.FunctionDef]) -> Iterator[str]:
    """The texts that an expression may have, as far as they are written in the file; what functions return included."""
    if isinstance(value, ast.IfExp):
        yield from _branches(value.body, functions)
        yield from _branches(value.orelse, functions)
    elif isinstance(value, ast.Constant) and isinstance(value.value, str):
        yield value.value
    elif isinstance(value, ast.JoinedStr):
        yield from map("".join, product(*(list(_branches(each, functions)) for each in value.values)))
    elif isinstance(value, ast.FormattedValue):
        yield from list(_branches(value.value, functions)) or [FILLED_IN]
    elif isinstance(value, ast.Call) and (called := functions.get(getattr(value.func, "id", ""))) is not None:
        for node in ast.walk(called):
            if isinstance(node, ast.Return) and node.value is not None:
                yield from _branches(node.value, functions)


def _strings(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value
