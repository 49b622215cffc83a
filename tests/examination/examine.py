"""Run an examination: what `diagnose` says of faults and sound set-ups that its rules were not written with.

python tests/examination/examine.py 2026-11-b --jobs 2          # writes 2026-11-b/first.json, or second.json after that
python tests/examination/examine.py 2026-11-b --only NAME …     # those whose names begin so; prints, writes nothing
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import json
import multiprocessing
import sys
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import torch

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

import program  # noqa: E402  # the cases import it by this name

import wellcond as wc  # noqa: E402

ILL = ("severe", "warning")
"""A verdict with neither is silent."""
SEED = 0
"""Before a set-up is built."""


def folders(examination: str) -> list[Path]:
    """The folders of an examination that hold cases: each has an `all.py`, which registers them."""
    return sorted(path.parent for path in (HERE / examination).rglob("all.py"))


def checksums(examination: str) -> dict[str, str]:
    """sha256 of every file with cases, by its path in the examination."""
    base = HERE / examination
    return {
        path.relative_to(base).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(base.rglob("*.py"))
    }


def load(folder: Path) -> None:
    """Register the cases of a folder. Folders have files of the same names, so each needs its own process."""
    torch.set_num_threads(1)
    sys.path.insert(0, str(folder))
    importlib.import_module("all")


def names_in(folder: Path) -> tuple[list[str], list[str]]:
    """Names of the faults and of the sound set-ups of a folder; call it in a process of its own."""
    load(folder)
    return list(program.FAULTS), list(program.SOUND)


def drawn(build: Callable[..., program.Program], *form: bool) -> program.Program:
    """A set-up whose weights, data and trial are the same whenever it is examined."""
    torch.manual_seed(SEED)
    return build(*form)


def findings_of(one: program.Program) -> list[dict[str, str]]:
    """Rule, layer, severity and basis of every finding, worst first; consequences are not listed."""
    if one.step is not None:
        problem = wc.Problem.from_step(one.model, one.step, one.batches)
    else:
        problem = wc.Problem(one.model, one.loss, one.batches)
    diagnosis = wc.diagnose(problem, one.optimizer, scheduler=one.scheduler)
    return [{key: getattr(each, key) for key in ("rule", "layer", "severity", "basis")} for each in diagnosis.findings]


def judged(one: program.Program) -> dict[str, Any]:
    """The findings; an exception counts as no finding, and is shown."""
    try:
        return {"findings": findings_of(one)}
    except Exception as error:
        text, where = f"{type(error).__name__}: {error}", traceback.format_exc().replace(f"{HERE.parents[1]}/", "")
        return {"findings": [], "error": text[:300], "where": where[-600:]}


def examine_fault(name: str) -> dict[str, Any]:
    """The findings on the faulty form, and whether they are right; and on the repaired form."""
    fault = program.FAULTS[name]
    row: dict[str, Any] = {"name": name, "what": fault.what, "fails": fault.fails}
    row |= {"rules": list(fault.rules), "layers": list(fault.layers), **judged(drawn(fault.build, True))}
    findings = row["findings"]
    right = [finding for finding in findings[:3] if finding["rule"] in fault.rules]
    row |= {
        "severe": any(finding["severity"] == "severe" for finding in findings),
        "silent": not any(finding["severity"] in ILL for finding in findings),
        "first": findings[:1] == right[:1] != [],
        "strictly_first": bool(findings) and findings[0]["rule"] == fault.rules[0],
        "three": bool(right),
        "layer": bool(right) and (not fault.layers or any(_is_in(right[0]["layer"], name) for name in fault.layers)),
    }
    return row | {"repaired": judged(drawn(fault.build, False))}


def _is_in(layer: str, name: str) -> bool:
    """Whether a layer is the module (or parameter) of a name, or is below it; a parameter stands for its module."""
    return layer == name or layer.startswith(f"{name}.") or name.rpartition(".")[0] == layer != ""


def examine_sound(name: str) -> dict[str, Any]:
    """The findings on a sound set-up, of which none is to be severe."""
    sound = program.SOUND[name]
    one = drawn(sound.build)
    one.train(sound.trained)
    return {"name": name, "what": sound.what, **judged(one)}


def examine(examination: str, jobs: int, only: Sequence[str] = ()) -> dict[str, list[dict[str, Any]]]:
    """Rows of all faults and sound set-ups, in their order, printed as they come."""
    results: dict[str, list[dict[str, Any]]] = {"faults": [], "sound": []}
    context = multiprocessing.get_context("spawn")
    for folder in folders(examination):
        with ProcessPoolExecutor(jobs, context, load, (folder,)) as pool:
            faults, sound = pool.submit(names_in, folder).result()
            for kind, function, names in (("faults", examine_fault, faults), ("sound", examine_sound, sound)):
                chosen = [name for name in names if not only or name.startswith(tuple(only))]
                for row in pool.map(function, chosen):
                    results[kind].append(row)
                    print(line(row), flush=True)
    return results


def line(row: dict[str, Any]) -> str:
    """A row in words."""
    first = (
        row["findings"][0] if row["findings"] else {"severity": "", "rule": row.get("error", "nothing"), "layer": ""}
    )
    mark = {True: "✓", False: "✗"}.get(row.get("first"), " ")
    accused = [each["rule"] for each in row.get("repaired", {}).get("findings", ()) if each["severity"] == "severe"]
    return (
        f"{mark} {row['name']}: {first['severity']} {first['rule']} {first['layer']}"
        + (f"   accepted: {', '.join(row['rules'])} {row['layers'] or ''}" if "rules" in row else "")
        + (f"   REPAIRED FORM ACCUSED: {', '.join(accused)}" if accused else "")
    )


def shares(results: dict[str, list[dict[str, Any]]]) -> dict[str, tuple[int, int]]:
    """How often each goal was met, of how many."""
    faults, sound = results["faults"], results["sound"]
    failing = [row for row in faults if row["fails"]]
    located = [row for row in faults if row["layers"]]
    healthy = [row["findings"] for row in sound] + [row["repaired"]["findings"] for row in faults if "repaired" in row]
    accused = {kind: [any(each["severity"] == kind for each in findings) for findings in healthy] for kind in ILL}
    return {
        "right cause first": (sum(row["first"] for row in faults), len(faults)),
        "its best name first": (sum(row["strictly_first"] for row in faults), len(faults)),
        "right cause in the first three": (sum(row["three"] for row in faults), len(faults)),
        "right layer, where one is meant": (sum(row["layer"] for row in located), len(located)),
        "severe, where training fails outright": (sum(row["severe"] for row in failing), len(failing)),
        "silent": (sum(row["silent"] for row in faults), len(faults)),
        "sound set-ups severely accused": (sum(accused["severe"]), len(healthy)),
        "sound set-ups warned at worst": (
            sum(warned and not severe for warned, severe in zip(accused["warning"], accused["severe"], strict=True)),
            len(healthy),
        ),
    }


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("examination", help="its folder")
    parser.add_argument("--jobs", type=int, default=1, help="processes of one thread each")
    parser.add_argument("--only", nargs="+", default=(), metavar="NAME", help="those whose names begin so")
    options = parser.parse_args(arguments)
    results = examine(options.examination, options.jobs, options.only)
    for goal, (count, of) in shares(results).items():
        print(f"{goal}: {count} of {of}")
    if not options.only:
        first = HERE / options.examination / "first.json"
        path = first.with_name("second.json") if first.exists() else first
        content = {
            "sha256": checksums(options.examination),
            "versions": {"wellcond": wc.__version__, "torch": torch.__version__},
        }
        path.write_text(json.dumps(content | results, indent=1) + "\n", encoding="utf-8")
        print(f"in {path}")


if __name__ == "__main__":
    main()
