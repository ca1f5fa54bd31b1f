"""A service in small: real gRPC health, the log line that tells its address, and a child of its own (like Redis).

Behaviour by environment: STAND_IN_FAIL (says why and exits), STAND_IN_MUTE (never serves), STAND_IN_DEAF (ignores
SIGTERM). Its log line `order` and the file STAND_IN_ORDER tell when it stopped.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc


class Serving(health_pb2_grpc.HealthServicer):  # type: ignore[misc]
    async def Check(self, request, context):  # type: ignore[no-untyped-def]
        return health_pb2.HealthCheckResponse(status=health_pb2.HealthCheckResponse.SERVING)


async def serve(name: str) -> None:
    listen = os.environ[f"DARKROOM_{name.rpartition('-')[0].upper() or name.upper()}_LISTEN"]
    server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
    health_pb2_grpc.add_HealthServicer_to_server(Serving(), server)
    port = server.add_insecure_port(listen)
    await server.start()
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, (lambda: None) if "STAND_IN_DEAF" in os.environ else stop.set)
    # A session of its own: what a careless service might leave behind.
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
    print("a line that is no JSON", file=sys.stderr)
    print(json.dumps({"event": "serving", "address": f"127.0.0.1:{port}", "pid": os.getpid()}), file=sys.stderr)
    await stop.wait()
    await server.stop(0)
    with open(os.environ["STAND_IN_ORDER"], "a") as order:
        order.write(f"{name}\n")


def main() -> None:
    name = sys.argv[1]
    if os.environ.get("STAND_IN_FAIL") == name:
        print(f"DARKROOM_{name.upper()}_LISTEN='x': not an address", file=sys.stderr)
        sys.exit(2)
    if os.environ.get("STAND_IN_MUTE") == name:
        signal.pause()
    asyncio.run(serve(name))


if __name__ == "__main__":
    main()
