"""`file.py:function`: a user's file imported by its path, and what its function builds."""

from __future__ import annotations

import ast
import contextlib
import difflib
import importlib.machinery
import importlib.util
import inspect
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

import torch

from wellcond.errors import Unsupported
from wellcond.problem.problem import Problem
from wellcond.report.sarif import uri_of

T = TypeVar("T")


@contextlib.contextmanager
def built(target: str) -> Iterator[tuple[Problem, torch.optim.Optimizer | None]]:
    """The problem, and the optimizer if there is one, that a function in a file builds.

    While the block runs the file's folder is first on the import path, as when Python runs a script; afterwards the
    path and the loaded modules are as before, and no bytecode was written.

    Args:
        target: `file.py:function`.

    Raises:
        Unsupported: It does not lead to a problem; the message names the file, the line and the cure.
    """
    path, name = _parsed(target)
    with _folder_importable(path):
        module = _in_user_code(path, f"importing {path.name}", lambda: _imported(path))
        function = _function(module, name, path)
        yield _checked(_in_user_code(path, f"{name}()", function), name)


def source_of(target: str) -> tuple[str, int]:
    """The URI of a target's file, relative to the working directory if it is below it, and the line of its function.

    Args:
        target: `file.py:function`, as it was built from.
    """
    path, name = _parsed(target)
    lines = {
        node.name: node.lineno
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, (ast.FunctionDef, ast.ClassDef))
    }
    return uri_of(path), lines.get(name, 1)


def _parsed(target: str) -> tuple[Path, str]:
    file, colon, name = target.rpartition(":")
    if not colon or not name or not file:
        raise Unsupported(f"{target!r} names no function; write FILE.py:FUNCTION, as in train.py:build")
    path = Path(file).expanduser()
    if not path.is_file():
        near = sorted(p.name for p in path.parent.glob("*.py")) if path.parent.is_dir() else []
        close = difflib.get_close_matches(path.name, near, n=3, cutoff=0.5)
        hint = f" Did you mean {' or '.join(close)}?" if close else ""
        raise Unsupported(f"there is no file {file}.{hint}")
    return path.resolve(), name


@contextlib.contextmanager
def _folder_importable(path: Path) -> Iterator[None]:
    search_path, modules, no_bytecode = list(sys.path), set(sys.modules), sys.dont_write_bytecode
    sys.path.insert(0, str(path.parent))
    sys.dont_write_bytecode = True
    try:
        yield
    finally:
        sys.path[:] = search_path
        sys.dont_write_bytecode = no_bytecode
        for name in set(sys.modules) - modules:
            if _is_users(sys.modules[name], path.parent):
                del sys.modules[name]


def _is_users(module: ModuleType, folder: Path) -> bool:
    """Whether a module lies in the user's folder; a library installed below it stays loaded."""
    file = getattr(module, "__file__", None)
    if file is None:
        return False
    below = Path(file).resolve()
    return below.is_relative_to(folder) and not {"site-packages", "dist-packages"} & set(below.parts)


def _imported(path: Path) -> ModuleType:
    name = f"wellcond_target_{path.stem}"
    spec = importlib.util.spec_from_loader(name, importlib.machinery.SourceFileLoader(name, str(path)))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # where dataclasses and pickle look a class's module up
    spec.loader.exec_module(module)
    return module


def _function(module: ModuleType, name: str, path: Path) -> Callable[[], Any]:
    own = [n for n, value in vars(module).items() if callable(value) and value.__module__ == module.__name__]
    if not hasattr(module, name):
        close = difflib.get_close_matches(name, own, n=3, cutoff=0.4) or own[:3]
        hint = f"Closest: {', '.join(close)}." if close else "It defines no functions."
        raise Unsupported(f"{path.name} has no function {name!r}. {hint}")
    function = getattr(module, name)
    if not callable(function):
        raise Unsupported(f"{name!r} in {path.name} is a {type(function).__name__}, not a function that returns it.")
    needed = [
        p.name
        for p in inspect.signature(function).parameters.values()
        if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
    ]
    if needed:
        raise Unsupported(f"{name}() wants arguments; give defaults to: {', '.join(needed)}.")
    return function  # type: ignore[no-any-return]


def _in_user_code(path: Path, doing: str, function: Callable[[], T]) -> T:
    """Call into the user's file; an exception becomes one line that names the place."""
    try:
        return function()
    except (Exception, SystemExit) as error:
        message = " ".join(str(error).split())
        raise Unsupported(f"{doing} raised {type(error).__name__}: {message}{_place(error, path)}") from error


def _place(error: BaseException, path: Path) -> str:
    """The last line of the user's file that was running."""
    frames = [(f.lineno, f.line) for f in traceback.extract_tb(error.__traceback__) if f.filename == str(path)]
    if isinstance(error, SyntaxError) and error.filename == str(path):
        frames.append((error.lineno, (error.text or "").strip()))
    if not frames:
        return ""
    number, line = frames[-1]
    return f" ({path.name}, line {number}: {line})"


def _checked(result: Any, name: str) -> tuple[Problem, torch.optim.Optimizer | None]:
    if isinstance(result, Problem):
        return result, None
    if isinstance(result, (tuple, list)) and len(result) == 2:
        problem, optimizer = result
        if isinstance(problem, Problem) and isinstance(optimizer, torch.optim.Optimizer):
            return problem, optimizer
    kind = type(result).__name__
    if isinstance(result, (tuple, list)):
        kind += f" of {', '.join(type(each).__name__ for each in result) or 'nothing'}"
    raise Unsupported(f"{name}() returned a {kind}; return a wellcond.Problem, or (problem, optimizer).")
