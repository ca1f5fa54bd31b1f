"""Generates darkroom/v1 from the protos with a pinned, old generator, in a virtual environment of its own.

Old on purpose: code from grpcio-tools 1.71.2 (protobuf 5.29 gencode) imports under protobuf 5.29 to 7 and grpcio 1.71
and later, so that backends with older pins can install the client.

    python protos/generate.py           write the stubs
    python protos/generate.py --check   fail if the committed stubs differ from what would be written
"""

from __future__ import annotations

import argparse
import filecmp
import shutil
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

PROTOS = Path(__file__).resolve().parent
ROOT = PROTOS.parent
PACKAGE = Path("darkroom/v1")
GENERATOR = ("grpcio-tools==1.71.2", "mypy-protobuf==3.6.0", "protobuf==5.29.6", "setuptools<81")
MYPY = ("mypy", "mypy_grpc")
INIT = '"""Generated from protos/darkroom/v1 by protos/generate.py; nothing here is written by hand."""\n'


def generator_python() -> Path:
    """Returns the interpreter of the generator's own environment, making it on first use."""
    home = ROOT / ".cache" / "protos-venv"
    python = home / "bin" / "python"
    stamp = home / "installed"
    wanted = "\n".join(GENERATOR)
    if not stamp.exists() or stamp.read_text() != wanted:
        venv.create(home, with_pip=True, clear=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", *GENERATOR], check=True)
        stamp.write_text(wanted)
    return python


def generate(target: Path) -> None:
    """Writes all stubs below `target`."""
    python = generator_python()
    nouns = sorted(str(path.relative_to(PROTOS)) for path in (PROTOS / PACKAGE).glob("*.proto"))
    services = [path for path in nouns if path.endswith("_service.proto")]
    (target / PACKAGE).mkdir(parents=True, exist_ok=True)
    for outputs, sources in ((("python", "mypy"), nouns), (("grpc_python", "mypy_grpc"), services)):
        command = [python, "-m", "grpc_tools.protoc", f"--proto_path={PROTOS}"]
        command += [f"--{output}_out={target}" for output in outputs]
        command += [f"--plugin=protoc-gen-{name}={python.parent / f'protoc-gen-{name}'}" for name in MYPY]
        subprocess.run([*map(str, command), *sources], check=True, stderr=subprocess.DEVNULL)
    (target / PACKAGE / "__init__.py").write_text(INIT)


def differing_files(generated: Path) -> list[str]:
    """Names files that are missing, left over, or different in the committed folder."""
    fresh = {path.name for path in (generated / PACKAGE).iterdir() if path.is_file()}
    committed = {path.name for path in (ROOT / PACKAGE).iterdir() if path.is_file()}
    changed = {
        name
        for name in fresh & committed
        if not filecmp.cmp(generated / PACKAGE / name, ROOT / PACKAGE / name, shallow=False)
    }
    return sorted((fresh ^ committed) | changed)


def replace(generated: Path, names: list[str]) -> None:
    """Puts fresh files in place of the committed ones, and removes what is left over; the rest is not touched."""
    for name in names:
        fresh, committed = generated / PACKAGE / name, ROOT / PACKAGE / name
        if fresh.exists():
            shutil.copyfile(fresh, committed)
        else:
            committed.unlink()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="compare instead of writing")
    is_check = parser.parse_args().check
    with tempfile.TemporaryDirectory() as scratch:
        generate(Path(scratch))
        drift = differing_files(Path(scratch))
        if not is_check:
            replace(Path(scratch), drift)
            return 0
    if drift:
        print(f"stubs are not current: {', '.join(drift)}. Run: python protos/generate.py", file=sys.stderr)
    return 1 if drift else 0


if __name__ == "__main__":
    sys.exit(main())
