"""Settings: from the environment, all problems at once, described for --help."""

from __future__ import annotations

import pytest
from pydantic import Field, SecretStr

from darkroom.rpc.settings import Settings, describe_settings, load_settings


class LampSettings(Settings):
    lamp_watts: int = Field(60, ge=1, description="Power of the lamp in watts.")


def test_a_field_is_read_from_its_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DARKROOM_LAMP_WATTS", "100")
    assert load_settings(LampSettings).lamp_watts == 100


def test_an_empty_variable_means_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DARKROOM_LAMP_WATTS", "")
    assert load_settings(LampSettings).lamp_watts == 60


def test_all_problems_are_told_together(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("DARKROOM_LAMP_WATTS", "0")
    monkeypatch.setenv("DARKROOM_LOG_LEVEL", "LOUD")
    with pytest.raises(SystemExit, match="2"):
        load_settings(LampSettings)
    told = capsys.readouterr().err
    assert "DARKROOM_LAMP_WATTS='0'" in told
    assert "DARKROOM_LOG_LEVEL='LOUD'" in told


def test_a_file_serves_as_well(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
    file = tmp_path / "lamp.env"
    file.write_text("DARKROOM_LAMP_WATTS=25\n")
    monkeypatch.setenv("DARKROOM_ENV_FILE", str(file))
    assert load_settings(LampSettings).lamp_watts == 25


def test_help_names_every_variable() -> None:
    assert "DARKROOM_LAMP_WATTS (default 60)\n      Power of the lamp in watts." in describe_settings(LampSettings)


class SafeSettings(Settings):
    safe_code: SecretStr = Field(SecretStr(""), description="Opens the safe.")
    safe_key: SecretStr = Field(SecretStr("hunter2"), description="Opens the other safe.")


def test_help_shows_that_no_secret_is_set_and_never_a_secret() -> None:
    told = describe_settings(SafeSettings)
    assert "DARKROOM_SAFE_CODE (default '')" in told
    assert "hunter2" not in told
    assert "SecretStr" not in told
