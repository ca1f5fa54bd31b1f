"""`python -m services.worker`: serves one device until a signal arrives."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import AsyncIterator

from darkroom.images import MAX_MESSAGE_BYTES
from darkroom.rpc.errors import DarkroomError
from darkroom.rpc.logs import log
from darkroom.rpc.serving import Application, Health, run_service
from darkroom.rpc.settings import describe_settings, load_settings
from darkroom.v1 import worker_service_pb2
from services.worker.config import WorkerSettings
from services.worker.servicer import WorkerServicer
from services.worker.worker import Worker

SERVICE = worker_service_pb2.DESCRIPTOR.services_by_name["WorkerService"]
EXAMPLES = """
examples:
  python -m services.worker
      serve this machine's first device on 127.0.0.1:50061
  DARKROOM_WORKER_DEVICE=cpu DARKROOM_WORKER_LISTEN=127.0.0.1:0 python -m services.worker
      serve the processor on a free port, which the log line "serving" tells

settings (environment variables, or a file named by DARKROOM_ENV_FILE):
"""


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m services.worker",
        description="A worker: executes plans on one device.",
        epilog=EXAMPLES + describe_settings(WorkerSettings),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.parse_args()
    settings = load_settings(WorkerSettings)

    @contextlib.asynccontextmanager
    async def lifespan(health: Health) -> AsyncIterator[Application]:
        worker = Worker(settings, on_readiness=health.set_ready)
        async with worker:
            try:
                await worker.wait_for_device()
            except DarkroomError as failure:
                # Served all the same: the status tells why the device does not answer, and the engine is tried again.
                log.error("device_does_not_answer", reason=failure.reason, detail=failure.message)
            servicers = [(SERVICE, WorkerServicer(worker))]
            yield Application(servicers, drain=worker.drain, max_message_bytes=MAX_MESSAGE_BYTES)

    run_service("worker", settings.worker_listen, settings, [SERVICE.full_name], lifespan)


if __name__ == "__main__":
    main()
