"""From connect to picture. Needs a gateway (`darkroom up`) and `pip install darkroom`."""

from darkroom.client import Client

with Client() as darkroom:  # or Client("host:port")
    picture = darkroom.generate("a red apple, 3d style, blue background", model="emoji", seed=7)
    picture.save("apple.png")
    print(f"saved apple.png, {picture.width}x{picture.height}, seed {picture.seed}")
