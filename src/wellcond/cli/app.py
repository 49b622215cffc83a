"""The commands put together: one group, one way to fail."""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import EntryPoint, entry_points
from typing import Annotated, Any

from wellcond.errors import MissingExtra, WellcondError
from wellcond.results.version import __version__

try:
    import typer
    from typer.core import TyperGroup
except ImportError as error:
    raise MissingExtra("typer", "cli") from error

from rich.text import Text

from wellcond.cli.commands.compare import compare
from wellcond.cli.commands.demo import demo
from wellcond.cli.commands.diagnose import diagnose
from wellcond.cli.commands.predict_lr import predict_lr
from wellcond.cli.commands.probe import probe
from wellcond.cli.commands.report import report
from wellcond.cli.commands.suggest_lr import suggest_lr
from wellcond.cli.commands.treat import treat
from wellcond.cli.commands.watch import watch
from wellcond.report.terminal import new_console

COMMANDS = "wellcond.commands"
"""Entry-point group in which other packages name their commands: `name = "package.module:function"`."""


class Commands(TyperGroup):
    """Everything that wellcond raises on purpose becomes one red line, without a traceback, and exit code 1."""

    def invoke(self, ctx: Any) -> Any:
        """Run a command."""
        try:
            return super().invoke(ctx)
        except WellcondError as error:
            new_console(stderr=True).print(Text(f"error: {error}", style="bold red"), soft_wrap=True)
            raise typer.Exit(1) from None


app = typer.Typer(
    name="wellcond",
    cls=Commands,
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(is_asked: bool) -> None:
    if is_asked:
        typer.echo(f"wellcond {__version__}")
        raise typer.Exit


@app.callback()
def wellcond_command(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and stop.")
    ] = False,
) -> None:
    """Why a PyTorch network trains badly, in which layer, how far its learning rate can go, and what helps."""


app.command()(demo)
app.command()(diagnose)
app.command("suggest-lr")(suggest_lr)
app.command()(treat)
app.command("predict-lr")(predict_lr)
app.command()(probe)
app.command()(watch)
app.command()(report)
app.command()(compare)


def add_command(app: typer.Typer, entry: EntryPoint) -> None:
    """Add a command of another package; one that cannot be loaded gives the reason when it is called."""
    try:
        function = entry.load()
        alone = typer.Typer()
        alone.command(entry.name)(function)
        typer.main.get_command(alone)  # typer reads a signature late, when it would take all commands down
    except Exception as error:
        takes_anything = {"allow_extra_args": True, "ignore_unknown_options": True}
        app.command(entry.name, context_settings=takes_anything)(_broken(entry, error))
    else:
        app.command(entry.name)(function)


def _broken(entry: EntryPoint, error: Exception) -> Callable[[], None]:
    package = entry.value.partition(".")[0].partition(":")[0] if entry.dist is None else entry.dist.name
    reason = f"{type(error).__name__}: {error}"

    def command() -> None:
        raise WellcondError(f"the command {entry.name!r} of {package} cannot be loaded: {reason}")

    command.__doc__ = f"Cannot be loaded from {package}: {reason}"
    return command


for _entry in entry_points(group=COMMANDS):
    add_command(app, _entry)
