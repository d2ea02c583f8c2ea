"""What has arrived takes its place in a folder: whole, or not at all."""

from __future__ import annotations

import json
import shutil
import tarfile
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from stratlab.machine.refused_place import say_refused
from stratlab.run_directory.files import has_marks, is_run
from stratlab.run_directory.places import FETCHED
from stratlab.user_error import UserError


@dataclass(frozen=True)
class Fetched:
    """Where it lies now, and how much it is."""

    folder: Path
    files: int
    size_bytes: int


def check_target(target: Path, replace: bool) -> None:
    """Before anything is fetched.

    Raises:
        UserError: something is there, and may not be replaced: without --replace, or because it is no run's.
    """
    if not target.exists() and not target.is_symlink():
        return
    if not replace:
        raise UserError(
            f"{target}: is there already; --replace fetches it again, --output names another place "
            "[SL-fetched-already]"
        )
    if target.is_symlink() or not target.is_dir() or not _is_ours(target):
        raise UserError(
            f"{target}: is no run and no comparison, and is not replaced; --output names another place "
            "[SL-fetch-over-other]"
        )


def unpack(pieces: Iterable[bytes], target: Path, without: Sequence[str] = ()) -> Fetched:
    """Writes the archive's one folder to `target`, in place of what is there.

    Args:
        without: what stayed on the volume; each run's folder says so, and `stratlab verify` does not miss it.

    Raises:
        UserError: the place cannot be written.
    """
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=".fetched.") as temporary:
            archive, fresh = Path(temporary) / "archive.tar", Path(temporary) / "folder"
            with archive.open("wb") as file:
                for piece in pieces:
                    file.write(piece)
            with tarfile.open(archive) as opened:
                _extract(opened, fresh)
            (folder,) = fresh.iterdir()
            for run in (folder, *folder.iterdir()):
                if has_marks(run):
                    (run / FETCHED).write_text(json.dumps({"without": list(without)}) + "\n")
            if target.exists():
                target.rename(Path(temporary) / "before")
            folder.rename(target)
            shutil.rmtree(Path(temporary) / "before", ignore_errors=True)
    except OSError as failure:
        if not say_refused(failure):  # as a full disk, or a connection that broke
            raise
        raise UserError(
            f"{target}: cannot be written ({failure.strerror}) [SL-fetch-not-written]"
        ) from failure
    files = [path for path in target.rglob("*") if path.is_file()]
    return Fetched(target, len(files), sum(path.stat().st_size for path in files))


def _extract(archive: tarfile.TarFile, folder: Path) -> None:
    """Files and folders, and nothing outside of `folder` (Debian's Python 3.11.2 has no extraction filters yet)."""
    for member in archive:
        path = folder / member.name
        assert not Path(member.name).is_absolute() and ".." not in path.parts, member.name
        if member.isdir():
            path.mkdir(parents=True, exist_ok=True)
        elif content := archive.extractfile(member) if member.isfile() else None:
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("wb") as file:
                shutil.copyfileobj(content, file)


def _is_ours(target: Path) -> bool:
    """A run, or a folder with nothing but runs and the reports about them."""
    if is_run(target):
        return True
    below = [path for path in target.iterdir() if path.is_dir()]
    return any(map(is_run, below)) and all(
        has_marks(path) or (path / "report.json").is_file() for path in below
    )
