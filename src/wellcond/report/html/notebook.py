"""Results as notebooks show them: findings as cards, tables in letters of one width, pictures; no script is needed.

Every name and text that comes from a user is escaped here.
"""

from __future__ import annotations

import base64
import textwrap
from collections.abc import Sequence
from html import escape
from importlib.resources import files

from wellcond.diagnosis.diagnosis import Diagnosis
from wellcond.diagnosis.finding import Finding, flat
from wellcond.errors import MissingExtra, OutputError
from wellcond.recording.run import Run
from wellcond.report.health import health_table
from wellcond.report.html import cards
from wellcond.report.manifests import progress_text
from wellcond.report.runs import is_helped
from wellcond.report.strips import Strip
from wellcond.report.text import numbers_text
from wellcond.report.thinning import thinned
from wellcond.report.tree import model_tree
from wellcond.results import Result
from wellcond.results import quantities as q
from wellcond.results.rendering import renders
from wellcond.results.result import picture
from wellcond.results.text import named
from wellcond.treatment.treatment import Treatment

LINE_WIDTH = 100
"""Characters of a line of text."""
WORST_LAYERS = 6
"""Layers of a recorded run, the worst first."""
MOST_OF_A_CURVE = 200
"""Points of a curve."""


def scoped(*parts: str) -> str:
    """HTML with its style, which nothing else in the notebook sees, in the colors of the notebook's theme."""
    own = (files("wellcond.report.html") / "notebook.css").read_text(encoding="utf-8")
    # doubled, so that it counts more than the notebook's own rules for tables, links and text
    return f'<style>{own} .wellcond.wellcond {{ {cards.style()} }}</style><div class="wellcond">{"".join(parts)}</div>'


@renders("fragment", Result)
def result_fragment(result: Result) -> str:
    """The text, and the picture if there is one and matplotlib is installed."""
    return scoped(_text(str(result)), _picture(result))


@renders("fragment", Finding)
def finding_fragment(finding: Finding) -> str:
    """Its card."""
    return scoped(cards.finding_cards([finding], key=str(finding), is_below_verdict=False))


@renders("fragment", Diagnosis)
def diagnosis_fragment(diagnosis: Diagnosis) -> str:
    """Verdict, findings and model, with the numbers folded away."""
    key, findings = diagnosis.assessment(), diagnosis.findings
    tree = cards.tree_list(model_tree(diagnosis.modules, findings), findings, key) if findings else ""
    return scoped(
        cards.verdict_card(key, findings, key=key),
        cards.finding_cards(findings, key),
        tree,
        f"<details><summary>Numbers</summary>{_text(numbers_text(diagnosis))}</details>",
    )


@renders("fragment", Treatment)
def treatment_fragment(treatment: Treatment) -> str:
    """What helps, the lines to write, and the arms."""
    helps = is_helped(treatment)
    return scoped(
        cards.verdict_card(treatment.verdict(), kind=cards.SOUND if helps else "warning"),
        cards.code_block(treatment.code) if helps else "",
        f'<p class="caption">{escape(treatment.title)}</p>',
        _table(*treatment.table()),
        _picture(treatment),
        "".join(f'<p class="caption">{escape(note)}</p>' for note in treatment.notes),
    )


@renders("fragment", Run)
def run_fragment(run: Run) -> str:
    """A run as it is now: verdict, curves, the worst layers, and its findings."""
    verdict = run.verdict()
    present = [finding for finding in run.findings if any(each.until is None for each in flat([finding]))]
    ended = [finding for finding in run.findings if finding not in present]
    past = f"<details><summary>{len(ended)} that ended</summary>{cards.finding_cards(ended, 'ended')}</details>"
    return scoped(
        f'<p class="caption">{escape(progress_text(run))}</p>',
        cards.verdict_card(verdict, present, key=verdict),
        "".join(_curve(run, quantity) for quantity in (q.TRAINING_LOSS, q.VALIDATION_LOSS)),
        _layers(run),
        cards.finding_cards(present, verdict, is_below_verdict=False),
        past if ended else "",
        "".join(f'<p class="caption">{escape(note)}</p>' for note in run.notes),
    )


def _curve(run: Run, quantity: str) -> str:
    series = run.history.series(quantity)
    if len(series) < 2:
        return ""
    series = thinned(series, MOST_OF_A_CURVE)
    labels, values = tuple(f"{step:,}" for step in series.steps), series.values.tolist()
    return cards.strip_plot(Strip(q.title_of(quantity), labels, tuple(values), is_curve=True))


def _layers(run: Run) -> str:
    head, cells = health_table(run, WORST_LAYERS)
    return _table(head, [[named(layer), *texts] for layer, texts in cells.items()]) if cells else ""


def _table(head: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    heads = "".join(f"<th>{escape(cell)}</th>" for cell in head)
    lines = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in line)}</tr>" for line in body)
    return f'<div class="wide"><table><thead><tr>{heads}</tr></thead><tbody>{lines}</tbody></table></div>'


def _text(text: str) -> str:
    """Text as it is aligned; sentences are broken into lines, of tables a wide one is scrolled."""
    lines = [line if "  " in line else textwrap.fill(line, LINE_WIDTH) for line in text.splitlines()]
    return f"<pre>{escape(chr(10).join(lines))}</pre>"


def _picture(result: Result) -> str:
    try:
        image = base64.b64encode(picture(result.figure(), dpi=90)).decode()
    except (OutputError, MissingExtra):
        return ""
    return f'<img alt="{type(result).__name__}" src="data:image/png;base64,{image}">'
