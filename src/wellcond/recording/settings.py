"""What a person chose for a run, as its manifest has it, in words."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

from wellcond.results import number

OTHERS = ("schema", "status", "model", "columns", "lives")
"""Entries of a manifest that are no settings."""

FIRST_RATE = "initial lr"
SCHEDULED = (" lr", " momentum", " betas")
"""Settings that a schedule changes, and which it began with."""
OF_THE_CODE = (" foreach", " fused", " capturable", " differentiable")
"""Settings that say how a step is computed."""


def optimizer_classes(manifest: Mapping[str, Any]) -> list[str]:
    """The class of each optimizer.

    Example:
        >>> optimizer_classes({"optimizer": {"class": "SGD", "groups": []}})
        ['SGD']
    """
    optimizers = manifest.get("optimizer", [])
    return [each["class"] for each in (optimizers if isinstance(optimizers, list) else [optimizers])]


def settings(manifest: Mapping[str, Any]) -> dict[str, str]:
    """Everything that a person chose, by name, in words.

    Example:
        >>> settings({"schema": 1, "budget": 0.05, "optimizer": {"class": "SGD", "groups": [{"lr": 0.1}]}})
        {'budget': '0.05', 'optimizer': 'SGD', 'optimizer lr': '0.1'}
    """
    chosen = {name: value for name, value in manifest.items() if name not in OTHERS}
    if isinstance(chosen.get("created"), (int, float)):
        chosen["created"] = f"{datetime.fromtimestamp(chosen['created'], UTC):%Y-%m-%d %H:%M UTC}"
    return {" ".join(path): text for path, text in _flat(chosen, ())}


def model_text(manifest: Mapping[str, Any]) -> str:
    """The size of a model.

    Example:
        >>> model_text({"model": [{"name": "", "type": "Linear", "parameters": 4160}]})
        '1 modules, 4,160 parameters'
    """
    modules = manifest.get("model", ())
    return f"{len(modules)} modules, {sum(module['parameters'] for module in modules):,} parameters"


def changes(earlier: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """What tells the set-up of a run from that of an earlier one: the model, the optimizers and their settings.

    Rates that a schedule changes are compared by the one that it began with. What only one of the two has is left out:
    it may be of another version of torch.

    Example:
        >>> def manifest(lr):
        ...     return {"optimizer": {"class": "SGD", "groups": [{"lr": lr, "foreach": None}]}}
        >>> changes(manifest(0.1), manifest(0.01))
        ['optimizer lr 0.1 → 0.01']
    """
    before, after = (settings({"optimizer": each.get("optimizer", [])}) for each in (earlier, now))
    has_schedule = any(title.endswith(FIRST_RATE) for title in (*before, *after))
    texts = [
        f"{title} {before[title]} → {text}"
        for title, text in after.items()
        if before.get(title, text) != text and not title.endswith(OF_THE_CODE)
        if title.endswith(FIRST_RATE) or not (has_schedule and title.endswith(SCHEDULED))
    ]
    models = [[(m["name"], m["type"], m["parameters"]) for m in each.get("model", ())] for each in (earlier, now)]
    if all(models) and models[0] != models[1]:
        texts.append(f"model of {model_text(earlier)} → {model_text(now)}")
    return texts


def _flat(value: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], str]]:
    """The leaves of nested entries. What there is one of needs neither a number nor, in a list, the list's name."""
    if isinstance(value, Mapping):
        for name, each in value.items():
            yield from _flat(each, path if name == "class" else (*path, str(name).replace("_", " ")))
    elif isinstance(value, (list, tuple)) and any(isinstance(each, Mapping) for each in value):
        for i, each in enumerate(value, start=1):
            yield from _flat(each, path[:-1] if len(value) == 1 else (*path[:-1], f"{path[-1].removesuffix('s')} {i}"))
    elif isinstance(value, float):
        yield path, number(value)
    elif value is not None:
        yield path, ", ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)
