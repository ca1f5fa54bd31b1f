"""Where pictures are saved: names made of prompt and seed, and no file is overwritten unasked.

Knows nothing of pictures. Invariant: what can't be written is refused before a job is submitted.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from darkroom.cli.failures import EXIT_USAGE, UserError
from darkroom.cli.text import slug

if TYPE_CHECKING:
    from darkroom.client import Picture

FORMATS_BY_SUFFIX = {".png": "png", ".jpg": "jpeg", ".jpeg": "jpeg", ".webp": "webp"}
STDOUT = "-"


@dataclass(frozen=True)
class Destination:
    """A file, a folder, or standard output.

    Args:
        path: as given; None means the current folder; "-" standard output.
        prompt: names files in folders.
        count: of pictures; with more than one, a file's name gets each seed.
        overwrite: whether an existing file may go.
    """

    path: str | None
    prompt: str
    count: int
    overwrite: bool

    @property
    def is_stdout(self) -> bool:
        """True for "-"."""
        return self.path == STDOUT

    @property
    def is_folder(self) -> bool:
        """True where names are made up in a folder."""
        return self.path is None or self.path.endswith(os.sep) or Path(self.path).is_dir()

    def choose_format(self, wanted: str | None) -> str:
        """Returns the format: as wanted, else by the file's suffix, else PNG.

        Raises:
            UserError: suffix and wish contradict each other, or the suffix is none of a picture.
        """
        if self.is_folder or self.is_stdout:
            return wanted or "png"
        suffix = Path(str(self.path)).suffix.lower()
        by_suffix = FORMATS_BY_SUFFIX.get(suffix)
        if by_suffix is None and wanted is None:
            known = ", ".join(FORMATS_BY_SUFFIX)
            what = f"{self.path} is neither a folder nor a file that ends with {known}"
            raise UserError(what, "Give the file such a suffix, add --format, or end a folder with /.", EXIT_USAGE)
        if wanted is not None and by_suffix not in (None, wanted):
            raise UserError(f"{self.path} and --format {wanted} disagree", "Leave one of them out.", EXIT_USAGE)
        return wanted or str(by_suffix)

    def prepare(self) -> None:
        """Makes the folder and refuses what would be overwritten.

        Raises:
            UserError: the file exists, or the folder can't be written to.
        """
        if self.is_stdout:
            if self.count > 1:
                raise UserError("standard output takes one picture", "Give --output a folder.", EXIT_USAGE)
            return
        folder = Path(self.path or ".") if self.is_folder else Path(str(self.path)).parent
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as failure:
            raise UserError(f"{folder}: {failure.strerror}", "Choose another --output.") from None
        if not os.access(folder, os.W_OK | os.X_OK):
            raise UserError(f"{folder} can't be written to", "Choose another --output.")
        if not self.is_folder and self.count == 1 and not self.overwrite and Path(str(self.path)).exists():
            raise UserError(f"{self.path} exists", "Choose another name, or add --overwrite.")

    def save(self, picture: Picture) -> Path:
        """Writes the picture and returns its path; a made-up name that is taken gets a number."""
        if self.is_folder:
            return self._save_in_folder(picture)
        path = Path(str(self.path))
        if self.count > 1:
            path = path.with_name(f"{path.stem}-{picture.seed}{path.suffix}")
        try:
            return picture.save(path, overwrite=self.overwrite)
        except FileExistsError:
            raise UserError(f"{path} exists", "Choose another name, or add --overwrite.") from None

    def _save_in_folder(self, picture: Picture) -> Path:
        suffix = "jpg" if picture.format == "jpeg" else picture.format
        stem = f"{slug(self.prompt)}-{picture.seed}"
        number = 1
        while True:
            name = f"{stem}.{suffix}" if number == 1 else f"{stem}-{number}.{suffix}"
            try:
                return picture.save(Path(self.path or ".") / name, overwrite=self.overwrite)
            except FileExistsError:
                number += 1
