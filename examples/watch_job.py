"""Submit now, watch later: a job goes on without its client, and a watch goes on where it stopped."""

from darkroom.client import Client
from darkroom.v1 import generation_pb2

with Client() as darkroom:
    job = darkroom.submit("a house, 3d style")
    print("submitted", job.id, "with seed", job.request.seed)

    # Any other process could do the rest, given the job's id.
    for event in darkroom.watch(job.id):
        if event.progress.phase == generation_pb2.PHASE_DENOISING:
            print(f"step {event.progress.completed} of {event.progress.total}")
    print("saved", darkroom.download(job.id).save("house.png"))
