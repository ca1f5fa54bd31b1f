"""Who may import what: the cut lines between the services, checked on the source."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SERVICES = {path.name for path in (ROOT / "services").iterdir() if path.is_dir() and path.name != "__pycache__"}
TORCH_ROOMS = ("darkroom/modeling/", "services/worker/engine/", "services/checkpoint_builder/")
HEAVY = {"torch", "diffusers", "transformers", "torchao", "accelerate"}
BANNED_NAMES = {"utils", "helpers", "common", "misc", "manager"}


def python_files(*folders: str) -> list[Path]:
    return [
        path
        for folder in folders
        for path in sorted((ROOT / folder).rglob("*.py"))
        if "darkroom/v1" not in path.as_posix()
    ]


def imported_modules(path: Path) -> set[str]:
    modules: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            modules |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            modules.add(node.module)
    return modules


@pytest.mark.parametrize("path", python_files("services"), ids=lambda path: str(path.relative_to(ROOT)))
def test_a_service_imports_no_other_service(path: Path) -> None:
    own = path.relative_to(ROOT / "services").parts[0]
    # The stack is no service but what starts them; it may not import one either.
    others = {f"services.{name}" for name in SERVICES - {own, "stack"}}
    imported = imported_modules(path)
    assert not {name for name in imported for other in others if name == other or name.startswith(other + ".")}


@pytest.mark.parametrize("path", python_files("darkroom", "services"), ids=lambda path: str(path.relative_to(ROOT)))
def test_heavy_packages_stay_in_their_rooms(path: Path) -> None:
    relative = path.relative_to(ROOT).as_posix()
    roots = {name.split(".")[0] for name in imported_modules(path)}
    if not relative.startswith(TORCH_ROOMS):
        assert not roots & HEAVY
    if not relative.startswith("services/gateway/"):
        assert "redis" not in roots
    if relative.startswith("darkroom/"):
        assert "services" not in roots


@pytest.mark.parametrize("path", python_files("darkroom", "services"), ids=lambda path: str(path.relative_to(ROOT)))
def test_files_say_what_they_are_and_are_named_for_their_subject(path: Path) -> None:
    assert ast.get_docstring(ast.parse(path.read_text())), "a module opens with what it is"
    assert not BANNED_NAMES & set(path.relative_to(ROOT).with_suffix("").parts)


@pytest.mark.parametrize("module", ["darkroom.client", "darkroom.v1.generation_service_pb2_grpc"])
def test_what_other_backends_import_pulls_in_nothing_heavy(module: str) -> None:
    program = f"import sys, {module}; print(*(set(sys.modules) & {HEAVY | {'redis', 'numpy', 'pydantic'}!r}))"
    loaded = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True, cwd=ROOT)
    assert loaded.stdout.split() == []
