"""Settings of the worker. Model facts are never settings: they come with the plan."""

from __future__ import annotations

import os
from pathlib import Path

from pydantic import Field

from darkroom.rpc.settings import Settings

REPOSITORY = Path(__file__).resolve().parents[2]


def _default_data_dir() -> Path:
    base = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    return Path(base) / "darkroom"


class WorkerSettings(Settings):
    """What an operator decides about one worker."""

    worker_listen: str = Field("127.0.0.1:50061", description="Address to serve; port 0 takes a free one.")
    worker_device: str = Field("auto", description='Device to own: "auto", "cpu", "cuda:0", "xpu:0", "mps".')
    worker_id: str = Field("", description="Stable name; empty means host name and device.")
    worker_engine_module: str = Field(
        "services.worker.engine", description="Module that the engine process runs; tests give another one."
    )
    models_dir: Path = Field(REPOSITORY / "models", description="Folder of the bundled models.")
    worker_model_paths: str = Field(
        "", description=f"Folders ({os.pathsep!r} between them) that plans may name paths in; empty allows none."
    )
    data_dir: Path = Field(default_factory=_default_data_dir, description="Folder of the builder's store by default.")
    builder_store: str = Field(
        "", description="Store of quantised components: a folder or an fsspec URL; empty means DATA_DIR/checkpoints."
    )
    worker_trusted_repos: str = Field(
        "", description="Hub owners or owner/name, by comma, trusted beside those that the catalogue names."
    )
    catalog_path: str = Field(
        "", description=f"Extra family files or folders ({os.pathsep!r} between them) for the catalogue."
    )
    worker_cache_dir: Path = Field(
        Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "darkroom",
        description="Folder for what was found out about the device and for compiled code, kept from start to start.",
    )
    worker_compile_cache_bytes: int = Field(
        4 * 2**30, ge=0, description="Most bytes of compiled code kept in the cache folder; 0 keeps none."
    )
    worker_prompt_cache_bytes: int = Field(
        256 * 2**20, ge=0, description="Most bytes of host memory for encoded prompts; 0 keeps none."
    )
    worker_probes: bool = Field(True, description="Try which schemes the device runs; without, models stay dense.")
    worker_start_s: float = Field(120.0, gt=0, description="Seconds that the engine process gets to say hello.")
    worker_heartbeat_s: float = Field(5.0, gt=0, le=10, description="Longest silence of a stream.")
    worker_hold_s: float = Field(15.0, gt=0, description="A silent holder without a run loses the worker after this.")
    worker_keep_s: float = Field(300.0, gt=0, description="A run that nobody claims is dropped after this.")
    worker_keep_bytes: int = Field(
        512 * 2**20, gt=0, description="Most bytes of finished outputs that are kept; the oldest go first."
    )
    worker_threads: int = Field(0, ge=0, description="CPU threads of the engine; 0 leaves the choice to PyTorch.")

    @property
    def store_url(self) -> str:
        """Where quantised components are kept."""
        return self.builder_store or str(self.data_dir / "checkpoints")

    @property
    def copies_folder(self) -> Path:
        """Where artifacts of a store that is elsewhere are copied to."""
        return self.worker_cache_dir / "artifacts"

    @property
    def has_store(self) -> bool:
        """False for a folder that nobody has made yet."""
        return "://" in self.store_url or Path(self.store_url).is_dir()

    @property
    def model_folders(self) -> list[Path]:
        """Folders that plans may name paths in."""
        return [Path(item).resolve() for item in self.worker_model_paths.split(os.pathsep) if item]

    @property
    def trusted_repos(self) -> frozenset[str]:
        """Hub owners and repositories that the operator trusts."""
        return frozenset(item.strip() for item in self.worker_trusted_repos.split(",") if item.strip())

    @property
    def catalog_paths(self) -> tuple[Path, ...]:
        """Extra catalogue files and folders."""
        return tuple(Path(item) for item in self.catalog_path.split(os.pathsep) if item)
