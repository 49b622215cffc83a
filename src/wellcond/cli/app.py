"""The commands put together: one group, one way to fail."""

from __future__ import annotations

import warnings
from importlib.metadata import entry_points
from typing import Annotated, Any

from wellcond.errors import MissingExtra, WellcondError
from wellcond.results.version import __version__

try:
    import typer
    from typer.core import TyperGroup
except ImportError as error:
    raise MissingExtra("typer", "cli") from error

from rich.text import Text

from wellcond.cli.commands.demo import demo
from wellcond.cli.commands.diagnose import diagnose
from wellcond.cli.commands.predict_lr import predict_lr
from wellcond.cli.commands.probe import probe
from wellcond.cli.commands.suggest_lr import suggest_lr
from wellcond.cli.commands.treat import treat
from wellcond.report.terminal import new_console


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


def _print_version(wanted: bool) -> None:
    if wanted:
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
for _command in entry_points(group="wellcond.commands"):  # commands of other packages
    try:
        app.command(_command.name)(_command.load())
    except ImportError as error:
        warnings.warn(f"`wellcond {_command.name}` is not available: {error}", stacklevel=2)
