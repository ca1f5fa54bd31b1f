"""Settings of the checkpoint builder. Model facts are never settings: they are in the catalogue."""

from __future__ import annotations

import os
from pathlib import Path

from pydantic import Field

from darkroom.rpc.settings import Settings

REPOSITORY = Path(__file__).resolve().parents[2]


def _default_data_dir() -> Path:
    base = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    return Path(base) / "darkroom"


class BuilderSettings(Settings):
    """What an operator decides about one builder."""

    builder_listen: str = Field("127.0.0.1:50053", description="Address to serve; port 0 takes a free one.")
    builder_device: str = Field("auto", description='Device to quantise on: "auto", "cpu", "cuda:0".')
    data_dir: Path = Field(
        default_factory=_default_data_dir, description="Folder of what builds write, and of the store by default."
    )
    builder_store: str = Field(
        "", description="Where checkpoints are kept: a folder or an fsspec URL; empty means DATA_DIR/checkpoints."
    )
    models_dir: Path = Field(REPOSITORY / "models", description="Folder of the bundled models.")
    builder_source_paths: str = Field(
        "", description=f"Folders ({os.pathsep!r} between them) that orders may name sources in; empty allows none."
    )
    builder_trusted_repos: str = Field(
        "", description="Hub owners or owner/name, by comma, trusted beside those that the catalogue names."
    )
    catalog_path: str = Field(
        "", description=f"Extra family files or folders ({os.pathsep!r} between them) for the catalogue."
    )
    builder_threads: int = Field(0, ge=0, description="CPU threads of a build; 0 leaves the choice to PyTorch.")
    builder_silence_s: float = Field(
        600.0, gt=0, description="A build whose process says nothing for this long is ended."
    )
    builder_gate_pairs: int = Field(
        0, ge=0, le=64, description="Pairs of pictures in the gates; 0 takes the catalogue's number."
    )
    builder_gate_steps: int = Field(0, ge=0, le=1000, description="Steps of a gate's picture; 0 takes the model's.")
    builder_lpips_weights: str = Field("", description="File of LPIPS weights (AlexNet); without, LPIPS is not run.")
    builder_clip_weights: str = Field("", description="Folder of a CLIP model; without, CLIP is not run.")

    @property
    def store_url(self) -> str:
        """Where checkpoints are kept."""
        return self.builder_store or str(self.data_dir / "checkpoints")

    @property
    def work_folder(self) -> Path:
        """Where builds write until they are done."""
        return self.data_dir / "builds"

    @property
    def source_folders(self) -> list[Path]:
        """Folders that orders may name sources in."""
        return [Path(item).resolve() for item in self.builder_source_paths.split(os.pathsep) if item]

    @property
    def trusted_repos(self) -> frozenset[str]:
        """Hub owners and repositories that the operator trusts."""
        return frozenset(item.strip() for item in self.builder_trusted_repos.split(",") if item.strip())

    @property
    def catalog_paths(self) -> tuple[Path, ...]:
        """Extra catalogue files and folders."""
        return tuple(Path(item) for item in self.catalog_path.split(os.pathsep) if item)
