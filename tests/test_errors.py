"""Every error says where to read more; the page of errors has a section for each, whose code is as wrong as it says."""

from __future__ import annotations

import builtins
import copy
import inspect
import re
import traceback
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import wellcond as wc
from wellcond import errors

PAGE = Path(__file__).resolve().parents[1] / "docs" / "errors.md"
CLASSES = {name: cls for name, cls in vars(errors).items() if inspect.isclass(cls) and issubclass(cls, BaseException)}
SECTIONS = dict(re.findall(r"^## (\w+)\n(.*?)(?=^## |\Z)", PAGE.read_text(encoding="utf-8"), re.M | re.S))
PAIRS = {
    name: pair.groups()
    for name, text in SECTIONS.items()
    if (pair := re.search(r"^```py\n# wrong\n(.*?)\n# right\n(.*?)^```$", text, re.M | re.S))
}
ARGUMENTS: dict[str, tuple[Any, ...]] = {
    "UnknownLayer": ("fc", ["fc1"]),
    "MissingExtra": ("rich", "cli"),
    "RunInUse": ("runs/a", "process 7"),
    "Interrupted": (None,),
}
"""What the errors need whose messages they write themselves."""


def script() -> dict[str, Any]:
    """The names that a section may use, as a script has them."""
    torch.manual_seed(0)
    inputs, targets = torch.randn(20, 20), torch.arange(20) % 10
    model = nn.Sequential(nn.Linear(20, 8), nn.ReLU(), nn.Linear(8, 10))
    loader = [(inputs[:10], targets[:10]), (inputs[10:], targets[10:])]
    loss = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    names = {"model": model, "loss": loss, "loader": loader, "inputs": inputs, "targets": targets}
    return names | {"optimizer": optimizer, "torch": torch, "nn": nn, "F": F, "wc": wc}


def test_the_page_has_one_section_for_each_error() -> None:
    assert SECTIONS.keys() == CLASSES.keys()


@pytest.mark.parametrize("name", CLASSES)
def test_an_error_stands_in_the_table_with_what_else_it_is(name: str) -> None:
    (builtin,) = re.findall(rf"^\| \[{name}\]\(#{name.lower()}\) \| `(\w+)` \|", PAGE.read_text(encoding="utf-8"), re.M)
    assert issubclass(CLASSES[name], getattr(builtins, builtin))


@pytest.mark.parametrize("name", CLASSES)
def test_a_traceback_names_the_section(name: str) -> None:
    with pytest.raises(CLASSES[name]) as raised:
        raise CLASSES[name](*ARGUMENTS.get(name, ("the message",)))
    shown = "".join(traceback.format_exception(raised.value))
    assert f"More about {name}: the section of this name in docs/errors.md of wellcond's repository" in shown
    assert shown.count("errors.md") == 1
    assert (PAGE.parents[1] / "docs" / "errors.md") == PAGE


def test_most_errors_have_wrong_and_right_code() -> None:
    """Without it are those of a machine, of files, and of several processes."""
    rest = {"LostRank", "MissingExtra", "RunInUse", "DataNotFound", "CorruptData", "Interrupted", "WellcondError"}
    assert PAIRS.keys() == CLASSES.keys() - rest


@pytest.mark.slow
@pytest.mark.parametrize("name", PAIRS)
def test_wrong_code_raises_the_error_and_right_code_runs(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    wrong, right = PAIRS[name]
    names = script()
    before = copy.deepcopy(names["model"].state_dict())
    with pytest.raises(CLASSES[name]) as raised:
        exec(compile(wrong, "wrong", "exec"), names)
    assert type(raised.value) is CLASSES[name]
    exec(compile(right, "right", "exec"), names)
    assert all(torch.equal(value, before[key]) for key, value in names["model"].state_dict().items())


def test_an_interrupted_call_hands_over_its_first_result(monkeypatch: pytest.MonkeyPatch) -> None:
    (code,) = re.findall(r"^```py\n(.*?)^```$", SECTIONS["Interrupted"], re.M | re.S)

    def interrupted(*arguments: object) -> None:
        raise wc.Interrupted("the first result")

    monkeypatch.setattr(wc, "suggest_lr", interrupted)
    names = script() | {"problem": None}
    exec(compile(code, "interrupted", "exec"), names)
    assert names["rate"] == "the first result"
