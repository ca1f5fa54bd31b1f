"""How a service reads its settings: one frozen class, from `DARKROOM_*` variables or the file in DARKROOM_ENV_FILE.

A service declares a subclass of `Settings` with a description on every field; all problems are reported together,
before anything starts. Model facts are never settings.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TypeVar

from pydantic import Field, SecretStr, ValidationError
from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings, SettingsConfigDict

# A field `gateway_listen` is read from DARKROOM_GATEWAY_LISTEN.
PREFIX = "DARKROOM_"


class Settings(BaseSettings):
    """Base of every service's settings. Field `redis_url` is read from DARKROOM_REDIS_URL."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, frozen=True, extra="ignore", env_ignore_empty=True)

    log_level: str = Field("INFO", pattern="^(DEBUG|INFO|WARNING|ERROR)$", description="Least level that is logged.")
    reflection: bool = Field(True, description="Serve gRPC reflection, so that grpcurl can list services.")
    grace_s: float = Field(20.0, ge=0, le=3600, description="Seconds that running calls get when the service stops.")


SettingsType = TypeVar("SettingsType", bound=Settings)


def load_settings(settings_class: type[SettingsType]) -> SettingsType:
    """Returns the settings, or prints every problem with its variable and exits with status 2."""
    try:
        return settings_class(_env_file=os.environ.get(f"{PREFIX}ENV_FILE"))  # type: ignore[call-arg]
    except ValidationError as problems:
        for problem in problems.errors():
            variable = PREFIX + "_".join(map(str, problem["loc"])).upper()
            print(f"{variable}={problem.get('input')!r}: {problem['msg']}", file=sys.stderr)
        raise SystemExit(2) from None


def describe_settings(settings_class: type[Settings]) -> str:
    """Returns one line a variable, for --help."""
    return "\n".join(
        f"  {PREFIX}{name.upper()} (default {_show_default(field)})\n      {field.description}"
        for name, field in settings_class.model_fields.items()
    )


def _show_default(field: FieldInfo) -> str:
    value = field.get_default(call_default_factory=True)
    if isinstance(value, SecretStr):
        # The stars of a set one, and nothing where nothing is set.
        value = str(value)
    return str(value) if isinstance(value, Path) else repr(value)
