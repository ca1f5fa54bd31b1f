"""`darkroom generate --image`: what reaches the gateway, and what is said of files that can't."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from darkroom.client.fakes import FakeGateway
from darkroom.client.fakes._admission import emoji_model
from darkroom.v1 import model_pb2
from tests.engines.snapshots import file_of_image, scene
from tests.unit.cli.conftest import Command


@pytest.fixture
def editor(gateway: FakeGateway) -> model_pb2.Model:
    """A model of the fake gateway's that changes one or two pictures."""
    model = emoji_model()
    model.name, model.aliases[:] = "editor", []
    model.limits.image_input, model.limits.max_reference_images = model_pb2.IMAGE_INPUT_REQUIRED, 2
    gateway.models.append(model)
    return model


def test_a_models_card_tells_how_many_pictures_it_takes(darkroom: Command, editor: model_pb2.Model) -> None:
    assert "1 to 2 that a request brings" in darkroom("models", "editor").out
    assert "that a request brings" not in darkroom("models", "emoji").out


def test_pictures_arrive_in_order_and_the_output_has_the_first_ones_proportions(
    darkroom: Command, gateway: FakeGateway, editor: model_pb2.Model, tmp_path: Path
) -> None:
    files = {"photo.jpg": file_of_image(scene(160, 80), "JPEG"), "hat.png": file_of_image(scene(seed=1))}
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
    ran = darkroom("generate", "add the hat", "-m", "editor", "--image", "photo.jpg", "-i", "hat.png", "--seed", "1")
    assert ran.exit_code == 0
    (job,) = gateway.jobs.values()
    request = job.record.request
    assert [image.sha256 for image in request.images] == [hashlib.sha256(data).hexdigest() for data in files.values()]
    assert not any(image.data for image in request.images)
    assert (request.width, request.height) == (176, 96)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("-m", "editor", "--image", "absent.png"), "'absent.png' can't be read: "),
        (
            ("-m", "editor", "--image", "notes.txt"),
            "'notes.txt' begins with 64 65 61 72, which is no PNG",
        ),
        (("-m", "editor"), "are missing; editor changes pictures: bring 1 to 2"),
        (("-m", "emoji", "--image", "hat.png"), "are 1; emoji paints from words alone; leave them out"),
    ],
)
def test_what_can_not_be_done_is_said_with_the_file_and_what_would_be_right(
    darkroom: Command, gateway: FakeGateway, editor: model_pb2.Model, tmp_path: Path, arguments: tuple[str], said: str
) -> None:
    (tmp_path / "notes.txt").write_text("dear")
    (tmp_path / "hat.png").write_bytes(file_of_image(scene()))
    ran = darkroom("generate", "make it blue", *arguments)
    assert ran.exit_code != 0
    assert said in " ".join(ran.err.split())
    assert not gateway.jobs
