"""`darkroom demo`: starts a private stack, makes one picture, and stops everything that it started.

Knows of the services only the program `python -m services` and the file stack.json that it writes.
Invariant: nothing that it started outlives it, and its last line on stdout is `saved PATH`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

if TYPE_CHECKING:
    from rich.console import Console

    from darkroom.client import Picture

MODEL = "emoji"
DEFAULT_PROMPT = "a red apple, 3d style, blue background"
# What would tie the private stack to another one.
FOREIGN_SETTINGS = (
    "DARKROOM_ADDRESS",
    "DARKROOM_DATA_DIR",
    "DARKROOM_ENV_FILE",
    "DARKROOM_GATEWAY_LISTEN",
    "DARKROOM_GATEWAY_PLANNER",
    "DARKROOM_GATEWAY_WORKERS",
    "DARKROOM_PLANNER_LISTEN",
    "DARKROOM_REDIS_URL",
    "DARKROOM_STACK_WORKERS",
    "DARKROOM_WORKER_ID",
    "DARKROOM_WORKER_LISTEN",
)
POLL_S = 0.05
KILL_S = 60.0


def demo(
    prompt: Annotated[str, typer.Argument(metavar="[PROMPT]", help="What to show.")] = DEFAULT_PROMPT,
    seed: Annotated[int | None, typer.Option(min=0, max=2**64 - 1, show_default="drawn")] = None,
    output: Annotated[str, typer.Option("--output", "-o", help="Folder, ends with /; or a file.")] = "out/",
) -> None:
    """Make one picture with a stack of its own, then stop the stack. Needs the repository, but no GPU.

    [bold]Examples[/]

      darkroom demo

      darkroom demo "a grinning face, flat style" --seed 7
    """
    from rich.console import Console

    from darkroom.cli.destination import Destination
    from darkroom.cli.failures import UserError
    from darkroom.cli.session import run_errand
    from darkroom.cli.up import HOW_TO_INSTALL, NOT_INSTALLED, services_are_here

    if not services_are_here():
        raise UserError(NOT_INSTALLED, HOW_TO_INSTALL)
    _check_model()
    prompt = prompt.strip() or DEFAULT_PROMPT
    destination = Destination(output, prompt, 1, overwrite=False)
    file_format = destination.choose_format(None)
    destination.prepare()
    console = Console(stderr=True)

    async def errand() -> Picture:
        async with _private_stack(console) as address:
            return await _make_picture(console, address, prompt, seed, file_format)

    picture = run_errand(errand)
    typer.echo(f"saved {destination.save(picture)}")


async def _make_picture(console: Console, address: str, prompt: str, seed: int | None, file_format: str) -> Picture:
    """Loads the model, makes the picture, and shows both on the way."""
    from darkroom.cli.generate import describe_picture
    from darkroom.cli.progress import JobsDisplay
    from darkroom.client import AsyncClient, Picture, RequestFields

    fields = cast("RequestFields", {"model": MODEL, "seed": seed, "format": file_format})
    async with AsyncClient(address) as client:
        with JobsDisplay(console, 1) as display:
            await client.load(MODEL, on_event=lambda _, event: display.show_load(event))
            job = await client.submit(prompt, **fields)
            async with contextlib.aclosing(client.follow(job)) as events:
                async for event in events:
                    if isinstance(event, Picture):
                        picture = event
                    else:
                        display.show(job, event)
        describe_picture(console, picture, is_shown=True)
        return picture


@contextlib.asynccontextmanager
async def _private_stack(console: Console) -> AsyncIterator[str]:
    """Runs a stack on free ports with a data folder of its own; yields the gateway's address.

    After a failure the folder stays, because its logs tell why.
    """
    data_dir = Path(tempfile.mkdtemp(prefix="darkroom-demo-"))
    has_failed = False
    process = await _start_stack(data_dir)
    try:
        yield await _wait_for_gateway(process, data_dir)
    except Exception:
        has_failed = True
        raise
    finally:
        await _stop_stack(process)
        if has_failed:
            console.print(f"[dim]the logs are in {data_dir / 'logs'}[/]", highlight=False, soft_wrap=True)
        else:
            shutil.rmtree(data_dir, ignore_errors=True)


async def _start_stack(data_dir: Path) -> asyncio.subprocess.Process:
    environment = {name: value for name, value in os.environ.items() if name not in FOREIGN_SETTINGS}
    options = ("--listen", "127.0.0.1:0", "--data-dir", str(data_dir), "--workers", "1")
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "services", *options, "--exit-with-parent", str(os.getpid())),
        env=environment,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=sys.stderr.fileno(),
        # Ctrl-C reaches the demo alone, which cancels its job before it stops the stack.
        start_new_session=True,
    )


async def _wait_for_gateway(process: asyncio.subprocess.Process, data_dir: Path) -> str:
    from darkroom.cli.failures import UserError

    record = data_dir / "stack.json"
    while not record.exists():
        if process.returncode is not None:
            raise UserError("the stack did not start", "What it said is above.")
        await asyncio.sleep(POLL_S)
    return str(json.loads(record.read_text())["gateway"]["address"])


async def _stop_stack(process: asyncio.subprocess.Process) -> None:
    """Stops the stack in any case: being cancelled meanwhile (a second Ctrl-C) only makes it hurry."""
    stopping = asyncio.create_task(_end(process))
    while not stopping.done():
        try:
            await asyncio.shield(stopping)
        except asyncio.CancelledError:
            _signal(process, signal.SIGTERM)


async def _end(process: asyncio.subprocess.Process) -> None:
    _signal(process, signal.SIGTERM)
    try:
        async with asyncio.timeout(KILL_S):
            await process.wait()
    except TimeoutError:
        _signal(process, signal.SIGKILL)
        await process.wait()


def _signal(process: asyncio.subprocess.Process, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        process.send_signal(number)


def _check_model() -> None:
    """The model comes with the repository: a checkout without it can't paint."""
    import importlib.util

    from darkroom.cli.failures import UserError

    found = importlib.util.find_spec("services")
    root = Path(found.origin).parents[1] if found is not None and found.origin else Path.cwd()
    folder = Path(os.environ.get("DARKROOM_MODELS_DIR") or root / "models") / MODEL
    if not (folder / "model_index.json").is_file():
        raise UserError(
            f"the demo's model is not in {folder}",
            "It comes with the repository: check it out anew, or name the folder of models in DARKROOM_MODELS_DIR.",
        )
