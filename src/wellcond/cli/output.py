"""Where a command's result goes: to the terminal or, as JSON, to standard output; and to files."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.text import Text
from torch.optim import Optimizer

from wellcond.cli.target import built
from wellcond.errors import WellcondError
from wellcond.problem.problem import Problem
from wellcond.report.figures.style import new_figure
from wellcond.report.terminal import new_console
from wellcond.results import Progress, Result
from wellcond.results.files import check_writable, write_atomically
from wellcond.results.progress import Bar
from wellcond.results.result import FORMS, PICTURES, SARIF, form_of

TARGET = typer.Argument(metavar="FILE.py:FUNCTION", help="A function that returns a Problem, or (Problem, optimizer).")
Target = Annotated[str, TARGET]
Momentum = Annotated[
    float | None,
    typer.Option(
        help="Momentum of SGD, which takes the place of the optimizer that FUNCTION returns.",
        show_default="the optimizer's, or 0.9",
    ),
]


def _out(forms: Sequence[str]) -> Any:
    suffixes = ", .".join(forms)
    return typer.Option(metavar="FILE", help=f"Also write the result here, as .{suffixes}; repeat it for several.")


Out = Annotated[list[Path] | None, _out(FORMS)]
OutWithSarif = Annotated[list[Path] | None, _out((*FORMS, SARIF))]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON to standard output, and nothing else.")]

INTERRUPTED = 130
"""Exit code of a command that Ctrl-C ended."""


class Output:
    """Where a command's result goes; a file that cannot be written is refused before the work.

    Args:
        out: Files to write.
        as_json: Print JSON instead of text; everything else then goes to standard error.
        has_findings: Whether a file may be SARIF.

    Attributes:
        console: Console that the command prints to.
        title: First line of the text.
    """

    def __init__(self, out: Sequence[Path] | None, as_json: bool, *, has_findings: bool = False) -> None:
        self.paths = list(out or ())
        self.as_json = as_json
        self.title = ""
        self.console = new_console(stderr=as_json)
        self.forms = (*FORMS, SARIF) if has_findings else FORMS
        for path in self.paths:
            check_writable(path)
            if form_of(path, self.forms) in PICTURES:
                new_figure(1, 1)  # fails before the work if matplotlib is missing

    @contextlib.contextmanager
    def progress(self) -> Iterator[Progress]:
        """A progress bar with an estimate of the time left; it is gone at the end."""
        if not self.console.is_terminal:
            yield lambda _what, _share: None
            return
        with contextlib.closing(Bar(self.console, patience=0.0)) as bar:
            bar("starting", 0.0)
            yield bar

    @contextlib.contextmanager
    def problem(
        self, target: str, momentum: float | None = None
    ) -> Iterator[tuple[Problem, Optimizer | None, Progress]]:
        """The problem and optimizer that a user's function builds, and a progress bar; sets the title.

        Args:
            target: `file.py:function`.
            momentum: Momentum of SGD, which then takes the place of the optimizer.
        """
        with built(target) as (problem, optimizer), self.progress() as progress, as_usage_errors():
            self.title = f"{target}: {problem!r}"
            yield problem, optimizer if momentum is None else None, progress

    def print_title(self) -> None:
        """Print the title, once."""
        if self.title:
            self.console.print(Text(self.title, style="bold"))
        self.title = ""

    def finish(
        self,
        result: Result,
        show: Callable[[Console], None],
        sarif: Callable[[], str] | None = None,
        as_json: Callable[[], str] | None = None,
    ) -> list[Path]:
        """Print the result, write the files, and print where they are.

        Args:
            result: Result of the command.
            show: Prints it for a person, below the title.
            sarif: Returns its findings as SARIF.
            as_json: Returns what to print as JSON, if that is not all of it.

        Returns:
            The files.
        """
        if self.as_json:
            typer.echo((as_json or result.to_json)().rstrip("\n"))
        else:
            self.print_title()
            show(self.console)
        written = []
        for path in self.paths:
            if sarif is not None and form_of(path, self.forms) == SARIF:
                written.append(write_atomically(path, sarif().encode()))
            else:
                written.append(result.save(path))
            self.console.print(f"written: {written[-1]}", soft_wrap=True)
        return written


def print_sections(console: Console, sections: Mapping[str, object]) -> None:
    """Print results, or their text, each below its heading."""
    for title, content in sections.items():
        console.print(Text(f"\n{title}", style="bold cyan"))
        console.print(Text(str(content)), soft_wrap=True)


@contextlib.contextmanager
def as_usage_errors() -> Iterator[None]:
    """Turn errors about an argument into usage errors; errors about the model stay what they are."""
    try:
        yield
    except WellcondError:
        raise
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
