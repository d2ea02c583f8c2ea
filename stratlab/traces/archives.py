"""Collect foreign traces from a folder, a ZIP or tar file, or one trace; archives inside count as folders.

`collect_files` treats archives as untrusted and unpacks them within a `Budget`. It writes only members that may be
traces, each into a folder that this program names, so that names in an archive do not decide a path. An archive with
paths outside, or with far more data than its size, is refused as a whole. A damaged member is left out.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import IO

from stratlab import UserError
from stratlab.run_directory.files import FOREIGN
from stratlab.traces.discover import NAME_NO_TEXT


class ArchiveError(UserError):
    """Report why an archive is not unpacked, with its name."""


@dataclass(frozen=True)
class ArchiveLimits:
    """Limit the unpacked data of one source."""

    members: int = 20_000
    total_bytes: int = 64 << 30
    ratio: int = 200  # unpacked to packed; Kineto's traces reach 18
    ratio_from_bytes: int = 64 << 20  # small archives may be more repetitive


ARCHIVE_LIMITS = ArchiveLimits()


class Budget:
    """Count the bytes that may still be unpacked from one source; all its archives share it, also nested ones.

    The sizes in the archive suffice, because a member is read only up to the archive's size of it.

    Args:
        packed: size of the archives on the disk, in bytes.
    """

    def __init__(self, packed: int, limits: ArchiveLimits = ARCHIVE_LIMITS) -> None:
        self._limits = limits
        self._most = min(limits.total_bytes, max(limits.ratio_from_bytes, packed * limits.ratio))
        self._bytes = self._members = 0
        is_of_ratio = self._most == packed * limits.ratio
        self._why = f"more than {self._most / 2**30:.3g} GiB"
        self._why += f", {limits.ratio} times its size" if is_of_ratio else ""

    def spend(self, size: int, shown: str) -> None:
        """Count a member before it is unpacked, by the size in its archive. A refused member is not counted."""
        if self._members >= self._limits.members:
            raise ArchiveError(
                f"{shown}: refused, the source holds more than {self._members:,} members [SL-archive-members]"
            )
        if self._bytes + size > self._most:
            raise ArchiveError(f"{shown}: refused, the source unpacks to {self._why} [SL-archive-bomb]")
        self._members += 1
        self._bytes += size

    def mark(self) -> tuple[int, int]:
        """Return the used amount, for `give_back`."""
        return self._members, self._bytes

    def give_back(self, mark: tuple[int, int]) -> None:
        """Return the amount used since `mark`, after an archive was refused and its files were removed."""
        self._members, self._bytes = mark


ARCHIVE = re.compile(r"(?P<stem>.+?)\.(zip|tar|tar\.gz|tgz)", re.IGNORECASE)
TRACE_SUFFIXES = (".json", ".gz")
OTHER_ENDING = "does not end in .json or .gz [SL-file-ending]"
ZIP_BEGINNINGS = (b"PK\x03\x04", b"PK\x05\x06")  # first bytes of a member, and of an empty archive
COPY_BYTES = 1 << 20
LONGEST_NAME = 200  # bytes
DRIVE = re.compile(r"[A-Za-z]:")
DAMAGE = (zipfile.BadZipFile, tarfile.TarError, zlib.error, EOFError, OSError, RuntimeError)


@dataclass(frozen=True)
class SourceFile:
    """Describe a file that may be a trace: its folders and name as shown to the user, and its path."""

    parts: tuple[str, ...]
    path: Path

    @property
    def shown(self) -> str:
        return "/".join(self.parts)


@dataclass
class Unpacked:
    """Hold unpacked files. `left_out`: (name as shown to the user, reason)."""

    files: list[SourceFile] = field(default_factory=list)
    left_out: list[tuple[str, str]] = field(default_factory=list)

    def add(self, parts: tuple[str, ...], path: Path, problem: str | None) -> None:
        """Add the file to `files`, or to `left_out` if it has a problem."""
        if problem:
            self.left_out.append((_say_name(parts), problem))
        else:
            self.files.append(SourceFile(parts, path))


@dataclass(frozen=True)
class _Member:
    """Describe a member. `size` is the archive's own figure, also for members that are only skipped."""

    name: str
    size: int
    problem: str | None
    open: Callable[[], IO[bytes] | None]


def find_archive_stem(name: str) -> str | None:
    """Return `runs` of runs.zip and runs.tar.gz; None if the name is not an archive's."""
    found = ARCHIVE.fullmatch(name)
    return found["stem"] if found else None


def is_hidden(parts: tuple[str, ...]) -> bool:
    """Return whether operating systems create this file next to their users' files."""
    return any(part.startswith(".") or part == "__MACOSX" for part in parts)


def _say_name(parts: tuple[str, ...]) -> str:
    """Join the parts; replace bytes that are not text, so that a report can contain the name."""
    name = "/".join(parts)
    return name if name.isprintable() else ascii(name)[1:-1]


def unpack(archive: Path, shown: str, target: Path, budget: Budget) -> Unpacked:
    """Unpack the traces of one archive, and nested archives without opening them.

    Args:
        shown: its name for messages.
        target: an empty folder.
        budget: budget of its source.

    Raises:
        ArchiveError: the whole archive is damaged, a member points outside, or the budget is exhausted.
        OSError: a failure of this machine, such as a full disk.
    """
    found = Unpacked()
    try:
        for number, member in enumerate(_list_members(archive), 1):
            parts = _check_name(member.name, shown)
            budget.spend(member.size, shown)
            if parts and not is_hidden(parts):
                path = target / str(number) / shorten(parts[-1], LONGEST_NAME)
                problem = _find_name_problem(parts) or member.problem or _unpack_member(member, path)
                found.add(parts, path, problem)
    except DAMAGE as failure:
        why = _say_damage(failure)
        if not found.files:
            reason = f"{shown}: damaged, or its content does not match its name ({why}) [SL-archive-damaged]"
            raise ArchiveError(reason) from failure
        last = found.files[-1].shown
        found.left_out.append((shown, f"damaged ({why}): the members after {last} are lost [SL-archive-cut]"))
    return found


def _unpack_member(member: _Member, path: Path) -> str | None:
    """Unpack one member; return why this failed, or None."""
    path.parent.mkdir()
    try:
        source = member.open()
        assert source is not None  # a regular file has content
        with source, open(path, "wb") as out:
            shutil.copyfileobj(source, out, COPY_BYTES)
    except DAMAGE as failure:
        why = _say_damage(failure)
        path.unlink(missing_ok=True)
        return f"damaged in the archive ({why}) [SL-archive-member-damaged]"
    return None


def _find_name_problem(parts: tuple[str, ...]) -> str | None:
    if not _is_wanted(parts[-1]):
        return OTHER_ENDING
    return None if _say_name(parts) == "/".join(parts) else NAME_NO_TEXT


def _list_members(archive: Path) -> Iterator[_Member]:
    """Yield regular files, and other members with a problem; folders are left out."""
    if _is_zip(archive):
        with zipfile.ZipFile(archive) as packed:
            for info in packed.infolist():
                if not info.is_dir():
                    size = info.file_size if _is_wanted(info.filename) else 0
                    yield _Member(info.filename, size, _find_zip_problem(info), partial(packed.open, info))
        return
    with tarfile.open(archive, "r:*") as tar:
        for entry in tar:
            if not entry.isdir():
                problem = None if entry.isreg() else "a link or a device, not a file [SL-archive-link]"
                yield _Member(entry.name, entry.size, problem, partial(tar.extractfile, entry))


def _is_zip(archive: Path) -> bool:
    """Detect a ZIP by its first bytes, because a tar whose last member is a stored ZIP ends like a ZIP."""
    with open(archive, "rb") as file:
        if file.read(4) in ZIP_BEGINNINGS:
            return True
    return zipfile.is_zipfile(archive) and not tarfile.is_tarfile(archive)  # other data may precede a ZIP


def _find_zip_problem(info: zipfile.ZipInfo) -> str | None:
    if stat.S_ISLNK(info.external_attr >> 16):
        return "a symbolic link, not a file [SL-archive-symlink]"
    return "encrypted [SL-archive-encrypted]" if info.flag_bits & 1 else None


def _check_name(name: str, shown: str) -> tuple[str, ...]:
    """Return the folders and the name of a member; Windows writes backslashes."""
    plain = name.replace("\\", "/")
    parts = tuple(part for part in plain.split("/") if part not in ("", "."))
    if plain.startswith("/") or DRIVE.match(plain) or ".." in parts:
        raise ArchiveError(
            f"{shown}: refused, its member {name!a} points outside the archive [SL-archive-outside]"
        )
    return parts


def shorten(name: str, most: int) -> str:
    """Shorten a name, but not its ending, so that every file system accepts it."""
    encoded = name.encode(errors="replace")
    if len(encoded) <= most:
        return name
    return encoded[-most:].decode(errors="ignore")


def _is_wanted(name: str) -> bool:
    return name.lower().endswith(TRACE_SUFFIXES) or find_archive_stem(name) is not None


def _say_damage(failure: BaseException) -> str:
    """Describe damage in one line, because tarfile lists all its attempts; raise failures of this machine again."""
    if isinstance(failure, OSError) and failure.errno is not None:
        raise failure
    return "neither a ZIP nor a tar file" if "\n" in str(failure) else str(failure)


OF_OTHERS = dict.fromkeys((".nsys-rep", ".qdrep", ".sqlite"), "a report of Nsight Systems")
OF_OTHERS |= dict.fromkeys((".pftrace", ".perfetto-trace"), "a trace of Perfetto in its own format")
DEEPEST_ARCHIVE = 2  # an archive in an archive, but no third level


def build_no_source(source: Path) -> UserError:
    """Build the error for a missing source."""
    return UserError(f"{source}: the folder or file does not exist [SL-source-missing]")


def collect_files(source: Path, scratch: Path, limits: ArchiveLimits = ARCHIVE_LIMITS) -> Unpacked:
    """Return every file of `source` that may be a trace by its ending, in order of its name.

    The first level of a name is the content of the source; the source's own name is not part of it.

    Args:
        source: a folder, a .zip, .tar, .tar.gz or .tgz, or a .json or .gz file. It is only read.
        scratch: an empty folder for unpacked files.

    Raises:
        UserError: `source` is of another kind.
        ArchiveError: `source` is an archive that is refused. A refused archive inside is left out instead.
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
        kind_words = f"{kind}, not a trace of torch.profiler; " if kind else ""
        raise UserError(
            f"{source}: {kind_words}expected a folder, a .zip, .tar, .tar.gz or .tgz, or a trace (.json, "
            ".json.gz) [SL-source-kind]"
        )
    else:
        raise build_no_source(source)
    for _ in range(DEEPEST_ARCHIVE - (not source.is_dir())):
        found = _open_archives(found, scratch, budget)
    whole = Unpacked([], found.left_out)
    for file in sorted(found.files, key=lambda file: file.parts):
        nested = "an archive in the third level of archives; unpack it [SL-archive-nested]"
        whole.add(file.parts, file.path, nested if _is_archive(file) else None)
    return whole


def _walk(folder: Path) -> Unpacked:
    found = Unpacked()
    root = folder.resolve()
    for place, folders, names in os.walk(root):
        here = (name for name in folders if not is_hidden((name,)))
        earlier = {
            name for name in folders if Path(place, name, FOREIGN).exists()
        }  # folders of earlier analyses
        folders[:] = sorted({*here} - earlier)
        for path in (Path(place, name) for name in sorted(names) if not is_hidden((name,))):
            parts = path.relative_to(root).parts
            found.add(parts, path, _find_name_problem(parts))
    return found


def _open_archives(found: Unpacked, scratch: Path, budget: Budget) -> Unpacked:
    """Open each archive as a folder of its name; archives inside stay closed."""
    opened = Unpacked([], list(found.left_out))
    for file in found.files:
        if not _is_archive(file):
            opened.files.append(file)
            continue
        if not file.path.is_file():
            opened.left_out.append((file.shown, "does not exist, or is not a file [SL-archive-missing]"))
            continue
        stem = find_archive_stem(file.parts[-1]) or file.parts[-1]
        folder, before = _make_folder(scratch), budget.mark()
        try:
            inside = unpack(file.path, file.shown, folder, budget)
        except ArchiveError as failure:  # its share of the budget is available to the other archives
            budget.give_back(before)
            shutil.rmtree(folder)
            folder.mkdir()  # its number stays in use
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
