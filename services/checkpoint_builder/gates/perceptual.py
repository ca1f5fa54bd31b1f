"""Two networks over pairs of pictures: `python -m …gates.perceptual FOLDER LPIPS CLIP DEVICE`, started by the builder.

LPIPS is the distance of Zhang et al., "The Unreasonable Effectiveness of Deep Features as a Perceptual Metric" (2018),
over AlexNet; CLIP the cosine of picture and prompt. The last line of its output is JSON. Knows nothing of checkpoints.
Invariant: weights are read without running code: safetensors, or pickles of tensors alone.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import nn
from torch.nn import functional

# AlexNet's convolutions: (input, output, kernel, stride, padding), and after which a pooling comes before the next.
CONVOLUTIONS = ((3, 64, 11, 4, 2), (64, 192, 5, 1, 2), (192, 384, 3, 1, 1), (384, 256, 3, 1, 1), (256, 256, 3, 1, 1))
POOLED = (0, 1)
# Where torchvision's state dict has them: "features.0.weight".
PLACES = (0, 3, 6, 8, 10)
# The paper's scaling of pictures from -1 to 1.
SHIFT, SCALE = (-0.030, -0.088, -0.188), (0.458, 0.448, 0.450)


class Lpips(nn.Module):
    """Distances of pictures, NCHW from -1 to 1.

    Args:
        weights: `features.N.*` of torchvision's AlexNet, and `linN.model.1.weight` of the published distance.
    """

    def __init__(self, weights: Mapping[str, torch.Tensor]) -> None:
        super().__init__()
        self._convolutions = nn.ModuleList(nn.Conv2d(i, o, k, s, p) for i, o, k, s, p in CONVOLUTIONS)
        self._weights = [weights[f"lin{place}.model.1.weight"].float() for place in range(len(PLACES))]
        with torch.no_grad():
            for layer, place in zip(self._convolutions, PLACES, strict=True):
                layer.weight.copy_(weights[f"features.{place}.weight"])  # type: ignore[operator, union-attr]
                layer.bias.copy_(weights[f"features.{place}.bias"])  # type: ignore[operator, union-attr]

    def forward(self, first_NCHW: torch.Tensor, second_NCHW: torch.Tensor) -> torch.Tensor:
        """Returns the distance of each pair, N."""
        total = torch.zeros(first_NCHW.shape[0], device=first_NCHW.device)
        features = zip(self._features(first_NCHW), self._features(second_NCHW), self._weights, strict=True)
        for one, other, weight in features:
            difference = (_unit(one) - _unit(other)) ** 2
            total += functional.conv2d(difference, weight.to(difference.device)).mean(dim=(1, 2, 3))
        return total

    def _features(self, picture: torch.Tensor) -> Iterator[torch.Tensor]:
        shift, scale = (torch.tensor(item, device=picture.device).view(1, 3, 1, 1) for item in (SHIFT, SCALE))
        values = (picture - shift) / scale
        for place, layer in enumerate(self._convolutions):
            values = functional.relu(layer(values))
            yield values
            if place in POOLED:
                values = functional.max_pool2d(values, 3, 2)


def _unit(values: torch.Tensor) -> torch.Tensor:
    scaled: torch.Tensor = values / (values.norm(dim=1, keepdim=True) + 1e-10)
    return scaled


def distances(pairs: Sequence[tuple[Image.Image, Image.Image]], file: Path, device: torch.device) -> list[float]:
    """Returns LPIPS of each pair. Raises OSError, KeyError, ValueError for weights that are none."""
    network = Lpips(read_weights(file)).to(device)
    with torch.inference_mode():
        return [float(network(_tensor(one, device), _tensor(other, device))) for one, other in pairs]


def clip_drops(
    pairs: Sequence[tuple[Image.Image, Image.Image]], prompts: Sequence[str], folder: Path, device: torch.device
) -> list[float]:
    """Returns by how much the second picture fits its prompt less than the first. Raises OSError, ValueError."""
    from transformers import CLIPModel, CLIPProcessor

    model: Any = CLIPModel.from_pretrained(folder, local_files_only=True, use_safetensors=True)
    model.to(device)
    processor = CLIPProcessor.from_pretrained(folder, local_files_only=True)
    drops = []
    with torch.inference_mode():
        for (one, other), prompt in zip(pairs, prompts, strict=True):
            inputs = processor(text=[prompt], images=[one, other], return_tensors="pt", padding=True, truncation=True)
            answer = model(**inputs.to(device))
            cosines = functional.cosine_similarity(answer.image_embeds, answer.text_embeds)
            drops.append(float(cosines[0] - cosines[1]))
    return drops


def read_weights(file: Path) -> dict[str, torch.Tensor]:
    """Returns a state dict out of safetensors, or out of a pickle that holds tensors alone."""
    if file.suffix == ".safetensors":
        return load_file(file)
    weights: dict[str, torch.Tensor] = torch.load(file, map_location="cpu", weights_only=True)
    return weights


def _tensor(picture: Image.Image, device: torch.device) -> torch.Tensor:
    values = torch.from_numpy(np.array(picture)).to(device, torch.float32)
    return (values / 127.5 - 1).permute(2, 0, 1).unsqueeze(0)


def _open(folder: Path, name: str) -> Image.Image:
    with Image.open(folder / name) as picture:
        return picture.convert("RGB")


def main() -> None:
    """Compares and prints."""
    folder, lpips, clip, wanted = Path(sys.argv[1]), sys.argv[2], sys.argv[3], sys.argv[4]
    has_cuda = wanted != "cpu" and torch.cuda.is_available()
    device = torch.device("cuda:0" if wanted == "auto" and has_cuda else wanted if has_cuda else "cpu")
    prompts = json.loads((folder / "prompts.json").read_text())
    pairs = [
        (_open(folder, f"{place}.dense.png"), _open(folder, f"{place}.quantised.png")) for place in range(len(prompts))
    ]
    answer: dict[str, Any] = {"problems": []}
    for name, path in (("lpips", lpips), ("clip_drop", clip)):
        if not path:
            continue
        try:
            if name == "lpips":
                answer[name] = distances(pairs, Path(path), device)
            else:
                answer[name] = clip_drops(pairs, prompts, Path(path), device)
        except (OSError, KeyError, ValueError, RuntimeError, SafetensorError) as broken:
            answer["problems"].append(
                f"{name}: its weights can't be used ({type(broken).__name__}: {str(broken)[:120]})"
            )
    print(json.dumps(answer))


if __name__ == "__main__":
    main()
