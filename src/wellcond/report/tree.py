"""The model as a tree of modules, with the findings of each."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from wellcond.diagnosis.finding import Finding, Severity
from wellcond.report.findings import by_layer, worst_of
from wellcond.report.table import MOST_LINES

SHORT_RUN = 2
"""Neighbors without a finding that are not worth folding."""


@dataclass
class Node:
    """A module, or a parameter that is to blame.

    Attributes:
        path: Name in the model; "" for the model itself.
        kind: Name of its class.
        findings: Findings there.
        children: Modules and parameters inside, by name.
    """

    path: str
    kind: str = ""
    findings: list[Finding] = field(default_factory=list)
    children: dict[str, Node] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The last part of the path."""
        return self.path.rpartition(".")[2]

    @property
    def severity(self) -> Severity | None:
        """The worst severity of its own findings."""
        return worst_of(finding.severity for finding in self.findings)

    @property
    def worst_inside(self) -> Severity | None:
        """The worst severity of all findings inside it."""
        return worst_of(finding.severity for node in self.walk() for finding in node.findings)

    def walk(self) -> Iterator[Node]:
        """Itself and all below it."""
        yield self
        for child in self.children.values():
            yield from child.walk()


def model_tree(modules: Mapping[str, str], findings: Iterable[Finding]) -> Node:
    """The tree of a model.

    Args:
        modules: Class of every module, by name; "" is the model.
        findings: Findings; a layer that is not a module, such as a parameter, gets a node of its own.

    Example:
        >>> finding = Finding(rule="dying-neurons", layer="body.1", severity="warning", summary="")
        >>> tree = model_tree({"": "Net", "body": "Sequential", "body.0": "Linear", "body.1": "ReLU"}, [finding])
        >>> [(node.path, node.kind, node.severity) for node in tree.walk()][-1], tree.worst_inside
        (('body.1', 'ReLU', 'warning'), 'warning')
    """
    findings_of = by_layer(findings)
    root = Node("", modules.get("", "model"))
    for path in dict.fromkeys([*modules, *findings_of]):
        node, parts = root, path.split(".") if path else []
        for depth, name in enumerate(parts, start=1):
            below = ".".join(parts[:depth])
            node = node.children.setdefault(name, Node(below, modules.get(below, "")))
        node.findings = findings_of.get(path, [])
    return root


def is_short(tree: Node) -> bool:
    """Whether a tree is shown whole; a longer one is folded where there are no findings."""
    return sum(1 for _ in tree.walk()) <= MOST_LINES


def folded(node: Node, *, whole: bool) -> list[Node | list[Node]]:
    """The children to show: single ones, and lists of neighbors without a finding, to be shown as one line.

    Args:
        node: Module whose children are shown.
        whole: Whether to fold nothing.
    """
    shown: list[Node | list[Node]] = []
    run: list[Node] = []

    def end_run() -> None:
        shown.extend(run if len(run) <= SHORT_RUN else [list(run)])
        run.clear()

    for child in node.children.values():
        if whole or child.worst_inside is not None:
            end_run()
            shown.append(child)
        else:
            run.append(child)
    end_run()
    return shown


def run_text(run: list[Node]) -> str:
    """Neighbors without a finding in one line.

    Example:
        >>> run_text([Node("body.0"), Node("body.1"), Node("body.2")])
        '0 … 2: 3 modules, nothing found'
    """
    return f"{run[0].name} … {run[-1].name}: {len(run)} modules, nothing found"
