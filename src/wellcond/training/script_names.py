"""What the calling script calls its model, loss, data and optimizer, so that lines can be pasted into it."""

from __future__ import annotations

import ast
import inspect
import io
import sys
import tokenize
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import FrameType, FunctionType, ModuleType
from typing import Any

from torch import Tensor, nn
from torch.nn import functional
from torch.optim.lr_scheduler import LRScheduler

from wellcond.problem.loss.outputs import own_loss
from wellcond.problem.problem import Problem
from wellcond.problem.training_step import TrainingStep

IMPORTS = {"torch": "import torch", "nn": "from torch import nn", "wc": "import wellcond as wc"}
"""Modules that lines use, and the lines that import them."""
LIBRARIES = ("torch", "wellcond", "builtins")
"""Where classes are from whose objects are no places of a script: `problem.model` is no name that it trains by."""
DEPRECATED = ("size_average", "reduce")
"""Arguments of torch's losses that `reduction` has replaced."""


@dataclass(frozen=True)
class ScriptNames:
    """Names of a script, for lines that are written with `model`, `loss`, `loader`, `optimizer` and `scheduler`.

    Attributes:
        names: What the script calls these, where that is known: `net`, or `self.net` in a method.
        definitions: Lines that make what the script has under no name, by the name that lines use.

    Example:
        >>> script = ScriptNames({"loss": "criterion", "optimizer": "opt"})
        >>> print(script.lines('optimizer.param_groups[0]["lr"] = 0.1'))
        opt.param_groups[0]["lr"] = 0.1
        >>> print(script.lines("def loss(outputs, targets, own_loss=loss): return own_loss(outputs, targets) / 8"))
        def criterion(outputs, targets, own_loss=criterion): return own_loss(outputs, targets) / 8
    """

    names: Mapping[str, str] = field(default_factory=dict)
    definitions: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of_caller(cls, problem: Problem, optimizer: Any = None, scheduler: Any = None) -> ScriptNames:
        """The names in the function or script that has called the library; without one, what defines the loss."""
        loss = problem.loss.function if isinstance(problem.loss, TrainingStep) else problem.loss
        objects = {
            "model": problem.model,
            "training_step" if isinstance(problem.loss, TrainingStep) else "loss": loss,
            "loader": problem.loader,
            "optimizer": optimizer,
            "scheduler": scheduler,
        }
        names: dict[str, str] = {}
        definitions: dict[str, str] = {}
        frames = [each for each in _frames() if _binds(each, problem) or _binds(each, problem.model)]
        for name, value in objects.items():
            if value is not None and (own := _name_in(frames, name, value)):
                names[name] = own
        if "scheduler" not in names and (own := _schedule_in(frames, optimizer)):
            names["scheduler"] = own
        if frames:
            scope = {**frames[0].f_globals, **frames[0].f_locals}
            definitions |= {name: line for name, line in IMPORTS.items() if name not in scope}
        if "loss" not in names and (line := made_loss(problem)):
            definitions["loss"] = line
        return cls(names, definitions)

    def lines(self, code: str) -> str:
        """Lines in the script's own names, after those that define what it has no name for."""
        try:
            tokens = list(tokenize.generate_tokens(io.StringIO(code).readline))
        except (tokenize.TokenError, SyntaxError):
            return code
        uses = {token.string for i, token in enumerate(tokens) if _is_variable(tokens, i)}
        reads = _names_read(code)
        reads |= {other for name in reads & self.definitions.keys() for other in _names_read(self.definitions[name])}
        bound, defined = _names_bound(code)
        # a name that lines use for something else; and an attribute can be assigned, but no parameter or function
        taken = {
            own for name, own in self.names.items() if own != name and (own in uses or ("." in own and name in bound))
        }
        first = [line for name, line in self.definitions.items() if name in reads]
        first += [f"{name} = {own}" for name, own in self.names.items() if own in taken and name in reads]
        of_objects = {name: own for name, own in self.names.items() if "." in own and own in taken}
        last = [f"{own} = {name}" for name, own in of_objects.items() if name in defined]
        others = {name: own for name, own in self.names.items() if own != name and own not in taken}
        lines = code.splitlines(keepends=True)
        for i in reversed(range(len(tokens))):
            own = others.get(tokens[i].string)
            if own is not None and _is_variable(tokens, i):
                (row, begin), (_, end) = tokens[i].start, tokens[i].end
                lines[row - 1] = lines[row - 1][:begin] + own + lines[row - 1][end:]
        return "\n".join([*first, "".join(lines), *last])


def made_loss(problem: Problem) -> str:
    """The line that makes a loss of torch, or imports a function; "" for one that cannot be written so.

    Example:
        >>> import torch
        >>> batch = torch.ones(2, 1), torch.ones(2, 1)
        >>> made_loss(Problem(nn.Linear(1, 1), nn.HuberLoss(reduction="sum"), batch))
        "loss = nn.HuberLoss(reduction='sum')"
    """
    loss = problem.loss
    if loss is own_loss or isinstance(loss, TrainingStep):
        return ""
    name, module = getattr(loss, "__name__", ""), getattr(loss, "__module__", "")
    if getattr(functional, name, None) is loss:
        return f"loss = nn.functional.{name}"
    if isinstance(loss, FunctionType) and module != "__main__" and name == loss.__qualname__ and name.isidentifier():
        return f"from {module} import {name} as loss"
    kind = type(loss)
    if getattr(nn, kind.__name__, None) is not kind:
        return ""
    settings = []
    for argument, parameter in inspect.signature(kind).parameters.items():
        value = getattr(loss, argument, parameter.default)
        if isinstance(value, Tensor):
            return ""
        if argument not in DEPRECATED and value != parameter.default:
            settings.append(f"{argument}={value!r}")
    return f"loss = nn.{kind.__name__}({', '.join(settings)})"


def name_in_script(value: Any, usual: str) -> str:
    """What the calling script calls an object; the usual name if that is not known."""
    return _name_in(list(_frames()), usual, value) or usual


def _frames() -> Iterator[FrameType]:
    """The calls outside of this library that the present one is made from, the innermost first."""
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        if frame.f_globals.get("__name__", "").partition(".")[0] != "wellcond":
            yield frame
        frame = frame.f_back


def _binds(frame: FrameType, value: Any) -> bool:
    return any(each is value for _, each in (*frame.f_globals.items(), *_names_in(frame)))


def _names_in(frame: FrameType) -> Iterator[tuple[str, Any]]:
    """What a function knows by a name of its own: its variables, and the attributes of objects, `self` first."""
    variables = frame.f_locals
    yield from variables.items()
    for owner in sorted(variables, key=lambda name: name != "self"):
        value = variables[owner]
        if type(value).__module__.partition(".")[0] in LIBRARIES or isinstance(value, (type, ModuleType, FunctionType)):
            continue
        parts = {
            **getattr(value, "__dict__", {}),
            **(dict(value.named_children()) if isinstance(value, nn.Module) else {}),
        }
        yield from ((f"{owner}.{name}", each) for name, each in parts.items() if str(name).isidentifier())


def _name_in(frames: list[FrameType], usual: str, value: Any) -> str:
    """The name of an object in the first of some frames that has one; the usual name before others."""
    for frame in frames:
        for scope in (list(_names_in(frame)), list(frame.f_globals.items())):
            own = [
                name for name, each in scope if each is value and not any(n.startswith("_") for n in name.split("."))
            ]
            if own:
                return usual if usual in own else own[0]
    return ""


def _schedule_in(frames: list[FrameType], optimizer: Any) -> str:
    for frame in frames:
        for name, value in (*_names_in(frame), *frame.f_globals.items()):
            if isinstance(value, LRScheduler) and getattr(value, "optimizer", None) is optimizer is not None:
                return name
    return ""


def _names_read(code: str) -> set[str]:
    try:
        tree = ast.parse(code)
    except SyntaxError:
        return set()
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}


def _names_bound(code: str) -> tuple[set[str], set[str]]:
    """Names that code binds in another way than by an assignment; and those that it leaves for what follows."""
    try:
        tree = ast.parse(code)
    except SyntaxError:
        return set(), set()
    bound: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.arg):
            bound.add(node.arg)
        elif isinstance(node, (ast.For, ast.comprehension)):
            bound |= {each.id for each in ast.walk(node.target) if isinstance(each, ast.Name)}
    defined = {node.name for node in tree.body if isinstance(node, (ast.FunctionDef, ast.ClassDef))}
    defined |= {
        alias.asname or alias.name
        for node in tree.body
        if isinstance(node, (ast.Import, ast.ImportFrom))
        for alias in node.names
    }
    assigned = {
        each.id
        for node in tree.body
        if isinstance(node, ast.Assign)
        for each in node.targets
        if isinstance(each, ast.Name)
    }
    return bound | defined, defined | assigned


def _is_variable(tokens: list[tokenize.TokenInfo], place: int) -> bool:
    """Whether a token is the name of a variable: no attribute, and no keyword of a call."""
    token = tokens[place]
    if token.type != tokenize.NAME or (place and tokens[place - 1].string == "."):
        return False
    is_named = place + 1 < len(tokens) and tokens[place + 1].string == "="
    return not (is_named and _is_in_brackets(tokens, place))


def _is_in_brackets(tokens: list[tokenize.TokenInfo], place: int) -> bool:
    opened = sum((t.string in "([{") - (t.string in ")]}") for t in tokens[:place] if t.type == tokenize.OP)
    return opened > 0
