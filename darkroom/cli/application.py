"""The application: its commands, and what happens when one fails.

Invariant: every expected failure is two lines on stderr, what happened and what to do next, and an exit status.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Annotated, Any

import typer

import darkroom
from darkroom.cli import build, checkpoints, demo, generate, jobs, models, plan, status, up
from darkroom.cli.failures import EXIT_INTERRUPTED, report_failure, report_usage

EPILOG = """[bold]Start here[/]

  darkroom up                          [dim]# the whole stack on this machine, until Ctrl-C[/]

  darkroom generate "a red apple"      [dim]# in another terminal[/]

DARKROOM_ADDRESS=host:port names another gateway for every command."""

# typer brings its own copy of click or uses the installed one, depending on its version.
UsageError: type[Any] = typer.BadParameter.__bases__[0]

app = typer.Typer(
    name="darkroom",
    help="Diffusion models as services: ask for a picture, see how a model would run, watch jobs.",
    epilog=EPILOG,
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
PICTURES, MODELS, MACHINE = "Pictures", "Models", "Machines"
app.command("generate", rich_help_panel=PICTURES)(generate.generate)
app.add_typer(jobs.app, name="jobs", rich_help_panel=PICTURES)
app.command("models", rich_help_panel=MODELS)(models.models)
app.command("plan", rich_help_panel=MODELS)(plan.plan)
app.command("build", rich_help_panel=MODELS)(build.build)
app.add_typer(checkpoints.app, rich_help_panel=MODELS)
app.command("status", rich_help_panel=MACHINE)(status.status)
app.command("up", rich_help_panel=MACHINE, context_settings={"allow_extra_args": True, "ignore_unknown_options": True})(
    up.up
)
app.command("demo", rich_help_panel=MACHINE)(demo.demo)


def _show_version(is_wanted: bool) -> None:
    if is_wanted:
        typer.echo(f"darkroom {darkroom.__version__}")
        raise typer.Exit


@app.callback()
def darkroom_command(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version and exit.", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    """Options of the command itself."""


def run(arguments: Sequence[str] | None = None) -> int:
    """Runs a command line and returns the exit status."""
    try:
        status_code = app(
            prog_name="darkroom", args=list(arguments) if arguments is not None else None, standalone_mode=False
        )
    except UsageError as wrong:
        return report_usage(wrong)
    except (KeyboardInterrupt, typer.Abort):
        # Newer versions of typer return the status of an interrupt, older ones raise.
        status_code = EXIT_INTERRUPTED
    except Exception as failure:  # the process's main: what is expected gets two lines, a bug its traceback
        return report_failure(failure)
    if status_code == EXIT_INTERRUPTED:
        print("interrupted", file=sys.stderr)
    return status_code if isinstance(status_code, int) else 0
