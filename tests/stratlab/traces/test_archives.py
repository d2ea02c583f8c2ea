"""Which file is used for which rank, and why another one is not."""

import io
import json
import os
import stat
import tarfile
import zipfile

import pytest

from stratlab.traces import archives
from stratlab.traces.archives import ARCHIVE_LIMITS, ArchiveLimits, Budget, collect_files
from stratlab.traces.discover import find_traces
from tests.codes import find_codes
from tests.stratlab.raised import raised
from tests.stratlab.simulated.small import build_gpu_trace, write_manifest

TRACE = b'{"traceEvents": []}'
DAMAGED = b"\xff" * 8


def write_zip(path, members):
    path.parent.mkdir(exist_ok=True)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return path


def write_tar(path, members):
    with tarfile.open(path, "w:gz" if path.name.endswith("gz") else "w") as archive:
        for name, content in members.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return path


WRITERS = {"runs.zip": write_zip, "runs.tar": write_tar, "runs.tgz": write_tar}


def unpack(archive, limits=ARCHIVE_LIMITS):
    target = archive.parent / f"scratch-{archive.name}"
    target.mkdir()
    return archives.unpack(archive, archive.name, target, Budget(archive.stat().st_size, limits))


def collect(source, scratch, limits=ARCHIVE_LIMITS):
    scratch.mkdir()
    return collect_files(source, scratch, limits)


def shown(found):
    return [file.shown for file in found.files]


def left_out(found):
    return {name: find_codes(why) for name, why in found.left_out}


@pytest.mark.parametrize("name", WRITERS)
def test_what_may_be_a_trace_is_unpacked_and_nothing_else(name, tmp_path):
    members = {"a/rank0.json": TRACE, "a/rank1.json.gz": b"x", "a/note.txt": b"", ".hidden/rank0.json": b""}
    members |= {"__MACOSX/a/._rank0.json": b"", "./b\\rank0.JSON": TRACE}
    found = unpack(WRITERS[name](tmp_path / name, members))
    assert shown(found) == ["a/rank0.json", "a/rank1.json.gz", "b/rank0.JSON"]
    assert found.files[0].path.read_bytes() == TRACE and found.files[0].path.name == "rank0.json"
    assert left_out(found) == {"a/note.txt": ["SL-file-ending"]} and not list(tmp_path.rglob("note.txt"))


@pytest.mark.parametrize("name", ("runs.zip", "runs.tar"))
def test_a_path_that_points_outside_refuses_the_archive(name, tmp_path):
    for i, member in enumerate(
        ("../rank0.json", "a/../../rank0.json", "/etc/a.json", "C:\\a.json", "a\\..\\a.json")
    ):
        (folder := tmp_path / str(i)).mkdir()
        assert find_codes(
            raised(unpack, WRITERS[name](folder / name, {"a/rank0.json": TRACE, member: TRACE}))
        ) == ["SL-archive-outside"]
    assert not list(tmp_path.parent.glob("*.json")) and not list(tmp_path.glob("*.json"))


@pytest.mark.parametrize("name", ("runs.zip", "runs.tgz"))
def test_a_bomb_is_refused(name, tmp_path):
    archive = WRITERS[name](tmp_path / name, {"a/rank0.json": bytes(3 << 20)})
    refusal = raised(unpack, archive, ArchiveLimits(ratio_from_bytes=1 << 20))
    assert find_codes(refusal) == ["SL-archive-bomb"] and "0.000977 GiB" in str(refusal)
    assert not list(tmp_path.rglob("rank0.json"))
    small = WRITERS[name](tmp_path / f"small-{name}", {"a/rank0.json": bytes(3 << 20)})
    assert unpack(small).files, "small ones may be so"


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


def write(folder, names):
    for name, rank in names.items():
        build_gpu_trace(rank, steps=1).write(folder / name)


def used(found):
    return {rank: path.name for rank, path in found.files.items()}


def said(found, action="skipped"):
    return {f.file: find_codes(f.reason) for f in found.findings if f.action == action}


def test_file_that_is_not_what_was_written_is_skipped(tmp_path):
    write(tmp_path, {f"rank{rank}_trace.json": rank for rank in range(4)} | {"rank4_trace.json": 0})
    write_manifest(tmp_path)
    shorter, other = tmp_path / "rank0_trace.json", tmp_path / "rank1_trace.json"
    shorter.write_bytes(shorter.read_bytes()[:-100])
    other.write_bytes(other.read_bytes().replace(b"adamw", b"sgdxx"))
    (tmp_path / "rank2_trace.json").unlink()
    found = find_traces(tmp_path, 5)
    assert used(found) == {3: "rank3_trace.json"}
    assert said(found) == {
        "rank0_trace.json": ["SL-manifest-size"],
        "rank1_trace.json": ["SL-manifest-sha256"],
        "rank2_trace.json": ["SL-manifest-file-missing"],
        "rank4_trace.json": ["SL-manifest-rank"],
    }


def test_every_unusable_file_is_named(tmp_path):
    write(tmp_path, {"rank0_trace.json": 0, "rank7_trace.json": 7, "none.json": None, "huge.json": 10**30})
    write(tmp_path, {".rank1_trace.tmp.json": 1, "negative.json": -1})
    (tmp_path / "empty.json").touch()
    (tmp_path / "rank1_trace.json.tmp").write_text("{")
    (tmp_path / "summary.json").write_text('{"loss": 1}')
    deep = "[" * 1_000_000 + "]" * 1_000_000
    (tmp_path / "deep.json").write_text(f'{{"x": {deep}, "traceEvents": []}}')
    (tmp_path / "head.json").write_text('{"x": 1, y: 2, "traceEvents": []}')
    heads = {"merged_trace.json.gz": {"mergedTrace": True}}
    heads |= {"clock.json": {"baseTimeNanoseconds": 10**40}}
    for number, rank in enumerate(("0", 1.5, True, [0])):
        heads[f"odd{number}.json"] = {"distributedInfo": {"rank": rank}}
    for name, head in heads.items():
        trace = build_gpu_trace(0, steps=1)
        trace.head |= head
        trace.write(tmp_path / name)
    (tmp_path / "rank1_trace.json.part").touch()
    (tmp_path / os.fsdecode(b"rank0\xff.json")).touch()
    (tmp_path / "notes.txt").write_text("not looked at")
    (tmp_path / "link.json").symlink_to(tmp_path / "rank0_trace.json")
    (tmp_path / "folder.json").mkdir()
    os.mkfifo(tmp_path / "pipe.json")  # does not block
    found = find_traces(tmp_path, 2)
    assert used(found) == {0: "rank0_trace.json"}
    assert said(found) == {
        **{name: ["SL-rank-outside"] for name in ("rank7_trace.json", "huge.json", "negative.json")},
        ".rank1_trace.tmp.json": ["SL-file-temporary"],
        "rank1_trace.json.tmp": ["SL-file-temporary"],
        "none.json": ["SL-rank-untold"],
        "empty.json": ["SL-file-empty"],
        "summary.json": ["SL-trace-no-events"],
        "deep.json": ["SL-trace-nested"],
        "head.json": ["SL-trace-head-not-json"],
        "merged_trace.json.gz": ["SL-trace-merged"],
        "clock.json": ["SL-trace-base-time"],
        **{f"odd{number}.json": ["SL-rank-no-number"] for number in range(4)},
        "link.json": ["SL-file-irregular"],
        "folder.json": ["SL-file-irregular"],
        "pipe.json": ["SL-file-irregular"],
        "rank1_trace.json.part": ["SL-trace-ending"],
        "rank0\\udcff.json": ["SL-name-no-text"],
    }


def test_complete_manifest_excludes_other_files(tmp_path):
    write(tmp_path, {"rank0_trace.json": 0})
    write_manifest(tmp_path)
    write(tmp_path, {"rank1_trace.json": 1})
    assert said(find_traces(tmp_path, 2)) == {"rank1_trace.json": ["SL-manifest-unlisted"]}
    content = json.loads((tmp_path / "manifest.json").read_text())
    write_manifest(tmp_path, complete=False, files=content["files"])
    found = find_traces(tmp_path, 2)
    assert used(found) == {0: "rank0_trace.json", 1: "rank1_trace.json"}
    assert said(found, "noted") == {"manifest.json": ["SL-manifest-incomplete"]}


@pytest.mark.parametrize("name", ["../secret.json", "/etc/passwd", ".", "", "rank0\0.json", "x" * 300])
def test_manifest_cannot_point_outside_or_at_an_impossible_name(tmp_path, name):
    write_manifest(tmp_path / "traces", files=[{"rank": 0, "file": name, "bytes": 1, "sha256": "0"}])
    outside = name in ("../secret.json", "/etc/passwd", ".")
    found = said(find_traces(tmp_path / "traces", 1))
    assert list(found) == [name] and (found[name] == ["SL-manifest-outside"]) == outside


MANIFESTS = {None: "SL-trace-file-missing", '{"complete": true, "files": []}': "SL-manifest-no-files"}
MANIFESTS |= dict.fromkeys(("", '{"files": 3}', '["rank0_trace.json"]', "[" * 500_000), "SL-trace-unreadable")


def test_without_a_usable_manifest_the_files_speak(tmp_path):
    write(tmp_path, {"rank0_trace.json": 0})
    for content, code in MANIFESTS.items():
        if content is not None:
            (tmp_path / "manifest.json").write_text(content)
        found = find_traces(tmp_path, 1)
        assert used(found) == {0: "rank0_trace.json"}
        assert said(found, "noted") == {"manifest.json": [code]}, content
