"""The parts of a page that are text and tables. Every name that comes from a user is escaped here."""

from __future__ import annotations

import html
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from wellcond.report.columns import COLUMNS, Column, grouped
from wellcond.report.facts import compare_facts
from wellcond.report.pivot import Pivot
from wellcond.report.plots import SERIES_COLOURS
from wellcond.report.subject import Subject
from wellcond.results import Row


def _matrix_columns(matrix: str) -> list[Column]:
    """Everything that is known of one matrix: λmax, κ20 to κ100, rank."""
    size, kappa, rank = [c for c in COLUMNS if c.quantity.endswith(f"({matrix})")]
    kappas = [
        replace(kappa, title=f"κ{p} {matrix}", quantity=f"kappa_{p}%({matrix})", meaning=f"λmax over that at {p} %")
        for p in (20, 50, 80, 100)
    ]
    return [size, *kappas, replace(rank, title=f"rank {matrix}")]


ALL_COLUMNS = (
    *_matrix_columns("Σx"),
    *_matrix_columns("Σ∇h"),
    *(c for c in COLUMNS if c.of == "units"),
    Column("‖θ‖", "weight_norm", "norm of the layer's parameters"),
    Column("‖∂L/∂θ‖", "gradient_norm", "norm of the loss's gradient in them"),
)


def facts_section(series: Mapping[str, Sequence[Row]]) -> str:
    """The headlines, one column a network."""
    body = []
    for line in compare_facts(series):
        cells = "".join(
            f'<td data-network="{html.escape(name)}">{html.escape(text or "–")}</td>'
            for name, text in line.texts.items()
        )
        body.append(f'<tr><th scope="row">{line.title}<small>{html.escape(line.meaning)}</small></th>{cells}</tr>')
    head = "".join(f'<th scope="col">{dotted(name, i)}</th>' for i, name in enumerate(series))
    thead = f"<thead><tr><td></td>{head}</tr></thead>" if len(series) > 1 else ""
    return f'<table class="facts">{thead}<tbody>{"".join(body)}</tbody></table>'


def layers_section(pivots: Mapping[str, Pivot]) -> str:
    """All layers of all networks, with the worst cell of each column and network marked."""
    columns = [c for c in ALL_COLUMNS if any(pivot.column(c.quantity) for pivot in pivots.values())]
    many = len(pivots) > 1
    heads = [("layer", "name, in the order of the network", "text")] + ([("network", "", "text")] if many else [])
    heads += [(c.title, c.meaning, "") for c in columns]
    head = "".join(
        f'<th scope="col" class="{kind}" title="{html.escape(meaning)}"><button>{html.escape(title)}</button></th>'
        for title, meaning, kind in heads
    )
    body = []
    for i, (name, pivot) in enumerate(pivots.items()):
        worst = {c: c.worst_layers(pivot.layers) for c in columns}
        for position, (layer, line) in enumerate(pivot.layers.items()):
            cells = [f'<th scope="row" class="text" data-value="{position}">{html.escape(layer)}</th>']
            if many:
                cells.append(f'<td class="text" data-value="{i}">{dotted(name, i)}</td>')
            for c in columns:
                mark = ' class="worst"' if layer in worst[c] else ""
                cells.append(f'<td{mark} data-value="{_sort_key(line.get(c.quantity))}">{c.text(line)}</td>')
            body.append(f"<tr>{''.join(cells)}</tr>")
    table = f'<table class="layers"><thead><tr>{head}</tr></thead><tbody>{"".join(body)}</tbody></table>'
    return f'<div class="scroll">{table}</div>'


def missing_section(subjects: Mapping[str, Subject]) -> str:
    """Layers that have no numbers, and why."""
    entries = {}
    for name, subject in subjects.items():
        for why, layers in grouped(subject.not_covered).items():
            entries[_prefixed(name, layers, subjects)] = why
    return definitions(entries)


def failed_section(subjects: Mapping[str, Subject]) -> str:
    """Measurements that failed, first thing on the page."""
    entries = {}
    for name, subject in subjects.items():
        for why, parts in grouped(subject.failed).items():
            entries[_prefixed(name, parts, subjects)] = why
    return f'<div class="failed"><strong>Could not be measured</strong>{definitions(entries)}</div>' if entries else ""


def about_section(subjects: Mapping[str, Subject]) -> str:
    """What the numbers hold for; said once where all networks agree."""
    titles = dict.fromkeys(title for subject in subjects.values() for title in subject.about)
    entries = {}
    for title in titles:
        said = {name: subject.about[title] for name, subject in subjects.items() if title in subject.about}
        alike = len(set(said.values())) == 1
        entries[title] = next(iter(said.values())) if alike else "; ".join(f"{n}: {text}" for n, text in said.items())
    return definitions(entries)


def definitions(entries: Mapping[str, str]) -> str:
    if not entries:
        return ""
    return f"<dl>{''.join(f'<dt>{html.escape(t)}</dt><dd>{html.escape(d)}</dd>' for t, d in entries.items())}</dl>"


def dotted(name: str, index: int) -> str:
    """A network's name behind a dot of its colour."""
    colour = f"--dot: var(--series-{index % SERIES_COLOURS})"
    return f'<span class="dot" style="{colour}"></span>{html.escape(name)}'


def _prefixed(network: str, names: str, subjects: Mapping[str, Subject]) -> str:
    return f"{network}: {names}" if len(subjects) > 1 else names


def _sort_key(value: float | None) -> str:
    """What JavaScript's Number() reads; empty for what is missing."""
    if value is None or math.isnan(value):
        return ""
    return repr(value).replace("inf", "Infinity")
