"""Tables of what verdicts are worth: faults and healthy networks, by rule and by tool."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

from committed import read, seconds, table

GOALS = {"severe": "something severe found", "first": "right rule first", "three": "in the first three",
         "layer": "right layer"}  # fmt: skip
EXAMINATIONS = Path(__file__).parents[2] / "tests" / "examination"
RUN_EXAMINATIONS = Path(__file__).parents[2] / "tests" / "run_examination"
RUNS = {"first": "at first sight", "second": "after mending"}
"""The results of an examination, and what they are."""
sys.path += [str(EXAMINATIONS), str(RUN_EXAMINATIONS)]

from examine import shares  # noqa: E402
from examine_runs import shares as run_shares  # noqa: E402


def verdict_examination() -> str:
    """What the last examination showed, at first sight and after mending, and by rule at first sight."""
    results = _last_results(EXAMINATIONS)
    goals = {name: shares(result) for name, result in results.items()}
    rows = [[goal, *(_of(*goals[name][goal]) for name in results)] for goal in goals["first"]]
    by_rule: dict[str, list[dict[str, Any]]] = {}
    for fault in results["first"]["faults"]:
        by_rule.setdefault(fault["rules"][0], []).append(fault)
    lines = [[f"[`{rule}`](rules/{rule}.md)", *_counts(members)] for rule, members in sorted(by_rule.items())]
    return "\n\n".join(
        [
            table(["", *(RUNS[name] for name in results)], rows),
            "By the fault's rule, at first sight:",
            table(["the fault's rule", "cases", "right rule first", "in the first three", "right layer"], lines),
        ]
    )


def examinations() -> str:
    """What every examination showed at first sight, the last one first."""
    held = _held(EXAMINATIONS)
    rows = [[str(len(held) - place), *_first_sight([results])] for place, results in enumerate(reversed(held))]
    return table(["examination", *FIRST_SIGHT], [*rows, ["**all**", *_first_sight(held)]])


def run_examinations() -> str:
    """What every examination of recorded runs showed at first sight, the last one first."""
    held = [run_shares(results) for results in _held(RUN_EXAMINATIONS)]
    rows = [[str(len(held) - place), *_sums([goals], RUN_SIGHT)] for place, goals in enumerate(reversed(held))]
    return table(["examination", *RUN_SIGHT], [*rows, ["**all**", *_sums(held, RUN_SIGHT)]])


def examined() -> str:
    """The last examination and all before it, of set-ups and of recorded runs."""
    *before, last = _held(EXAMINATIONS)
    *runs_before, last_runs = [run_shares(results) for results in _held(RUN_EXAMINATIONS)]
    in_runs = ("right rule first", "silent", "healthy runs severely accused")
    return table(
        ["", *FIRST_SIGHT],
        [
            ["the last one", *_first_sight([last])],
            [f"the {len(before)} before, together", *_first_sight(before)],
            ["of recorded trainings, with faults that only training shows: the last one", *_sums([last_runs], in_runs)],
            [f"the {len(runs_before)} before, together", *_sums(runs_before, in_runs)],
        ],
    )


FIRST_SIGHT = ("right cause first", "silent", "sound set-ups severely accused")
"""What counts most in an examination."""
RUN_SIGHT = ("right rule first", "right layer", "right step", "silent", "healthy runs severely accused",
             "healthy runs with more than one warning")  # fmt: skip
"""The same of recorded runs."""


def _held(examinations: Path) -> list[dict[str, Any]]:
    """First results, the earliest first."""
    return [json.loads(path.read_text(encoding="utf-8")) for path in sorted(examinations.glob("2*/first.json"))]


def _first_sight(held: list[dict[str, Any]]) -> list[str]:
    """The sums over some examinations."""
    return _sums([shares(results) for results in held], FIRST_SIGHT)


def _sums(every: list[dict[str, tuple[int, int]]], goals: tuple[str, ...]) -> list[str]:
    """How often goals were met over some examinations; of the first, which counts most, the share too."""
    sums = [[sum(shares[goal][k] for shares in every) for k in (0, 1)] for goal in goals]
    return [
        f"{count} of {of}, {count / of:.0%}" if goal == goals[0] else f"{count} of {of}"
        for goal, (count, of) in zip(goals, sums, strict=True)
    ]


def run_examination() -> str:
    """What the last examination of recorded runs showed, and every fault of it, at first sight."""
    results = _last_results(RUN_EXAMINATIONS)
    goals = {name: run_shares(result) for name, result in results.items()}
    rows = [[goal, *(_of(*goals[name][goal]) for name in results)] for goal in goals["first"]]
    faults = [
        [fault["name"].replace("_", " "), f"`{fault['rules'][0]}`, {fault['step']}", _said(fault["findings"])]
        for fault in results["first"]["faults"]
    ]
    return "\n\n".join(
        [
            table(["", *(RUNS[name] for name in results)], rows),
            "The faults, and the first finding at first sight, with its step:",
            table(["fault", "its rule and step", "first finding"], faults),
        ]
    )


def _last_results(examinations: Path) -> dict[str, Any]:
    """Results of the last examination that was held; cases of a later one may be written already."""
    last = max(path.parent for path in examinations.glob("2*/first.json"))
    paths = {name: last / f"{name}.json" for name in RUNS}
    return {name: json.loads(path.read_text(encoding="utf-8")) for name, path in paths.items() if path.exists()}


def _said(findings: list[dict[str, Any]]) -> str:
    if not findings:
        return "nothing"
    first = findings[0]
    return f"{first['severity']}: `{first['rule']}`{' at ' + first['layer'] if first['layer'] else ''}, {first['step']}"


def _of(count: int, of: int) -> str:
    """A share with its 95 % interval (Wilson)."""
    if not of:
        return "–"
    z, p = 1.96, count / of
    center, half = (p + z * z / 2 / of) / (1 + z * z / of), z * math.sqrt(p * (1 - p) / of + z * z / 4 / of**2)
    half /= 1 + z * z / of
    return f"{count} of {of}, {p:.0%} ({max(center - half, 0):.0%} to {min(center + half, 1):.0%})"


def _counts(cases: list[dict[str, Any]]) -> list[str]:
    """Number of cases, and of how many the goals were met; the layer counts only where the case names one."""
    with_layer = [case for case in cases if case["layers"]]
    layer = f"{sum(case['layer'] for case in with_layer)} of {len(with_layer)}" if with_layer else "–"
    return [str(len(cases)), *(str(sum(case[goal] for case in cases)) for goal in ("first", "three")), layer]


REPAIRS = "repairs_cpu"


def verdict_repairs() -> str:
    """By rule: how often the lines that its finding prints, pasted as they are, repair the network."""
    rows = [row for row in read(REPAIRS)["results"] if row["outcome"] not in ("no fault", "nothing found")]
    by_rule: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        by_rule.setdefault(row["rule"], []).append(row)
    lines = [[f"[`{rule}`](rules/{rule}.md)", *_repaired(members)] for rule, members in sorted(by_rule.items())]
    lines.append(["**all**", *(f"**{cell}**" for cell in _repaired(rows))])
    head = ["the finding's rule", "faults", "code was printed", "repaired by it", "after pasting up to three times"]
    return table(head, lines)


def _repaired(rows: list[dict[str, Any]]) -> list[str]:
    """Numbers of faults, of those with code to paste, and of those that it repairs at once or in some rounds."""
    with_code = [row for row in rows if row["outcome"] != "says what to look at"]
    at_once = sum(row["outcome"] == "repaired" for row in with_code)
    later = sum(row["rounds needed"] is not None for row in with_code)
    return [str(len(rows)), str(len(with_code)), *((str(at_once), str(later)) if with_code else ("–", "–"))]


def verdict_repair_cases() -> str:
    """Every fault by the rule of its finding: what its lines were of, and what both forms and the pasted one score."""
    rows = [row for row in read(REPAIRS)["results"] if row["outcome"] != "no fault"]
    lines = []
    for row in sorted(rows, key=lambda row: (row["rule"], row["name"])):
        first, remedy, pasted = row["rounds"][0], row["outcome"], "–"
        if "score" in first:
            remedy = f"`{first['treatment']}`" if first["treatment"] else "the rule's own"
            pasted = f"{first['score']:.2f} {'✓' if row['outcome'] == 'repaired' else '✗'}"
        rule = f"`{row['rule']}`" if row["rule"] else "–"
        lines.append([rule, row["title"], remedy, f"{row['faulty']:.2f}", pasted, f"{row['repaired']:.2f}"])
    return table(["the finding's rule", "fault", "its lines", "faulty", "pasted", "repaired form"], lines)


def verdict_shares() -> str:
    """How often each tool is right, and how often it calls a healthy network ill."""
    results = read("verdicts_cpu")["results"]
    shares = results["shares"]
    rows = []
    for key, words in GOALS.items():
        cells = [_share(share[key], share["cases"]) for share in shares.values()]
        if key != "severe":
            generous = [share["generous"][key] for share in shares.values()]
            cells = [
                c if g == s[key] else f"{c} ({g})" for c, g, s in zip(cells, generous, shares.values(), strict=True)
            ]
        rows.append([words, *cells])
    rows.append(["healthy networks called severely ill",
                 *(f"{share['controls_severe']} of {share['controls']}" for share in shares.values())])  # fmt: skip
    healthy = [*results["controls"], *(case for case in results["cases"] if case["is_control"])]
    for worst in ("warning", "note"):
        counts = [sum(_worst(row[tool]) == worst for row in healthy) for tool in shares]
        rows.append([f"healthy networks with a {worst} at worst", *(f"{count} of {len(healthy)}" for count in counts)])
    return table(["", *shares], rows)


def _worst(judged: dict[str, Any]) -> str:
    """The highest severity of all findings; "" if there are none."""
    severities = {finding["severity"] for finding in judged["findings"]}
    return next((each for each in ("severe", "warning", "note") if each in severities), "")


def _share(count: int, of: int) -> str:
    return f"{count} of {of}, {count / of:.0%}"


def verdict_cases() -> str:
    """What every tool puts first, case by case, next to the scores that verify the case."""
    judged, verified = read("verdicts_cpu")["results"], read("verdicts_verified")["results"]
    scores = {row["name"]: row for row in verified["cases"]}
    tools = list(judged["shares"])
    rows = []
    for row in judged["cases"]:
        score = scores[row["name"]]
        cells = [_first(row[tool], row["counts"]) for tool in tools]
        rows.append(
            [str(row["number"]), row["title"], f"{_mean(score['faulty'])} → {_mean(score['repaired'])}", *cells]
        )
    return table(["", "fault", "faulty → repaired", *tools], rows)


def _mean(values: list[float]) -> str:
    return f"{sum(values) / len(values):.2f}"


def _first(judged: dict[str, Any], counts: bool) -> str:
    """The first finding; ✓ it is right, (✓) one of the first three is, ✗ none is."""
    mark = "" if not counts else "✓ " if judged["first"] else "(✓) " if judged["three"] else "✗ "
    if not judged["findings"]:
        return mark + ("failed" if judged.get("error") else "nothing")
    first = judged["findings"][0]
    where = next(iter(first["layers"]), "")
    rule = first["rule"].removesuffix(f" in {where}")
    return (
        f"{mark}{rule}"
        + (f" at `{where}`" if where else "")
        + ("" if first["severity"] == "severe" else f", {first['severity']}")
    )


def verdict_controls() -> str:
    """Every family by stage: severe findings of each tool, and what `diagnose` takes."""
    judged = read("verdicts_cpu")["results"]
    tools = list(judged["shares"])
    groups: dict[str, list[dict[str, Any]]] = {}
    for row in judged["controls"]:
        name = "repaired forms" if row["name"].endswith(", repaired") else row["name"].split(", ")[0]
        groups.setdefault(name, []).append(row)
    rows = []
    for name, members in groups.items():
        ill = [str(sum(bool(member[tool]["severe"]) for member in members)) for tool in tools]
        times = sorted(member["wellcond"]["seconds"] for member in members)
        rows.append([name, str(len(members)), *ill, seconds(times[len(times) // 2])])
    return table(["healthy", "networks", *(f"severe: {tool}" for tool in tools), "`diagnose`, median"], rows)
