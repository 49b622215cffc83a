"""What differs between a run and the paper, from the settings of every cell."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from wellcond_papers.experiments.experiment import TRAINING_IMAGES, Settings
from wellcond_papers.experiments.reproduction import Reproduction

FEW = 3
"""Names of arms are listed up to this number, and counted above it."""
WORDS = {"half": {True: "bfloat16", False: "float32"}}
"""Values of settings that need a word."""
NAMES = {"half": "precision"}
"""Settings whose name is not what a reader would call it."""
OF_A_RUN = ("arm", "seed")


def departures(run: Reproduction) -> Iterator[str]:
    """What differs from the paper: the settings of the scale, arm by arm, then what holds at every scale."""
    of = run.experiment
    own, paper = ({cell.settings["arm"]: cell.settings for cell in of.cells(scale)} for scale in (run.scale, "paper"))
    changed: dict[str, dict[str, list[str]]] = {}
    for arm in run.table.arms:
        if arm in paper:
            for name, text in _changes(own[arm], paper[arm], of.silent):
                changed.setdefault(name, {}).setdefault(text, []).append(arm)
    parts = [_setting(name, texts, len(run.table.arms)) for name, texts in changed.items()]
    seeds = (len({cell.settings["seed"] for cell in of.cells(scale)}) for scale in (run.scale, "paper"))
    parts += [f"seeds {ours} (`paper`: {theirs})" for ours, theirs in [seeds] if ours != theirs]
    if missing := [arm for arm in paper if arm not in run.table.arms]:
        names = "; ".join(missing) if len(missing) <= FEW else f"{len(missing)} of {len(paper)} arms"
        parts.append(f"without {names}")
    parts += _missing_seeds(run)
    if parts:
        yield "; ".join(parts)
    if unstated := [f"`{NAMES.get(name, name)}`" for name in changed if name in of.silent]:
        yield f"The source does not state {', '.join(unstated)}: what `paper` has is our choice"
    yield from of.departures


def _missing_seeds(run: Reproduction) -> list[str]:
    """How many seeds ran, of the arms that are not complete."""
    missing = Counter(cell.settings["arm"] for cell in run.missing)
    arms: dict[tuple[int, int], list[str]] = {}
    for arm in run.table.arms:
        if missing[arm]:
            ran = len(run.table.arm(arm))
            arms.setdefault((ran, ran + missing[arm]), []).append(arm)
    return [f"{ran} of {planned} seeds in {_arms(names)}" for (ran, planned), names in arms.items()]


def _changes(own: Settings, paper: Settings, silent: Collection[str]) -> Iterator[tuple[str, str]]:
    """Each setting that differs, and how."""
    own, paper = _in_epochs(own, paper)
    for name in dict.fromkeys([*own, *paper]):
        ours, theirs = _word(name, own.get(name)), _word(name, paper.get(name))
        if ours != theirs and name not in OF_A_RUN:
            scale = "`paper`" if name in silent else "paper"
            yield name, f"{ours} ({f'{scale}: {theirs}' if name in paper else 'not set at `paper`'})"


def _in_epochs(own: Settings, paper: Settings) -> tuple[dict[str, Any], dict[str, Any]]:
    """Both lengths of training in epochs, if one is in steps and the other in epochs."""
    pair = [{name: value for name, value in each.items() if value is not None} for each in (own, paper)]
    if {"epochs" in each for each in pair} == {True, False}:
        for each in pair:
            if "steps" in each and each.get("data") in TRAINING_IMAGES:
                each["epochs"] = float(f"{each.pop('steps') * each['batch'] / TRAINING_IMAGES[each['data']]:.2g}")
    return pair[0], pair[1]


def _setting(name: str, texts: Mapping[str, list[str]], arms: int) -> str:
    """One setting, with the arms that it is about unless it is all of them."""
    called = f"`{NAMES.get(name, name)}`"
    if len(texts) == 1 and len(next(iter(texts.values()))) == arms:
        return f"{called} {next(iter(texts))}"
    return f"{called} " + ", ".join(f"{text} in {_arms(names)}" for text, names in texts.items())


def _arms(names: list[str]) -> str:
    return "; ".join(names) if len(names) <= FEW else f"{len(names)} arms"


def _word(name: str, value: Any) -> str:
    if value is None:
        return "none"
    if name in WORDS:
        return WORDS[name][value]
    if isinstance(value, (list, tuple)):
        return f"{len(value)} values" if len(value) > 6 else ", ".join(map(str, value)) or "none"
    return f"{value:,}".replace(",", " ") if isinstance(value, int) and abs(value) >= 10_000 else str(value)
