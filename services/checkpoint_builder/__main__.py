"""`python -m services.checkpoint_builder`: serves one store until a signal arrives."""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import AsyncIterator

from darkroom.knowledge import load_catalogue
from darkroom.rpc.errors import InvalidCatalogueError
from darkroom.rpc.logs import log
from darkroom.rpc.serving import Application, Health, run_service
from darkroom.rpc.settings import describe_settings, load_settings
from darkroom.storage import open_store
from darkroom.v1 import checkpoint_builder_service_pb2
from services.checkpoint_builder.builder import Builder
from services.checkpoint_builder.config import BuilderSettings
from services.checkpoint_builder.servicer import CheckpointBuilderServicer
from services.checkpoint_builder.shelf import Shelf
from services.checkpoint_builder.workroom import sweep

SERVICE = checkpoint_builder_service_pb2.DESCRIPTOR.services_by_name["CheckpointBuilderService"]
EXAMPLES = """
examples:
  python -m services.checkpoint_builder
      checkpoints go to DARKROOM_DATA_DIR/checkpoints
  DARKROOM_BUILDER_STORE=s3://bucket/checkpoints DARKROOM_BUILDER_DEVICE=cuda:0 python -m services.checkpoint_builder
      they go to a bucket, and are quantised on a GPU

settings (environment variables, or a file named by DARKROOM_ENV_FILE):
"""


def main() -> None:
    """Opens the store and the catalogue, then serves until a signal arrives."""
    parser = argparse.ArgumentParser(
        prog="python -m services.checkpoint_builder",
        description="The checkpoint builder: quantised components, built, gated, kept and published.",
        epilog=EXAMPLES + describe_settings(BuilderSettings),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.parse_args()
    settings = load_settings(BuilderSettings)
    try:
        catalogue = load_catalogue(settings.catalog_paths)
        shelf = Shelf(open_store(settings.store_url))
    except InvalidCatalogueError as wrong:
        sys.exit(wrong.message)
    except (ValueError, ImportError, OSError) as wrong:
        sys.exit(f"DARKROOM_BUILDER_STORE={settings.store_url!r}: {wrong}")

    @contextlib.asynccontextmanager
    async def lifespan(health: Health) -> AsyncIterator[Application]:
        if num_swept := sweep(settings.work_folder):
            log.info("leftovers_swept", num_builds=num_swept)
        async with Builder(settings, catalogue, shelf) as builder:
            await health.set_ready(True)
            servicer = CheckpointBuilderServicer(builder, shelf, settings.work_folder)
            yield Application([(SERVICE, servicer)], drain=builder.drain)

    run_service("checkpoint_builder", settings.builder_listen, settings, [SERVICE.full_name], lifespan)


if __name__ == "__main__":
    main()
