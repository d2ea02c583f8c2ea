from __future__ import annotations

import io
import stat
import tarfile
import zipfile
from pathlib import Path

import pytest

from stratlab.traces import archives
from stratlab.traces.archive_budget import ARCHIVE_LIMITS, ArchiveError, ArchiveLimits, Budget
from stratlab.traces.archives import Unpacked
from stratlab.traces.trace_files import collect_files

TRACE = b'{"traceEvents": []}'


def write_zip(path: Path, members: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return path


def write_tar(path: Path, members: dict[str, bytes]) -> Path:
    with tarfile.open(path, "w:gz" if path.name.endswith("gz") else "w") as archive:
        for name, content in members.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return path


WRITERS = {"runs.zip": write_zip, "runs.tar": write_tar, "runs.tar.gz": write_tar, "runs.tgz": write_tar}


def scratch(folder: Path) -> Path:
    target = folder / "scratch"
    target.mkdir()
    return target


def unpack(archive: Path, name: str, target: Path, limits: ArchiveLimits = ARCHIVE_LIMITS) -> Unpacked:
    return archives.unpack(archive, name, target, Budget(archive.stat().st_size, limits))


@pytest.mark.parametrize("name", WRITERS)
def test_what_may_be_a_trace_is_unpacked_and_nothing_else(name: str, tmp_path: Path) -> None:
    members = {
        "a/rank0.json": TRACE,
        "a/rank1.json.gz": b"x",
        "a/note.txt": b"",
        "__MACOSX/a/._rank0.json": b"",
    }
    archive = WRITERS[name](tmp_path / name, {**members, ".hidden/rank0.json": b"", "./b\\rank0.JSON": TRACE})
    found = unpack(archive, name, scratch(tmp_path))
    assert [file.shown for file in found.files] == ["a/rank0.json", "a/rank1.json.gz", "b/rank0.JSON"]
    assert found.files[0].path.read_bytes() == TRACE and found.files[0].path.name == "rank0.json"
    assert found.left_out == [("a/note.txt", "ends neither in .json nor in .gz")]
    assert not list(tmp_path.rglob("note.txt"))


@pytest.mark.parametrize("name", ("runs.zip", "runs.tar"))
@pytest.mark.parametrize(
    "member",
    ("../rank0.json", "a/../../rank0.json", "/etc/rank0.json", "C:\\rank0.json", "a\\..\\rank0.json"),
)
def test_a_path_that_points_outside_refuses_the_archive(name: str, member: str, tmp_path: Path) -> None:
    archive = WRITERS[name](tmp_path / name, {"a/rank0.json": TRACE, member: TRACE})
    with pytest.raises(ArchiveError, match=r"refused, its member .* points outside"):
        unpack(archive, name, scratch(tmp_path))
    assert not list(tmp_path.parent.glob("rank0.json")) and not (tmp_path / "rank0.json").exists()


@pytest.mark.parametrize("name", ("runs.zip", "runs.tgz"))
def test_a_bomb_is_refused(name: str, tmp_path: Path) -> None:
    archive = WRITERS[name](tmp_path / name, {"a/rank0.json": bytes(3 << 20)})
    limits = ArchiveLimits(ratio_from_bytes=1 << 20)
    with pytest.raises(ArchiveError, match="refused, the source unpacks to more than 0.000977 GiB"):
        unpack(archive, name, scratch(tmp_path), limits)
    assert not list(tmp_path.rglob("rank0.json"))
    assert unpack(archive, name, scratch(tmp_path / "scratch")).files  # small ones may be so


@pytest.mark.parametrize("packed", (False, True))
def test_bombs_beside_each_other_are_one_bomb(packed: bool, tmp_path: Path) -> None:
    """Each alone would be small enough. What is refused leaves its room to the others."""
    sizes = {"a.zip": 3, "b.zip": 2, "c.zip": 2, "d.zip": 1}
    source = tmp_path / "source"
    source.mkdir()
    for name, size in sizes.items():
        write_zip(source / name, {"rank0.json": bytes(size << 20)})
    if packed:
        source = write_zip(tmp_path / "all.zip", {name: (source / name).read_bytes() for name in sizes})
    found = collect_files(source, scratch(tmp_path), ArchiveLimits(ratio=1, ratio_from_bytes=6_310_000))
    assert [file.shown for file in found.files] == ["a/rank0.json", "b/rank0.json", "d/rank0.json"]
    assert found.left_out == [("c.zip", "refused, the source unpacks to more than 0.00588 GiB")]


def test_a_bomb_that_tells_another_size_is_damaged(tmp_path: Path) -> None:
    archive = write_zip(tmp_path / "runs.zip", {"rank0.json": bytes(3 << 20)})
    data = archive.read_bytes()
    size = (3 << 20).to_bytes(4, "little")
    archive.write_bytes(data.replace(size, (1 << 10).to_bytes(4, "little")))
    limits = ArchiveLimits(ratio_from_bytes=1 << 20)
    found = unpack(archive, "runs.zip", scratch(tmp_path), limits)  # no more is read than was told
    assert not found.files and "damaged" in found.left_out[0][1]
    assert not list(tmp_path.rglob("rank0.json"))


def test_too_many_members_are_refused(tmp_path: Path) -> None:
    archive = write_zip(tmp_path / "runs.zip", {f"{i}.json": b"" for i in range(4)})
    with pytest.raises(ArchiveError, match="more than 3 members"):
        unpack(archive, "runs.zip", scratch(tmp_path), ArchiveLimits(members=3))
    source = write_zip(tmp_path / "all.zip", {"a.json": TRACE, "runs.zip": archive.read_bytes()})
    found = collect_files(source, scratch(tmp_path / "scratch"), ArchiveLimits(members=5))
    assert found.left_out == [("runs.zip", "refused, the source holds more than 5 members")]


@pytest.mark.parametrize("name", ("a.zip", "z.zip"))
def test_a_refused_archive_leaves_its_room_to_the_others(name: str, tmp_path: Path) -> None:
    """Before them and behind them: what it took of the budget, and of the disk, is given back."""
    source = tmp_path / "source"
    source.mkdir()
    write_zip(source / "good.zip", {f"rank{i}.json": TRACE for i in range(3)})
    write_zip(source / name, {f"{i}.json": TRACE for i in range(9)})
    found = collect_files(source, scratch(tmp_path), ArchiveLimits(members=6))
    assert [file.shown for file in found.files] == [f"good/rank{i}.json" for i in range(3)]
    assert [left for left, _ in found.left_out] == [name]
    assert len([*(tmp_path / "scratch").rglob("*.json")]) == 3


def test_what_is_damaged_in_an_archive_lies_where_the_archive_does(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    archive = write_zip(source / "a.zip", {"rank0.json": TRACE, "rank1.json": b"y" * 1000})
    data = bytearray(archive.read_bytes())
    at = data.index(b"rank1.json") + len(b"rank1.json")
    data[at : at + 8] = b"\xff" * 8
    archive.write_bytes(bytes(data))
    found = collect_files(source, scratch(tmp_path))
    assert [left for left, _ in found.left_out] == ["a/rank1.json"]


def test_a_damaged_member_costs_itself(tmp_path: Path) -> None:
    archive = write_zip(tmp_path / "runs.zip", {"a/rank0.json": TRACE, "a/rank1.json": b"y" * 1000})
    data = bytearray(archive.read_bytes())
    at = data.index(b"a/rank1.json") + len(b"a/rank1.json")
    data[at : at + 8] = b"\xff" * 8
    archive.write_bytes(bytes(data))
    found = unpack(archive, "runs.zip", scratch(tmp_path))
    assert [file.shown for file in found.files] == ["a/rank0.json"]
    ((name, why),) = found.left_out
    assert name == "a/rank1.json" and why.startswith("damaged in the archive (")


def test_links_and_encrypted_members_are_left_out(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "runs.zip", "w") as archive:
        link = zipfile.ZipInfo("a/rank0.json")
        link.external_attr = (stat.S_IFLNK | 0o777) << 16
        archive.writestr(link, "/etc/passwd")
        archive.writestr("a/rank1.json", TRACE)
    data = bytearray((tmp_path / "runs.zip").read_bytes())
    for signature, offset in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        data[data.rindex(signature) + offset] |= 1
    (tmp_path / "runs.zip").write_bytes(bytes(data))
    with tarfile.open(tmp_path / "runs.tar", "w") as tar:
        entry = tarfile.TarInfo("a/rank0.json")
        entry.type, entry.linkname = tarfile.SYMTYPE, "/etc/passwd"
        tar.addfile(entry)
    assert unpack(tmp_path / "runs.zip", "runs.zip", scratch(tmp_path)).left_out == [
        ("a/rank0.json", "a symbolic link, not a file"),
        ("a/rank1.json", "encrypted"),
    ]
    (tmp_path / "other").mkdir()
    assert unpack(tmp_path / "runs.tar", "runs.tar", scratch(tmp_path / "other")).left_out == [
        ("a/rank0.json", "a link or a device, not a file")
    ]


@pytest.mark.parametrize("content", (b"no archive", b"\x1f\x8b\x08 cut", b"PK\x03\x04"))
@pytest.mark.parametrize("name", ("runs.zip", "runs.tar.gz"))
def test_what_is_no_archive_says_so(name: str, content: bytes, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ArchiveError, match=rf"^{name}: damaged, or not what its name says \(.*\)$"):
        unpack(tmp_path / name, name, scratch(tmp_path))


def test_of_a_truncated_tar_the_beginning_is_kept_and_the_loss_named(tmp_path: Path) -> None:
    import random

    noise = random.Random(0).randbytes
    archive = write_tar(tmp_path / "runs.tgz", {"a/rank0.json": noise(50_000), "a/rank1.json": noise(50_000)})
    archive.write_bytes(archive.read_bytes()[:70_000])
    found = unpack(archive, "runs.tgz", scratch(tmp_path))
    assert [file.shown for file in found.files] == ["a/rank0.json"]
    assert any("damaged" in why for _, why in found.left_out)


def test_archives_in_folders_and_archives_are_folders(tmp_path: Path) -> None:
    inner = write_zip(tmp_path / "inner.zip", {"rank0.json": TRACE}).read_bytes()
    deepest = write_zip(tmp_path / "deep.zip", {"inner.zip": inner}).read_bytes()
    source = tmp_path / "source"
    source.mkdir()
    write_zip(source / "ddp.zip", {"rank0.json": TRACE, "more/fsdp.zip": inner, "deep.zip": deepest})
    (source / "bad.zip").write_bytes(b"PK")
    (source / "gone.zip").symlink_to(tmp_path / "nothing")
    (source / "single.json").write_bytes(TRACE)
    found = collect_files(source, scratch(tmp_path))
    shown = ["ddp/more/fsdp/rank0.json", "ddp/rank0.json", "single.json"]
    assert [file.shown for file in found.files] == shown
    reasons = dict(found.left_out)
    assert reasons["ddp/deep/inner.zip"] == "an archive inside an archive inside an archive"
    assert reasons["gone.zip"] == "is not there, or no file"
    assert reasons["bad.zip"].startswith("damaged, or not what its name says")


def test_a_tar_of_zips_is_a_tar(tmp_path: Path) -> None:
    """The last of them ends as a ZIP of the whole file would."""
    names = ("ddp", "fsdp", "zero")
    inner = {
        f"{name}.zip": write_zip(tmp_path / f"{name}.zip", {"rank0.json": TRACE}).read_bytes()
        for name in names
    }
    found = collect_files(write_tar(tmp_path / "runs.tar", inner), scratch(tmp_path))
    assert [file.shown for file in found.files] == [f"{name}/rank0.json" for name in names]
    assert found.left_out == []


def test_what_stands_before_a_zip_is_no_matter(tmp_path: Path) -> None:
    archive = write_zip(tmp_path / "runs.zip", {"a/rank0.json": TRACE})
    archive.write_bytes(b"#!/bin/sh\n" + archive.read_bytes())
    found = unpack(archive, "runs.zip", scratch(tmp_path))
    assert [file.shown for file in found.files] == ["a/rank0.json"]


def test_a_full_disk_is_no_damage_of_the_archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = write_zip(tmp_path / "runs.zip", {"rank0.json": TRACE})

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(zipfile.ZipFile, "open", fail)
    with pytest.raises(OSError, match="No space left"):
        unpack(archive, "runs.zip", scratch(tmp_path))
