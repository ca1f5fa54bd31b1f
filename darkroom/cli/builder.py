"""The checkpoint builder as commands see it: one that runs somewhere, or one started for the call.

Knows of the builder only its contract and how to start it. Invariant: what was started here has ended
when the block is left.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from darkroom.cli.failures import UserError
from darkroom.cli.session import run_errand

if TYPE_CHECKING:
    from darkroom.v1.checkpoint_builder_service_pb2_grpc import CheckpointBuilderServiceAsyncStub

T = TypeVar("T")
CALL_S = 60.0
NEEDED = ("services.checkpoint_builder", "pydantic_settings", "structlog", "torch", "diffusers", "safetensors")
Builder = Annotated[
    str,
    typer.Option(
        "--builder",
        envvar="DARKROOM_BUILDER_ADDRESS",
        metavar="HOST:PORT",
        help="Where a checkpoint builder runs; without, one is started for this call.",
        show_default=False,
    ),
]
Store = Annotated[
    str | None,
    typer.Option(
        "--store",
        metavar="URL",
        help="Folder or fsspec URL of the store, for a builder started here.",
        show_default="the data folder's",
    ),
]


def with_builder(
    address: str,
    errand: Callable[[CheckpointBuilderServiceAsyncStub], Awaitable[T]],
    store: str | None = None,
    environment: Mapping[str, str] | None = None,
) -> T:
    """Runs an errand with a builder; failures of calls are raised as our errors."""
    if address and store is not None:
        raise UserError("--store is the builder's own where one runs already", "Leave out --store or --builder.", 2)

    async def run() -> T:
        own = {**(environment or {}), **({"DARKROOM_BUILDER_STORE": store} if store is not None else {})}
        async with _builder_at(address, own) as stub:
            return await errand(stub)

    return run_errand(run)


@contextlib.asynccontextmanager
async def _builder_at(address: str, environment: Mapping[str, str]) -> AsyncIterator[CheckpointBuilderServiceAsyncStub]:
    import grpc

    from darkroom.rpc.channels import open_channel
    from darkroom.rpc.child_service import running_service
    from darkroom.rpc.status import from_rpc_error
    from darkroom.v1.checkpoint_builder_service_pb2_grpc import CheckpointBuilderServiceStub

    async with contextlib.AsyncExitStack() as stack:
        if not address:
            _check_installed()
            log = _log_path()
            silence = UserError("the checkpoint builder did not come up", f"Its log is {log}.")
            variable = "DARKROOM_BUILDER_LISTEN"
            starting = running_service("services.checkpoint_builder", variable, silence, environment, log)
            address = (await stack.enter_async_context(starting)).address
        channel = await stack.enter_async_context(open_channel(address))
        try:
            stub: Any = CheckpointBuilderServiceStub(channel)
            yield stub
        except grpc.aio.AioRpcError as failure:
            raise from_rpc_error(failure) from failure


def _check_installed() -> None:
    import importlib.util

    try:
        missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    except ModuleNotFoundError:
        missing = list(NEEDED)
    if missing:
        raise UserError(
            "the checkpoint builder is not installed here",
            "Install it: pip install 'darkroom[builder]'; or name one that runs with --builder.",
        )


def _log_path() -> Path:
    base = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    return Path(os.environ.get("DARKROOM_DATA_DIR") or Path(base) / "darkroom") / "logs" / "checkpoint_builder.log"
