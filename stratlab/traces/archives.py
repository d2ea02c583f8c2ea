"""Where foreign traces come from: a folder, a ZIP or tar file, or one trace; archives inside count as folders.

Archives are unpacked with distrust, and within a budget. Only what may be a trace is written, each member into a folder
of its own that this program names, so no name in an archive decides where anything lands. An archive that tries all the
same, or that unpacks to far more than it is, is refused as a whole; a damaged member costs itself.
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

from stratlab.run_directory.places import FOREIGN
from stratlab.traces.discover import NAME_NO_TEXT
from stratlab.user_error import UserError


class ArchiveError(UserError):
    """Why an archive is not unpacked, with its name."""


@dataclass(frozen=True)
class ArchiveLimits:
    """What the archives of one source may cost."""

    members: int = 20_000
    total_bytes: int = 64 << 30
    ratio: int = 200  # unpacked to packed; Kineto's traces reach 18
    ratio_from_bytes: int = 64 << 20  # small archives may be more repetitive


ARCHIVE_LIMITS = ArchiveLimits()


class Budget:
    """What may still be unpacked of one source: all its archives share it, also those inside of one another. Their own
    word suffices: no more is read of a member than it tells.

    Args:
        packed: bytes of the archives that lie on the disk themselves.
    """

    def __init__(self, packed: int, limits: ArchiveLimits = ARCHIVE_LIMITS) -> None:
        self._limits = limits
        self._most = min(limits.total_bytes, max(limits.ratio_from_bytes, packed * limits.ratio))
        self._bytes = self._members = 0
        is_of_ratio = self._most == packed * limits.ratio
        self._why = f"more than {self._most / 2**30:.3g} GiB"
        self._why += f", {limits.ratio} times its size" if is_of_ratio else ""

    def spend(self, size: int, shown: str) -> None:
        """Before a member is unpacked: what its archive says of it. What is refused is not counted."""
        if self._members >= self._limits.members:
            raise ArchiveError(
                f"{shown}: refused, the source holds more than {self._members:,} members [SL-archive-members]"
            )
        if self._bytes + size > self._most:
            raise ArchiveError(f"{shown}: refused, the source unpacks to {self._why} [SL-archive-bomb]")
        self._members += 1
        self._bytes += size

    def mark(self) -> tuple[int, int]:
        """What is used by now, for `give_back`."""
        return self._members, self._bytes

    def give_back(self, mark: tuple[int, int]) -> None:
        """What was used since is unused: an archive was refused, and what it had left was removed."""
        self._members, self._bytes = mark


ARCHIVE = re.compile(r"(?P<stem>.+?)\.(zip|tar|tar\.gz|tgz)", re.IGNORECASE)
TRACE_SUFFIXES = (".json", ".gz")
OTHER_ENDING = "ends neither in .json nor in .gz [SL-file-ending]"
ZIP_BEGINNINGS = (b"PK\x03\x04", b"PK\x05\x06")  # of a member, of an empty one
COPY_BYTES = 1 << 20
LONGEST_NAME = 200  # bytes
DRIVE = re.compile(r"[A-Za-z]:")
DAMAGE = (zipfile.BadZipFile, tarfile.TarError, zlib.error, EOFError, OSError, RuntimeError)


@dataclass(frozen=True)
class SourceFile:
    """A file that may be a trace: the folders that it lies in and its name, as the user sees them, and where it is."""

    parts: tuple[str, ...]
    path: Path

    @property
    def shown(self) -> str:
        return "/".join(self.parts)


@dataclass
class Unpacked:
    """`left_out`: (name as the user sees it, why)."""

    files: list[SourceFile] = field(default_factory=list)
    left_out: list[tuple[str, str]] = field(default_factory=list)

    def add(self, parts: tuple[str, ...], path: Path, problem: str | None) -> None:
        """To the one or the other."""
        if problem:
            self.left_out.append((_say_name(parts), problem))
        else:
            self.files.append(SourceFile(parts, path))


@dataclass(frozen=True)
class _Member:
    """`size` as the archive tells it, of what must be unpacked to come past it."""

    name: str
    size: int
    problem: str | None
    open: Callable[[], IO[bytes] | None]


def find_archive_stem(name: str) -> str | None:
    """`runs` of runs.zip and runs.tar.gz; None for what is no archive by its name."""
    found = ARCHIVE.fullmatch(name)
    return found["stem"] if found else None


def is_hidden(parts: tuple[str, ...]) -> bool:
    """What systems put beside the files of their users."""
    return any(part.startswith(".") or part == "__MACOSX" for part in parts)


def _say_name(parts: tuple[str, ...]) -> str:
    """Joined; bytes that are no text as a report can hold them."""
    name = "/".join(parts)
    return name if name.isprintable() else ascii(name)[1:-1]


def unpack(archive: Path, shown: str, target: Path, budget: Budget) -> Unpacked:
    """Unpacks the traces of one archive, and the archives in it as they are.

    Args:
        shown: its name for sentences.
        target: an empty folder.
        budget: of the source that it belongs to.

    Raises:
        ArchiveError: it is damaged as a whole, a member points outside, or the budget is spent.
        OSError: of this machine, as a full disk.
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
            reason = f"{shown}: damaged, or not what its name says ({why}) [SL-archive-damaged]"
            raise ArchiveError(reason) from failure
        last = found.files[-1].shown
        found.left_out.append((shown, f"damaged ({why}): what stands behind {last} is lost [SL-archive-cut]"))
    return found


def _unpack_member(member: _Member, path: Path) -> str | None:
    """Why it cannot be."""
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
    """Regular files, and with a problem what is no file; folders are left out."""
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
    """By its beginning: a tar ends as a ZIP does whose last member is one that is stored as it is."""
    with open(archive, "rb") as file:
        if file.read(4) in ZIP_BEGINNINGS:
            return True
    return zipfile.is_zipfile(archive) and not tarfile.is_tarfile(archive)  # something may stand before a ZIP


def _find_zip_problem(info: zipfile.ZipInfo) -> str | None:
    if stat.S_ISLNK(info.external_attr >> 16):
        return "a symbolic link, not a file [SL-archive-symlink]"
    return "encrypted [SL-archive-encrypted]" if info.flag_bits & 1 else None


def _check_name(name: str, shown: str) -> tuple[str, ...]:
    """The folders and the name of a member; Windows writes backslashes."""
    plain = name.replace("\\", "/")
    parts = tuple(part for part in plain.split("/") if part not in ("", "."))
    if plain.startswith("/") or DRIVE.match(plain) or ".." in parts:
        raise ArchiveError(
            f"{shown}: refused, its member {name!a} points outside the archive [SL-archive-outside]"
        )
    return parts


def shorten(name: str, most: int) -> str:
    """A name that every file system takes, with its ending."""
    encoded = name.encode(errors="replace")
    if len(encoded) <= most:
        return name
    return encoded[-most:].decode(errors="ignore")


def _is_wanted(name: str) -> bool:
    return name.lower().endswith(TRACE_SUFFIXES) or find_archive_stem(name) is not None


def _say_damage(failure: BaseException) -> str:
    """A failure of this machine, as a full disk, is raised again. tarfile lists on many lines what it has tried."""
    if isinstance(failure, OSError) and failure.errno is not None:
        raise failure
    return "neither a ZIP nor a tar file" if "\n" in str(failure) else str(failure)


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
        kind_words = f"{kind}, no trace of torch.profiler; " if kind else ""
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
        nested = "an archive inside an archive inside an archive [SL-archive-nested]"
        whole.add(file.parts, file.path, nested if _is_archive(file) else None)
    return whole


def _walk(folder: Path) -> Unpacked:
    found = Unpacked()
    root = folder.resolve()
    for place, folders, names in os.walk(root):
        here = (name for name in folders if not is_hidden((name,)))
        earlier = {name for name in folders if Path(place, name, FOREIGN).exists()}  # analyses
        folders[:] = sorted({*here} - earlier)
        for path in (Path(place, name) for name in sorted(names) if not is_hidden((name,))):
            parts = path.relative_to(root).parts
            found.add(parts, path, _find_name_problem(parts))
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
