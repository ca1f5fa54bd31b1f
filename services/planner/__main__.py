"""Runs the planner: `python -m services.planner`."""

from __future__ import annotations

import argparse
import contextlib
import gc
import sys
from collections.abc import AsyncIterator

from darkroom.knowledge import load_catalogue
from darkroom.rpc.errors import InvalidCatalogueError
from darkroom.rpc.serving import Application, Health, run_service
from darkroom.rpc.settings import describe_settings, load_settings
from darkroom.v1 import planner_service_pb2
from services.planner.config import PlannerSettings
from services.planner.servicer import PlannerServicer

SERVICE = planner_service_pb2.DESCRIPTOR.services_by_name["PlannerService"]
EPILOG = f"""examples:
  python -m services.planner
  DARKROOM_PLANNER_LISTEN=127.0.0.1:0 python -m services.planner
  DARKROOM_CATALOG_PATH=/etc/darkroom/families python -m services.planner

variables:
{describe_settings(PlannerSettings)}
"""


def main() -> None:
    """Loads the catalogue, then serves until a signal arrives."""
    parser = argparse.ArgumentParser(
        "python -m services.planner",
        description="Decides how a model runs on a device: scheme, memory tier, source, and what to fall back to.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.parse_args()
    settings = load_settings(PlannerSettings)
    try:
        servicer = PlannerServicer(load_catalogue(settings.catalog_paths))
    except InvalidCatalogueError as wrong:
        sys.exit(wrong.message)
    # The catalogue lives as long as the process: collections need not walk it each time.
    gc.freeze()

    @contextlib.asynccontextmanager
    async def lifespan(health: Health) -> AsyncIterator[Application]:
        await health.set_ready(True)
        yield Application([(SERVICE, servicer)])

    run_service("planner", settings.planner_listen, settings, [SERVICE.full_name], lifespan)


if __name__ == "__main__":
    main()
