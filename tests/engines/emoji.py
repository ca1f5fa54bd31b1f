"""The bundled model as the planner plans it for a worker's device, and what its pictures show."""

from __future__ import annotations

import io

from PIL import Image

from darkroom.knowledge import load_catalogue
from darkroom.v1 import device_pb2, plan_pb2, planner_service_pb2
from models.emoji.retrieval import load_reference
from services.planner.planning import plan

CATALOGUE = load_catalogue()
PROMPT, SEED, SIDE = "a red apple, 3d style, blue background", 3, 128
SHOWN = "red apple"


def emoji_plan(device: device_pb2.Device, **wishes: object) -> plan_pb2.Plan:
    """Returns the plan for a device, by wishes as `PlanPreferences` has them. Raises PlanRefusedError."""
    request = planner_service_pb2.PlanRequest(
        model="emoji", device=device, preferences=plan_pb2.PlanPreferences(**wishes)
    )
    answer = plan(request, CATALOGUE)
    assert answer.HasField("plan"), answer.no_fit
    return answer.plan


def shows(data: bytes) -> str:
    """Returns the name of what a picture shows: the nearest of all training pictures."""
    return load_reference().nearest(Image.open(io.BytesIO(data)), 1)[0].name
