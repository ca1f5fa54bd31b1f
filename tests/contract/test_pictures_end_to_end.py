"""A picture from a client's disk to a pipeline and back, through a real gateway, Redis, worker and engine."""

from __future__ import annotations

from pathlib import Path

import grpc
import pytest
from PIL import Image

from darkroom.client import AsyncClient, errors
from darkroom.knowledge import load_catalogue
from darkroom.v1 import plan_pb2, planner_service_pb2
from tests.contract.house import settings_for
from tests.engines.snapshots import file_of_image, scene
from tests.engines.worker_server import WorkerServer
from tests.fakes.gateway import serve_gateway
from tests.fakes.planner import FakePlanner, serve_planner
from tests.tiny import flux_2
from tests.tiny.parts import plan_of, save

pytestmark = [pytest.mark.redis, pytest.mark.filterwarnings("ignore::UserWarning")]
KLEIN = "flux.2-klein-base-4b"


class TinyPlanner(FakePlanner):
    """Answers one plan, for whatever workload is asked for."""

    def __init__(self, plan: plan_pb2.Plan) -> None:
        super().__init__()
        self.plan = plan

    async def Plan(
        self, request: planner_service_pb2.PlanRequest, context: grpc.aio.ServicerContext
    ) -> planner_service_pb2.PlanResponse:
        self.questions.append(request)
        answer = planner_service_pb2.PlanResponse(plan=self.plan)
        answer.plan.workload.CopyFrom(request.workload)
        return answer


async def test_a_photograph_is_changed_and_what_cannot_be_read_fails_with_its_field(
    painter: WorkerServer, pipelines: Path, tmp_path: Path
) -> None:
    photo, broken = tmp_path / "photo.jpg", tmp_path / "broken.webp"
    photo.write_bytes(file_of_image(scene(160, 120), "JPEG", 6, quality=95))
    webp = bytearray(file_of_image(scene(), "WEBP", lossless=True))
    webp[40:-20] = bytes(place * 89 % 251 for place in range(len(webp) - 60))
    broken.write_bytes(webp)
    planner = TinyPlanner(
        plan_of(KLEIN, save(pipelines / "klein-end-to-end", flux_2.build_klein), max_sequence_length=64)
    )
    async with (
        serve_planner(planner) as address,
        serve_gateway(settings_for(tmp_path, painter.address, address), load_catalogue()) as gateway,
        AsyncClient(gateway.stubs.address) as client,
    ):

        async def change(**fields: object) -> bytes:
            wishes = {"model": KLEIN, "steps": 1, "guidance": 2.0, "seed": 1, "width": 256, "height": 320, **fields}
            return (await client.generate("make it blue", **wishes)).data  # type: ignore[arg-type]

        words, first = [await change(images=images) for images in (None, photo)]
        upright = await change(images=Image.open(photo).transpose(Image.Transpose.ROTATE_270))
        assert words != first == upright
        with pytest.raises(errors.InvalidRequestError, match=r"images\[0\]\.data: can't be decoded"):
            await change(images=broken)
        two = {"model": KLEIN, "steps": 1, "width": 256, "height": 256, "images": [photo, scene()]}
        picture = await client.generate("make it blue", **two)  # type: ignore[arg-type]
        images = next(knob for knob in picture.engagements if knob.knob == "images")
        assert (images.requested, images.engaged) == ("120x160, 96x64", "120x160, 96x64")
        assert "picture 1 turned upright from EXIF orientation 6" in images.reason
        assert [question.workload.reference_images for question in planner.questions] == [0, 1, 2]
