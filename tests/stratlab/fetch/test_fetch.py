"""A run comes from the volume, whole or not at all. A process here plays the pod."""

from __future__ import annotations

import io
import json
import os
import shutil
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from stratlab import cli
from stratlab.cluster import ClusterError
from stratlab.cluster.place import Place
from stratlab.fetch.folder_pod import read_folder
from stratlab.fetch.unpacking import unpack
from stratlab.user_error import UserError
from stratlab.verify.checks import verify_run
from tests.stratlab.cluster.lab import Lab
from tests.stratlab.example_run import build_run_dir, write_json


@pytest.fixture
def volume(tmp_path: Path) -> Path:
    for strategy in ("ddp", "fsdp"):
        folder = build_run_dir(tmp_path / "volume" / "demo", strategy, strategy)
        (folder / "checkpoints" / "step_00000060").mkdir(parents=True)
        (folder / "checkpoints" / "step_00000060" / "COMMIT").write_text("")
        (folder / "checkpoints" / "step_00000060" / ".metadata").write_text("without it a checkpoint is void")
        (folder / "model").mkdir()
        (folder / "model" / "model.safetensors").write_bytes(os.urandom(100_000))
        (folder / ".half").write_text("x")
        (folder / "analysis" / "report.html").write_text("<p>report</p>")
        (folder / "link").symlink_to("/etc/passwd")
    return tmp_path / "volume"


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], volume: Path, lab: Lab):
    def run(*arguments: str | Path) -> tuple[int, str]:
        command = ["stratlab", "fetch", *map(str, arguments), "--mount", str(volume)]
        monkeypatch.setattr(sys, "argv", command)
        with pytest.raises(SystemExit) as end:
            cli.main()
        shown = capsys.readouterr()
        return int(end.value.code or 0), shown.out + shown.err

    return run


def read_files(folder: Path, *left_out: str) -> dict[str, bytes]:
    paths = (path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
    found = {str(path.relative_to(folder)): path.read_bytes() for path in paths}
    return {name: content for name, content in found.items() if not name.startswith((".", *left_out))}


def test_a_run_comes_without_what_is_heavy(call, volume: Path, tmp_path: Path) -> None:
    code, said = call("demo/ddp", "--output", tmp_path / "here")
    assert code == 0, said
    fetched = tmp_path / "here" / "demo" / "ddp"
    assert read_files(fetched) == read_files(volume / "demo" / "ddp", "traces/", "checkpoints/", "model/")
    assert not (fetched / "link").exists() and not (fetched / ".half").exists()
    assert "not fetched: traces, checkpoints, models (--with traces,checkpoints,models)" in said
    assert f"report: {fetched}/analysis/report.html" in said
    assert [path.name for path in fetched.parent.iterdir()] == ["ddp"]


def test_a_copy_without_traces_is_whole(call, volume: Path, tmp_path: Path) -> None:
    for run in ("ddp", "fsdp"):  # its server is known to the cluster alone
        write_json(
            volume / "demo" / run / "mlflow.json", {"tracking_uri": "http://127.0.0.1:9", "run_id": "0" * 32}
        )
    assert call("demo", "--output", tmp_path)[0] == 0
    for run in ("ddp", "fsdp"):
        checks = {check.name: check for check in verify_run(tmp_path / "demo" / run, None, with_report=False)}
        states = {name: check.state for name, check in checks.items()}
        assert states.pop("traces") == states.pop("mlflow") == states.pop("report") == "skipped"
        assert {*states.values()} == {"ok"} and "--with traces" in checks["traces"].text
    assert call("demo", "--with", "traces", "--output", tmp_path, "--replace")[0] == 0
    shutil.rmtree(tmp_path / "demo" / "ddp" / "traces")
    checks = {check.name: check for check in verify_run(tmp_path / "demo" / "ddp", None, with_report=False)}
    assert checks["traces"].state == "failed", "they were fetched, and are gone"


def test_what_came_is_told_as_json(call, tmp_path: Path) -> None:
    code, said = call("demo/ddp", "--output", tmp_path / "here", "--json")
    told = json.loads(said[said.index("{") :])
    assert code == 0 and told["folder"] == str(tmp_path / "here" / "demo" / "ddp")
    assert told["reports"] == [f"{told['folder']}/analysis/report.html"]
    assert told["not_fetched"] == ["traces", "checkpoints", "models"] and told["files"] > 5


def test_what_is_heavy_comes_when_named(call, volume: Path, tmp_path: Path) -> None:
    code, said = call("demo", "--with", "traces, checkpoints,models", "--output", tmp_path)
    assert code == 0 and "not fetched" not in said, said
    for run in ("ddp", "fsdp"):
        assert read_files(tmp_path / "demo" / run) == read_files(volume / "demo" / run)


def test_what_is_there_stays_unless_it_may_go(call, tmp_path: Path) -> None:
    assert call("demo/ddp", "--output", tmp_path)[0] == 0
    (tmp_path / "demo" / "ddp" / "summary.json").unlink()
    code, said = call("demo/ddp", "--output", tmp_path)
    assert code == 2 and "is there already; --replace fetches it again" in said
    code, said = call("demo/ddp", "--output", tmp_path, "--replace")
    assert code == 0 and (tmp_path / "demo" / "ddp" / "summary.json").is_file(), said


def test_a_folder_of_somebody_else_is_never_replaced(call, tmp_path: Path, lab: Lab) -> None:
    (tmp_path / "demo" / "ddp").mkdir(parents=True)
    (tmp_path / "demo" / "ddp" / "thesis.tex").write_text("years")
    code, said = call("demo/ddp", "--output", tmp_path, "--replace")
    assert code == 2 and "is no run and no comparison" in said
    assert (tmp_path / "demo" / "ddp" / "thesis.tex").read_text() == "years" and lab[1].created == []


@pytest.mark.parametrize(
    ("arguments", "expected", "words"),
    [
        (("demo/nope",), 3, "demo/nope: not there, on the claim stratlab-results"),
        (("../demo",), 2, "give COMPARISON or COMPARISON/RUN"),
        (
            ("demo/ddp", "--with", "everything"),
            2,
            "--with everything: allowed are traces, checkpoints, models",
        ),
    ],
)
def test_what_cannot_be_is_said(
    call, tmp_path: Path, arguments: tuple[str, ...], expected: int, words: str
) -> None:
    code, said = call(*arguments, "--output", tmp_path / "here")
    assert code == expected and words in said
    assert not (tmp_path / "here" / "demo" / "nope").exists()


def test_links_are_not_even_sent(lab: Lab, volume: Path) -> None:
    place = Place("stratlab-results", str(volume), "lab:1")
    pieces = read_folder(lab[0], "lab", place, "demo/ddp", ["traces"], lambda sentence: None)
    with tarfile.open(fileobj=io.BytesIO(b"".join(pieces))) as archive:
        names = {member.name for member in archive}
    assert "ddp/config.json" in names and "ddp/checkpoints/step_00000060/COMMIT" in names
    hidden = {name for name in names if "/." in name}
    assert hidden == {"ddp/checkpoints/step_00000060/.metadata"}
    assert not {name for name in names if "link" in name or "traces" in name}


def test_a_log_that_is_cut_leaves_what_was_there(volume: Path, tmp_path: Path) -> None:
    def cut() -> Iterator[bytes]:
        yield b"half of an archive"
        raise ClusterError("the log was cut")

    target = build_run_dir(tmp_path / "here" / "demo", "ddp", "ddp")
    before = read_files(target)
    with pytest.raises(ClusterError, match="cut"):
        unpack(cut(), target)
    assert read_files(target) == before and [path.name for path in target.parent.iterdir()] == ["ddp"]


def test_a_place_below_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UserError):
        unpack(iter([b"x"]), tmp_path / "file" / "demo")
