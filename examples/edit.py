"""Changing a picture by words. Needs a gateway with a GPU worker (`darkroom up`) and `pip install darkroom`."""

import sys

from darkroom.client import Client

# Paths, bytes of files and Pillow images will do; several for models that take them, in the order the prompt means.
photo = sys.argv[1] if len(sys.argv) > 1 else "photo.jpg"
with Client() as darkroom:
    picture = darkroom.generate("make it a winter evening", model="flux.1-kontext-dev", images=[photo], seed=7)
    picture.save("edited.png")
    print(f"saved edited.png, {picture.width}x{picture.height}")  # the photo's proportions, the model's own area
