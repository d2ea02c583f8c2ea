import io
import stat
import tarfile
import zipfile
from pathlib import Path

import pytest

from stratlab.traces import archives
from stratlab.traces.archives import (
    ARCHIVE_LIMITS,
    ArchiveError,
    ArchiveLimits,
    Budget,
    Unpacked,
    collect_files,
)
from tests.codes import find_codes

TRACE = b'{"traceEvents": []}'
DAMAGED = b"\xff" * 8


def write_zip(path: Path, members: dict[str, bytes]) -> Path:
    path.parent.mkdir(exist_ok=True)
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


WRITERS = {"runs.zip": write_zip, "runs.tar": write_tar, "runs.tgz": write_tar}


def unpack(archive: Path, limits: ArchiveLimits = ARCHIVE_LIMITS) -> Unpacked:
    target = archive.parent / f"scratch-{archive.name}"
    target.mkdir()
    return archives.unpack(archive, archive.name, target, Budget(archive.stat().st_size, limits))


def collect(source: Path, scratch: Path, limits: ArchiveLimits = ARCHIVE_LIMITS) -> Unpacked:
    scratch.mkdir()
    return collect_files(source, scratch, limits)


def shown(found: Unpacked) -> list[str]:
    return [file.shown for file in found.files]


def left_out(found: Unpacked) -> dict[str, list[str]]:
    return {name: find_codes(why) for name, why in found.left_out}


@pytest.mark.parametrize("name", WRITERS)
def test_what_may_be_a_trace_is_unpacked_and_nothing_else(name, tmp_path):
    members = {"a/rank0.json": TRACE, "a/rank1.json.gz": b"x", "a/note.txt": b"", ".hidden/rank0.json": b""}
    members |= {"__MACOSX/a/._rank0.json": b"", "./b\\rank0.JSON": TRACE}
    found = unpack(WRITERS[name](tmp_path / name, members))
    assert shown(found) == ["a/rank0.json", "a/rank1.json.gz", "b/rank0.JSON"]
    assert found.files[0].path.read_bytes() == TRACE and found.files[0].path.name == "rank0.json"
    assert left_out(found) == {"a/note.txt": ["SL-file-ending"]}
    assert not list(tmp_path.rglob("note.txt"))


@pytest.mark.parametrize("name", ("runs.zip", "runs.tar"))
def test_a_path_that_points_outside_refuses_the_archive(name, tmp_path):
    for i, member in enumerate(
        ("../rank0.json", "a/../../rank0.json", "/etc/a.json", "C:\\a.json", "a\\..\\a.json")
    ):
        (folder := tmp_path / str(i)).mkdir()
        with pytest.raises(ArchiveError) as refusal:
            unpack(WRITERS[name](folder / name, {"a/rank0.json": TRACE, member: TRACE}))
        assert find_codes(refusal.value) == ["SL-archive-outside"]
    assert not list(tmp_path.parent.glob("*.json")) and not list(tmp_path.glob("*.json"))


@pytest.mark.parametrize("name", ("runs.zip", "runs.tgz"))
def test_a_bomb_is_refused(name, tmp_path):
    archive = WRITERS[name](tmp_path / name, {"a/rank0.json": bytes(3 << 20)})
    with pytest.raises(ArchiveError) as refusal:
        unpack(archive, ArchiveLimits(ratio_from_bytes=1 << 20))
    assert find_codes(refusal.value) == ["SL-archive-bomb"] and "0.000977 GiB" in str(refusal.value)
    assert not list(tmp_path.rglob("rank0.json"))
    small = WRITERS[name](tmp_path / f"small-{name}", {"a/rank0.json": bytes(3 << 20)})
    assert unpack(small).files, "small ones may be so"


@pytest.mark.parametrize("packed", (False, True))
def test_bombs_beside_each_other_are_one_bomb(packed, tmp_path):
    sizes = {"a.zip": 3, "b.zip": 2, "c.zip": 2, "d.zip": 1}
    source = tmp_path / "source"
    for name, size in sizes.items():
        write_zip(source / name, {"rank0.json": bytes(size << 20)})
    if packed:
        source = write_zip(tmp_path / "all.zip", {name: (source / name).read_bytes() for name in sizes})
    found = collect(source, tmp_path / "scratch", ArchiveLimits(ratio=1, ratio_from_bytes=6_310_000))
    assert shown(found) == ["a/rank0.json", "b/rank0.json", "d/rank0.json"]
    assert left_out(found) == {"c.zip": ["SL-archive-bomb"]}


def test_a_damaged_member_costs_itself(tmp_path):
    archive = write_zip(tmp_path / "source" / "a.zip", {"rank0.json": TRACE, "rank1.json": b"y" * 1000})
    data = bytearray(archive.read_bytes())
    at = data.index(b"rank1.json") + len(b"rank1.json")
    data[at : at + 8] = DAMAGED
    archive.write_bytes(bytes(data))
    found = collect(archive.parent, tmp_path / "scratch")
    assert shown(found) == ["a/rank0.json"]
    assert left_out(found) == {"a/rank1.json": ["SL-archive-member-damaged"]}


def test_links_and_encrypted_members_are_left_out(tmp_path):
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
    in_zip = {"a/rank0.json": ["SL-archive-symlink"], "a/rank1.json": ["SL-archive-encrypted"]}
    assert left_out(unpack(tmp_path / "runs.zip")) == in_zip
    assert left_out(unpack(tmp_path / "runs.tar")) == {"a/rank0.json": ["SL-archive-link"]}


def test_of_a_truncated_tar_the_beginning_is_kept_and_the_loss_named(tmp_path):
    import random

    noise = random.Random(0).randbytes
    archive = write_tar(tmp_path / "runs.tgz", {"a/rank0.json": noise(50_000), "a/rank1.json": noise(50_000)})
    archive.write_bytes(archive.read_bytes()[:70_000])
    found = unpack(archive)
    assert shown(found) == ["a/rank0.json"]
    assert {"SL-archive-cut"} <= {code for codes in left_out(found).values() for code in codes}


def test_archives_in_folders_and_archives_are_folders(tmp_path):
    inner = write_zip(tmp_path / "inner.zip", {"rank0.json": TRACE}).read_bytes()
    deepest = write_zip(tmp_path / "deep.zip", {"inner.zip": inner}).read_bytes()
    source = tmp_path / "source"
    write_zip(source / "ddp.zip", {"rank0.json": TRACE, "more/fsdp.zip": inner, "deep.zip": deepest})
    (source / "bad.zip").write_bytes(b"PK")
    (source / "gone.zip").symlink_to(tmp_path / "nothing")
    (source / "single.json").write_bytes(TRACE)
    found = collect(source, tmp_path / "scratch")
    assert shown(found) == ["ddp/more/fsdp/rank0.json", "ddp/rank0.json", "single.json"]
    assert left_out(found) == {
        "bad.zip": ["SL-archive-damaged"],
        "gone.zip": ["SL-archive-missing"],
        "ddp/deep/inner.zip": ["SL-archive-nested"],
    }
