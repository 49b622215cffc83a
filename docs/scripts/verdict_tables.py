"""Tables of what verdicts are worth: real faults and healthy networks, by tool."""

from __future__ import annotations

from typing import Any

from committed import read, seconds, table

GOALS = {"severe": "something severe found", "first": "right rule first", "three": "in the first three",
         "layer": "right layer"}  # fmt: skip


def verdict_shares() -> str:
    """How often each tool is right, and how often it calls a healthy network ill."""
    found = read("verdicts_cpu")["results"]["shares"]
    rows = []
    for key, words in GOALS.items():
        cells = [_share(share[key], share["cases"]) for share in found.values()]
        if key != "severe":
            generous = [share["generous"][key] for share in found.values()]
            cells = [
                c if g == s[key] else f"{c} ({g})" for c, g, s in zip(cells, generous, found.values(), strict=True)
            ]
        rows.append([words, *cells])
    rows.append(["healthy networks called severely ill",
                 *(f"{share['controls_severe']} of {share['controls']}" for share in found.values())])  # fmt: skip
    return table(["", *found], rows)


def _share(count: int, of: int) -> str:
    return f"{count} of {of}, {count / of:.0%}"


def verdict_cases() -> str:
    """What every tool puts first, case by case, beside the scores that verify the case."""
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


def _first(found: dict[str, Any], counts: bool) -> str:
    """The first finding; ✓ it is right, (✓) one of the first three is, ✗ none is."""
    mark = "" if not counts else "✓ " if found["first"] else "(✓) " if found["three"] else "✗ "
    if not found["findings"]:
        return mark + ("failed" if found.get("error") else "nothing")
    first = found["findings"][0]
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
