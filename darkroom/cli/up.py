"""`darkroom up`: the whole stack on this machine, as `python -m services`.

Knows of the services only that program. Needs the repository or an image: the client alone brings no services.
"""

from __future__ import annotations

import typer

NOT_INSTALLED = "the services are not installed here"
# One package of each extra that the stack runs on.
NEEDED = ("services.stack", "pydantic_settings", "structlog", "redis", "torch")
HOW_TO_INSTALL = "Install them: pip install 'darkroom[planner,gateway,worker]', or run this in the repository."


def up(context: typer.Context) -> None:
    """Run the whole stack on this machine, until Ctrl-C. Options go to the stack: darkroom up -- --help

    [bold]Examples[/]

      darkroom up

      darkroom up --device cpu --listen 127.0.0.1:50100 --data-dir /tmp/darkroom

      DARKROOM_LOG_LEVEL=DEBUG darkroom up
    """
    import os
    import sys

    from darkroom.cli.failures import UserError

    if not services_are_here():
        raise UserError(NOT_INSTALLED, HOW_TO_INSTALL)
    # The same process goes on as the stack, so that signals need no passing on.
    os.execv(sys.executable, [sys.executable, "-m", "services", *context.args])


def services_are_here() -> bool:
    """Tells whether `python -m services` would find our services and what they need."""
    import importlib.util

    try:
        return all(importlib.util.find_spec(name) is not None for name in NEEDED)
    except ModuleNotFoundError:
        return False
