"""Where foreign traces come from: a folder, a ZIP or tar file, or one trace; archives inside count as folders."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from stratlab.run_directory.foreign import FOREIGN
from stratlab.traces.archive_budget import ARCHIVE_LIMITS, ArchiveError, ArchiveLimits, Budget
from stratlab.traces.archives import (
    OTHER_ENDING,
    TRACE_SUFFIXES,
    SourceFile,
    Unpacked,
    find_archive_stem,
    is_hidden,
    say_name,
    unpack,
)
from stratlab.traces.manifest import NAME_NO_TEXT
from stratlab.user_error import UserError

OF_OTHERS = dict.fromkeys((".nsys-rep", ".qdrep", ".sqlite"), "a report of Nsight Systems")
OF_OTHERS |= dict.fromkeys((".pftrace", ".perfetto-trace"), "a trace of Perfetto in its own format")
DEEPEST_ARCHIVE = 2  # an archive in an archive, and none in that


def build_no_source(source: Path) -> UserError:
    """Where nothing is."""
    return UserError(f"{source}: no such folder or file [SL-source-missing]")


def collect_files(source: Path, scratch: Path, limits: ArchiveLimits = ARCHIVE_LIMITS) -> Unpacked:
    """Every file of `source` that may be a trace by its ending, in order of its name; the first level is that of the
    source, whose own name is in none.

    Args:
        source: a folder, a .zip, .tar, .tar.gz or .tgz, or a .json or .gz file. It is only read.
        scratch: an empty folder for what is unpacked.

    Raises:
        UserError: `source` is nothing of these.
        ArchiveError: it is an archive that is refused. An archive inside is left out instead.
    """
    if source.is_dir():
        found = _walk(source)
        packed = (file.path for file in found.files if _is_archive(file))
        budget = Budget(sum(path.stat().st_size for path in packed if path.is_file()), limits)
    elif source.is_file() and find_archive_stem(source.name):
        budget = Budget(source.stat().st_size, limits)
        found = unpack(source, source.name, _make_folder(scratch), budget)
    elif source.is_file() and source.name.lower().endswith(TRACE_SUFFIXES):
        return Unpacked([SourceFile((source.name,), source.resolve())])
    elif source.exists():
        kind = OF_OTHERS.get(source.suffix.lower())
        said = f"{kind}, no trace of torch.profiler; " if kind else ""
        raise UserError(
            f"{source}: {said}expected a folder, a .zip, .tar, .tar.gz or .tgz, or a trace (.json, "
            ".json.gz) [SL-source-kind]"
        )
    else:
        raise build_no_source(source)
    for _ in range(DEEPEST_ARCHIVE - (not source.is_dir())):
        found = _open_archives(found, scratch, budget)
    left = [file for file in found.files if _is_archive(file)]
    found.left_out += [
        (file.shown, "an archive inside an archive inside an archive [SL-archive-nested]") for file in left
    ]
    return Unpacked(sorted((f for f in found.files if f not in left), key=lambda f: f.parts), found.left_out)


def _walk(folder: Path) -> Unpacked:
    found = Unpacked()
    root = folder.resolve()
    for place, folders, names in os.walk(root):
        here = (name for name in folders if not is_hidden((name,)))
        folders[:] = sorted(
            name for name in here if not Path(place, name, FOREIGN).exists()
        )  # an earlier analysis
        for name in sorted(names):
            path = Path(place, name)
            parts = path.relative_to(root).parts
            wanted = name.lower().endswith(TRACE_SUFFIXES) or find_archive_stem(name)
            if is_hidden((name,)):
                continue
            if not wanted:
                found.left_out.append((say_name(parts), OTHER_ENDING))
            elif say_name(parts) != "/".join(parts):
                found.left_out.append((say_name(parts), NAME_NO_TEXT))
            else:
                found.files.append(SourceFile(parts, path))
    return found


def _open_archives(found: Unpacked, scratch: Path, budget: Budget) -> Unpacked:
    """Each as a folder of its name; archives in these stay."""
    opened = Unpacked([], list(found.left_out))
    for file in found.files:
        if not _is_archive(file):
            opened.files.append(file)
            continue
        if not file.path.is_file():
            opened.left_out.append((file.shown, "is not there, or no file [SL-archive-missing]"))
            continue
        stem = find_archive_stem(file.parts[-1]) or file.parts[-1]
        folder, before = _make_folder(scratch), budget.mark()
        try:
            inside = unpack(file.path, file.shown, folder, budget)
        except ArchiveError as failure:  # the others shall have what it took
            budget.give_back(before)
            shutil.rmtree(folder)
            folder.mkdir()  # its number stays taken
            opened.left_out.append((file.shown, str(failure).removeprefix(f"{file.shown}: ")))
            continue
        above = (*file.parts[:-1], stem)
        opened.files += [SourceFile((*above, *each.parts), each.path) for each in inside.files]
        opened.left_out += [
            (name if name == file.shown else "/".join((*above, name)), why) for name, why in inside.left_out
        ]
    return opened


def _is_archive(file: SourceFile) -> bool:
    return find_archive_stem(file.parts[-1]) is not None


def _make_folder(scratch: Path) -> Path:
    folder = scratch / str(len(os.listdir(scratch)) + 1)
    folder.mkdir()
    return folder
