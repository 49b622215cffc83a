"""`UserFunction`: a function of the user that a sweep calls, on any machine."""

from __future__ import annotations

import contextlib
import difflib
import hashlib
import inspect
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from types import ModuleType
from typing import Any

from wellcond.errors import InvalidProblem, Unsupported
from wellcond.results import Result, Row
from wellcond_papers.experiments.experiment import Job

RETURNS = 'return a mapping of names to numbers, such as {"loss": 0.1}, or rows'


@dataclass(frozen=True)
class FunctionInFile:
    """A function in a file. The file is sent as text, so that other machines do not need it.

    Attributes:
        path: The file.
        name: The function.
        source: The content of the file.
    """

    path: Path
    name: str
    source: str = field(repr=False)

    def __call__(self, **settings: Any) -> Any:
        """Call it."""
        function = self.loaded()
        with _importable(self.path.parent):  # a function may import when it is called
            return function(**settings)

    def loaded(self) -> Callable[..., Any]:
        """The function itself; the file is read once per process."""
        module = _module(self.path, self.source)
        if not callable(getattr(module, self.name, None)):
            own = [name for name, value in vars(module).items() if inspect.isfunction(value)]
            close = difflib.get_close_matches(self.name, own, n=3, cutoff=0.4) or own[:3]
            raise Unsupported(f"{self.path.name} has no function {self.name!r}. Closest: {', '.join(close) or 'none'}.")
        function: Callable[..., Any] = getattr(module, self.name)
        return function


@contextlib.contextmanager
def _importable(folder: Path) -> Iterator[None]:
    """Modules in this folder can be imported, as when Python runs a script there."""
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        if str(folder) in sys.path:
            sys.path.remove(str(folder))


@cache
def _module(path: Path, source: str) -> ModuleType:
    """The file as a module."""
    module = ModuleType(f"wellcond_sweep_{path.stem}")
    module.__file__ = str(path)
    sys.modules[module.__name__] = module  # where dataclasses and pickle look a class's module up
    try:
        with _importable(path.parent):
            exec(compile(source, str(path), "exec"), vars(module))
    except (Exception, SystemExit) as error:
        message = " ".join(str(error).split())
        raise Unsupported(f"{path} cannot be loaded; it raises {type(error).__name__}: {message}.") from error
    return module


@dataclass(frozen=True)
class UserFunction:
    """Calls a function with the settings of a cell, and turns the returned values into rows.

    Attributes:
        function: The function.
        name: The name of its sweeps.
        version: A hash of its code.
    """

    function: Callable[..., Any]
    name: str
    version: int

    @classmethod
    def in_file(cls, target: str) -> UserFunction:
        """From `file.py:function`."""
        file, _, name = target.rpartition(":")
        path = Path(file).expanduser().absolute()
        if not path.is_file():
            raise Unsupported(f"{target!r} is neither an experiment nor FILE.py:FUNCTION; there is no file {file!r}.")
        try:
            source = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise Unsupported(f"{path} cannot be read ({error}); write Python code in UTF-8.") from error
        return cls(FunctionInFile(path, name, source), f"{path.stem}-{name}", _number(source))

    @classmethod
    def of(cls, function: Callable[..., Any]) -> UserFunction:
        """From a function of this process."""
        plain = function.func if isinstance(function, partial) else function
        return cls(function, getattr(plain, "__name__", type(plain).__name__), _number(_code(function)))

    def check(self, names: Sequence[str], seeds: int | None) -> None:
        """Check that the function can be called with these settings.

        Raises:
            InvalidProblem: A setting of the grid is not a parameter, or a parameter has no value.
        """
        parameters = self._parameters()
        takes_all = any(each.kind is each.VAR_KEYWORD for each in parameters.values())
        known = [
            each.name for each in parameters.values() if each.kind in (each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY)
        ]
        for name in names:
            if name == "seed" or (name not in known and not takes_all):
                hint = "set the number of seeds instead" if name == "seed" else f"it takes {', '.join(known) or 'none'}"
                raise InvalidProblem(f"{self.name} cannot be swept over {name!r}; {hint}.")
        if seeds is not None and seeds > 1 and "seed" not in known and not takes_all:
            raise InvalidProblem(f"{self.name} takes no seed; give it a parameter `seed`, or ask for one seed.")
        missing = [n for n in known if parameters[n].default is inspect.Parameter.empty and n not in (*names, "seed")]
        if missing:
            raise InvalidProblem(
                f"{self.name} also needs {', '.join(missing)}; put it in the grid, or give it a default."
            )

    def _parameters(self) -> Mapping[str, inspect.Parameter]:
        plain = self.function.loaded() if isinstance(self.function, FunctionInFile) else self.function
        return inspect.signature(plain).parameters

    def __call__(self, job: Job) -> list[Row]:
        """Run one cell."""
        parameters = self._parameters()
        takes_seed = "seed" in parameters or any(each.kind is each.VAR_KEYWORD for each in parameters.values())
        settings = {name: value for name, value in job.settings.items() if name != "seed" or takes_seed}
        return _rows(self.function(**settings), self.name)


def _rows(returned: Any, name: str) -> list[Row]:
    if isinstance(returned, Result):
        return returned.rows()
    if isinstance(returned, Mapping) and returned:
        return [Row(None, "", str(quantity), _float(value, quantity, name), "") for quantity, value in returned.items()]
    if isinstance(returned, Iterable) and not isinstance(returned, Mapping):
        rows = list(returned)
        if all(isinstance(row, tuple) and len(row) == len(Row._fields) for row in rows):
            return [Row(*row) for row in rows]
    what = "an empty mapping" if isinstance(returned, Mapping) else f"a {type(returned).__name__}"
    raise Unsupported(f"{name}() returned {what}; {RETURNS}.")


def _float(value: Any, quantity: Any, name: str) -> float:
    try:
        return float(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise Unsupported(f"{name}() returned no number as {quantity!r} ({error}); {RETURNS}.") from error


def _code(function: Callable[..., Any]) -> str:
    """The source of a function and the plain values that it reads: if either changes, it is another function."""
    if isinstance(function, partial):
        return f"{_code(function.func)} {function.args} {function.keywords}"
    try:
        text = inspect.getsource(function)
    except (OSError, TypeError):  # it was typed in, or is not written in Python
        code = getattr(function, "__code__", None)
        text = "" if code is None else f"{code.co_code!r} {code.co_consts} {code.co_names}"
    if not inspect.isfunction(function):
        return text
    around = inspect.getclosurevars(function)
    defaults = {name: each.default for name, each in inspect.signature(function).parameters.items()}
    read = {**around.globals, **around.nonlocals, **defaults}
    return f"{text} {[(name, value) for name, value in sorted(read.items()) if isinstance(value, (int, float, str))]}"


def _number(source: str) -> int:
    return int(hashlib.sha256(source.encode()).hexdigest()[:12], 16)
