"""Settings of the planner."""

from __future__ import annotations

import os

from pydantic import Field

from darkroom.rpc.settings import Settings


class PlannerSettings(Settings):
    """Where it listens and which catalogue files it reads beside its own."""

    planner_listen: str = Field("127.0.0.1:50052", description="Address to serve on; port 0 takes a free one.")
    catalog_path: str = Field(
        "", description="Extra family files or folders of them, separated by ':'; later ones win."
    )

    @property
    def catalog_paths(self) -> list[str]:
        return [path for path in self.catalog_path.split(os.pathsep) if path]
