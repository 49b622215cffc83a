"""Writes the reproduction book: its pages and pictures, made from the committed rows of every experiment.

python docs/scripts/book.py [NAME ...]

Rows come from runs: `wellcond reproduce NAME --scale laptop --out runs` leaves them in `runs/NAME/laptop/rows.json`.
`python docs/scripts/book.py --take runs` first copies those of all finished runs into the book.
"""

from __future__ import annotations

import argparse
import re
import shutil
import sys
from collections import Counter
from functools import cache
from pathlib import Path

from wellcond.results.files import write_atomically
from wellcond.results.result import picture
from wellcond_papers.experiments.catalog import experiment, names
from wellcond_papers.experiments.claims import VERDICTS
from wellcond_papers.experiments.reproduce import Reproduction
from wellcond_papers.experiments.rows import read_rows
from wellcond_papers.experiments.scales import SCALES, Scale

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # benchmarks
from committed import table
from departures import departures

from benchmarks.evening.plan import Plan
from benchmarks.evening.queue import QUEUE

BOOK = Path(__file__).resolve().parents[1] / "reproduction"
ROWS = BOOK / "rows"
PICTURES = BOOK / "pictures"
REVIEWS = Path(__file__).parent / "reviews"
README = BOOK.parents[1] / "README.md"
SOURCES = {
    "huang2020": "Layer-wise conditioning analysis in exploring the learning dynamics of DNNs",
    "lange2022": "Batch normalization preconditioning for neural network training",
    "santurkar2018": "How does batch normalization help optimization?",
    "wei2019": "Mean-field analysis of batch normalization",
    "zhang2018": "On the local Hessian in back-propagation",
}
MARKS = {
    "holds": "✓ holds",
    "holds in part": "◐ holds in part",
    "does not hold": "✗ does not hold",
    "too short to tell": "… too short to tell",
}
"""How a verdict is written."""
TIMED = {("lange2022-fig9", "paper")}
"""Runs that had the machine to themselves."""
UNDECIDED = ("too short to tell", "not tested")
COUNTED = {
    "holds": "hold",
    "holds in part": "in part",
    "does not hold": "do not",
    "too short to tell": "too short",
    "not tested": "not tested",
}
"""How a verdict is called next to a count."""


@cache
def runs(name: str) -> dict[Scale, Reproduction]:
    """What is committed of an experiment, the largest scale first."""
    by_scale: dict[Scale, Reproduction] = {}
    for scale in reversed(SCALES):
        path = ROWS / f"{name}-{scale}.json"
        if path.exists():
            by_scale[scale] = read_rows(path)
    return by_scale


def label(name: str) -> str:
    """Figure 9 or Table A."""
    figure = name.partition("-")[2]
    if figure.startswith("fig"):
        return f"Figure {figure.removeprefix('fig')}"
    return f"Table {figure.removeprefix('table').removeprefix('-').upper()}"


def mark(verdict: str) -> str:
    """A verdict with its sign."""
    return MARKS.get(verdict, verdict)


def section(name: str) -> str:
    """One figure or table."""
    of, scales = experiment(name), runs(name)
    lines = [f'<a id="{name}"></a>', f"## {label(name)}: {of.title}", of.says]
    if not scales:
        needs = ", ".join(of.data("paper"))
        lines.append(f"*Not run{f': it needs {needs}' if needs else ''}.* `wellcond reproduce {name} --scale paper`")
    is_judged = False
    for scale, run in scales.items():
        minutes = sum(record.seconds for record in run.table) / 60
        count = f"{len(run.table)} of {len(run.table) + len(run.missing)}" if run.missing else f"{len(run.table)}"
        lines.append(f'<a id="{name}-{scale}"></a>')
        lines.append(
            f"**{scale} scale: {mark(run.verdict())}** ({count} runs on {run.made_with['device']}, "
            f"{'one at a time' if (name, scale) in TIMED else 'several at once'}, {minutes:.1f} minutes added up; "
            f"`wellcond reproduce {name} --scale {scale}`, [rows](rows/{name}-{scale}.json))"
        )
        if scale == "stand-in":
            lines.append(f"A stand-in: {of.stand_in}")
        lines += [decided_claims(run) if is_judged else claims(run), reasons(run)]
        is_judged = is_judged or bears(run)
        differs = list(departures(run))
        if differs:
            lines.append("Differs from the paper: " + ". ".join(text.rstrip(".") for text in differs) + ".")
        lines.append(f"![{label(name)}, {scale} scale](pictures/{name}-{scale}.png)")
    return "\n\n".join(filter(None, lines))


def claims(run: Reproduction) -> str:
    """The table of a run's claims, numbered."""
    rows = [
        [
            str(number),
            _cell(claim.says),
            "*(our claim)* " * claim.is_ours + _cell(claim.paper),
            _cell(outcome.measured),
            mark(outcome.verdict),
        ]
        for number, (claim, outcome) in enumerate(zip(run.experiment.claims, run.outcomes, strict=True), start=1)
    ]
    return table(["", "claim", "the paper", "found", "verdict"], rows)


def decided_claims(run: Reproduction) -> str:
    """The table at a smaller scale, next to a larger one: the claims that it decides, and the numbers of the others."""
    verdicts = [outcome.verdict for outcome in run.outcomes]
    numbers = [str(number) for number, verdict in enumerate(verdicts, start=1) if verdict in UNDECIDED]
    if not numbers:
        return claims(run)
    lines = claims(run).splitlines()
    decided = [line for line, verdict in zip(lines[2:], verdicts, strict=True) if verdict not in UNDECIDED]
    left_out = f"Too short to tell, or not tested: claim{'s' * (len(numbers) > 1)} {', '.join(numbers)}."
    return "\n".join([*lines[:2], *decided, "", left_out]) if decided else left_out


def reasons(run: Reproduction) -> str:
    """Why claims fail, hold in part, or cannot be judged yet, by their numbers."""
    return "\n".join(
        f"- Claim {number}: *{cause.kind}*. {cause.why}"
        for number, (claim, outcome) in enumerate(zip(run.experiment.claims, run.outcomes, strict=True), start=1)
        if (cause := claim.causes.get(run.scale)) and outcome.verdict not in ("holds", "not tested")
    )


def _cell(text: str) -> str:
    """Text in a table."""
    return text.replace("|", "\\|").replace("\n", " ")


def page(source: str) -> str:
    """What held and what did not, in short, then all figures and tables of a source."""
    own = [name for name in names() if name.startswith(source)]
    return "\n\n".join([f"# {source}: {SOURCES[source]}", review(source), *map(section, own)]) + "\n"


def review(source: str) -> str:
    """The written opening of a page; `quotes` says how its numbers are quoted."""
    return (REVIEWS / f"{source}.md").read_text(encoding="utf-8").strip()


def summary() -> str:
    """The table of all experiments and their verdicts."""
    rows = []
    for name in names():
        of, scales = experiment(name), runs(name)
        source = name.partition("-")[0]
        verdicts = "<br>".join(f"{scale}: {mark(run.verdict())}" for scale, run in scales.items()) or "not run"
        counts = "<br>".join(counted(run) for run in scales.values())
        called = label(name).replace("Figure", "figure").replace("Table", "table")
        rows.append([f"[{source}, {called}]({source}.md#{name})", _cell(of.title), verdicts, counts])
    return table(["", "what it shows", "verdict", "claims of the paper"], rows)


def counted(run: Reproduction) -> str:
    """How many of the paper's claims hold, fail, and could not be judged."""
    outcomes = [
        outcome.verdict for claim, outcome in zip(run.experiment.claims, run.outcomes, strict=True) if not claim.is_ours
    ]
    parts = [f"{outcomes.count(verdict)} {COUNTED[verdict]}" for verdict in VERDICTS if verdict in outcomes]
    return f"of {len(outcomes)}: {', '.join(parts)}"


def bears(run: Reproduction) -> bool:
    """Whether anything that was measured bears on a claim; of a table that was just begun nothing does."""
    return run.verdict() != "not tested"


def largest_runs() -> list[Reproduction]:
    """The run of every experiment at the largest scale that bears on its claims."""
    return [run for name in names() if (run := next(filter(bears, runs(name).values()), None))]


def ran() -> str:
    """What was run at which scale."""
    largest = largest_runs()
    scales, partial = Counter(run.scale for run in largest), sum(bool(run.missing) for run in largest)
    counts = [f"{scales[scale]} at `{scale}`" for scale in reversed(SCALES) if scales[scale]]
    if partial:
        counts.append(f"{partial} of them in part")
    were_run = f"Of {len(names())} figures and tables {len(largest)} were run"
    return f"{were_run}, counted by the largest scale that bears on a claim: {', '.join(counts)}."


def totals() -> str:
    """What was run at which scale, and all claims of the papers there; those judged on a stand-in are not counted."""
    verdicts = Counter(
        outcome.verdict
        for run in largest_runs()
        for claim, outcome in zip(run.experiment.claims, run.outcomes, strict=True)
        if not claim.is_ours and run.scale != "stand-in"
    )
    claims = ", ".join(f"{verdicts[verdict]} {COUNTED[verdict]}" for verdict in VERDICTS if verdicts[verdict])
    return f"{ran()} Of the {verdicts.total()} claims that are not judged on a stand-in: {claims}."


def read_me(old: str) -> str:
    """The README, whose sentence about the runs is filled in."""
    return re.sub(r"(?<=<!-- ran -->).*?(?=<!-- end of ran -->)", ran(), old)


def index(old: str) -> str:
    """The first page, whose table is filled in."""
    head, begin, rest = old.partition("<!-- summary -->")
    tail = rest.partition("<!-- end -->")[2]
    return f"{head}{begin}\n\n{totals()}\n\n{summary()}\n\n<!-- end -->{tail}"


def left() -> str:
    """What the queue has left, with its minutes."""
    plan = Plan(QUEUE, ROWS, Path("no-runs"))
    rows, total = [], 0.0
    for entry in plan.entries:
        if cells := plan.left(entry, "cuda"):
            minutes = sum(each.seconds for each in cells) / 60 / entry.sharing
            total += minutes
            figure = f"[{entry.name}]({entry.name.partition('-')[0]}.md#{entry.name})"
            rows.append([figure, entry.scale, f"{len(cells)} of {len(entry.cells())}", f"{minutes:.1f}", entry.decides])
    rows.append(["together", "", "", f"{total:.0f}", ""])
    return table(["", "scale", "cells left", "minutes", "decides"], rows)


def evening(old: str) -> str:
    """The page of the queue, whose table is filled in."""
    head, begin, rest = old.partition("<!-- left -->")
    tail = rest.partition("<!-- end -->")[2]
    return f"{head}{begin}\n\n{left()}\n\n<!-- end -->{tail}"


def pages() -> dict[Path, str]:
    """Every page of the book by its file, and the README."""
    filled = {BOOK / "index.md": index, BOOK / "evening.md": evening, README: read_me}
    written = {path: fill(path.read_text(encoding="utf-8")) for path, fill in filled.items()}
    return written | {BOOK / f"{source}.md": page(source) for source in SOURCES}


def main() -> None:
    """Take new rows over, draw the pictures, and write the pages."""
    command = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    command.add_argument("names", nargs="*", help="draw these alone (default: all)")
    command.add_argument("--take", type=Path, help="a folder with runs, whose rows are copied into the book")
    options = command.parse_args()
    for folder in (ROWS, PICTURES):
        folder.mkdir(parents=True, exist_ok=True)
    if options.take is not None:
        for path in sorted(options.take.glob("*/*/rows.json")):
            name, scale = path.parts[-3:-1]
            if scale != "smoke":
                shutil.copy(path, ROWS / f"{name}-{scale}.json")
    for name in options.names or names():
        experiment(name)  # refuses an unknown one
        for scale, run in runs(name).items():
            write_atomically(PICTURES / f"{name}-{scale}.png", picture(run.figure(), dpi=100))
    for path, text in pages().items():
        write_atomically(path, text.encode())


if __name__ == "__main__":
    main()
