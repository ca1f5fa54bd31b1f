"""`python -m services.gateway`: parse, build, serve."""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import AsyncIterator

from darkroom.knowledge import load_catalogue
from darkroom.rpc.errors import DarkroomError
from darkroom.rpc.serving import Application, Health, run_service
from darkroom.rpc.settings import describe_settings, load_settings
from services.gateway.application import SERVICE_NAMES, catalogue_paths, open_gateway
from services.gateway.config import GatewaySettings

EXAMPLES = """
The gateway: what other backends call. It keeps jobs in Redis and drives workers.

examples:
  python -m services.gateway
      on 127.0.0.1:50051, with an embedded Redis, one worker on :50061 and the planner on :50052
  DARKROOM_GATEWAY_WORKERS=dns:///workers:50061 DARKROOM_REDIS_URL=redis://redis:6379/0 python -m services.gateway
      workers behind a name that is looked up again, jobs in an existing Redis (appendfsync always;
      hash-max-listpack-value 2048 and stream-node-max-bytes 512 there save half of the memory)

settings:
"""


def main() -> None:
    """Serves until SIGTERM or SIGINT."""
    argparse.ArgumentParser(
        prog="python -m services.gateway",
        description=EXAMPLES + describe_settings(GatewaySettings),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    ).parse_args()
    settings = load_settings(GatewaySettings)

    @contextlib.asynccontextmanager
    async def lifespan(health: Health) -> AsyncIterator[Application]:
        catalogue = load_catalogue(catalogue_paths(settings))
        async with open_gateway(settings, catalogue, health) as application:
            yield application

    try:
        run_service("gateway", settings.gateway_listen, settings, SERVICE_NAMES, lifespan)
    except DarkroomError as error:
        print(f"{error.reason}: {error.message}", file=sys.stderr)
        raise SystemExit(1) from None


if __name__ == "__main__":
    main()
