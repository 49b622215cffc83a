"""Every text that a rule of its own prints as a remedy is either code for an ordinary script or a sentence."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.optim import SGD

import wellcond as wc
from wellcond.diagnosis import rules
from wellcond.diagnosis.finding import Finding
from wellcond.diagnosis.runs import set_lr
from wellcond.remedies.loss_code import wrapped_loss
from wellcond.remedies.optimizer_code import race_lr

FILES = sorted(Path(rules.__file__).parent.glob("[!_]*.py"))
SCRIPT = {"model", "loss", "loader", "optimizer", "torch", "nn", "wc", *dir(builtins)}
"""The names of an ordinary script; see `Setup`."""


def texts(path: Path) -> Iterator[str]:
    """All texts in arguments called `remedy`, with 1 or 'name' in place of what an f-string computes."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    functions = {node.name: node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    for node in ast.walk(tree):
        if isinstance(node, ast.keyword) and node.arg == "remedy":
            yield from branches(node.value, functions)
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") in functions:
            names = [argument.arg for argument in functions[node.func.id].args.args]
            yield from (text for name, value in zip(names, node.args, strict=False) if name == "remedy"
                        for text in branches(value, functions))  # fmt: skip
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "remedy":
            yield from branches(node.value, functions)


def branches(value: ast.expr, functions: dict[str, ast.FunctionDef]) -> Iterator[str]:
    """The texts that an expression may have."""
    if isinstance(value, ast.IfExp):
        yield from branches(value.body, functions)
        yield from branches(value.orelse, functions)
    elif isinstance(value, ast.Constant) and isinstance(value.value, str):
        yield value.value
    elif isinstance(value, ast.JoinedStr):
        yield "".join(map(part, value.values))
    elif isinstance(value, ast.Call) and (name := getattr(value.func, "id", "")) == "wrapped_loss":
        first, second = (next(branches(each, functions)) for each in value.args)
        yield wrapped_loss(first, second)
    elif isinstance(value, ast.Call) and name == "race_lr":
        model = nn.Linear(1, 1)
        yield race_lr(wc.Problem(model, nn.MSELoss(), (torch.ones(1, 1), torch.ones(1, 1))), SGD(model.parameters(), 1))
    elif isinstance(value, ast.Call) and name in functions:
        for node in ast.walk(functions[name]):
            if isinstance(node, ast.Return) and node.value is not None:
                yield from branches(node.value, functions)
    elif isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute):  # {…}.get(place, other)
        table = value.func.value
        for each in (*(table.values if isinstance(table, ast.Dict) else ()), *value.args[1:]):
            yield from branches(each, functions)


def part(value: ast.expr) -> str:
    if isinstance(value, ast.Constant):
        return str(value.value)
    assert isinstance(value, ast.FormattedValue)
    if isinstance(value.value, ast.Call) and getattr(value.value.func, "id", "") == "set_lr":
        return set_lr(0.1)
    if isinstance(value.value, ast.Name) and value.value.id == "write":  # a setting of the optimizer's group
        return 'group["eps"] = 1e-8'
    return "'name'" if value.conversion == ord("r") else "1"


EVERY = [(path.stem, text) for path in FILES for text in texts(path)]


def test_all_rules_are_read() -> None:
    arguments = sum(path.read_text(encoding="utf-8").count("remedy=") for path in FILES)
    assert len(EVERY) >= arguments > 40


def foreign_names(code: str) -> set[str]:
    """Names that a line reads and neither a script has nor the lines before define."""
    known, foreign = set(SCRIPT), set()
    for statement in ast.parse(code).body:
        nodes = list(ast.walk(statement))
        stored = {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
        stored |= {node.arg for node in nodes if isinstance(node, ast.arg)}
        stored |= {node.name for node in nodes if isinstance(node, (ast.FunctionDef, ast.alias))}
        is_block = isinstance(statement, (ast.For, ast.With, ast.If, ast.FunctionDef)) or stored & {"_"}
        read = {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}
        loops = {n.target.id for n in nodes if isinstance(n, ast.comprehension) and isinstance(n.target, ast.Name)}
        foreign |= read - known - (stored if is_block else loops)
        known |= stored
    return foreign


@pytest.mark.parametrize(("rule", "text"), EVERY, ids=[rule for rule, _ in EVERY])
def test_a_remedy_is_code_for_a_script_or_a_sentence(rule: str, text: str) -> None:
    finding = Finding(rule=rule, severity="note", summary="", remedy=text)
    if not text or finding.advice:
        assert "\n" not in text  # one sentence
        return
    assert foreign_names(text) == set()
    assert "print(" not in text
    statements = ast.parse(text).body
    last = statements[-1]
    assert not (isinstance(last, ast.Expr) and not isinstance(last.value, ast.Call)), "an expression does nothing"
    assert not any(isinstance(node, ast.Return) for node in statements)


@pytest.mark.parametrize("code", ["x = x.view(3)", "loss = criterion(outputs)", "heads.1 = nn.Linear(1, 1)"])
def test_the_test_sees_what_does_not_paste(code: str) -> None:
    with pytest.raises((SyntaxError, AssertionError)):
        test_a_remedy_is_code_for_a_script_or_a_sentence("", code)
