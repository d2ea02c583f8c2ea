"""A run comes from the volume, whole or not at all. A process here plays the pod."""

import json
import os

import pytest

from stratlab.verify import verify_run
from tests.codes import find_codes
from tests.stratlab.example_run import build_run_dir


@pytest.fixture
def volume(tmp_path):
    for strategy in ("ddp", "fsdp"):
        folder = build_run_dir(tmp_path / "volume" / "demo", strategy, strategy)
        (folder / "mlflow.json").write_text('{"tracking_uri": "http://127.0.0.1:9", "run_id": "0"}')
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
def call(stratlab, volume, lab):
    def run(*arguments):
        code, out, err = stratlab("fetch", *arguments, "--mount", volume)
        return code, out + err

    return run


def read_files(folder, *left_out):
    paths = (path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
    found = {str(path.relative_to(folder)): path.read_bytes() for path in paths}
    return {name: content for name, content in found.items() if not name.startswith((".", *left_out))}


def test_a_run_comes_without_what_is_heavy(call, volume, tmp_path):
    code, said = call("demo/ddp", "--output", tmp_path / "here", "--json")
    told = json.loads(said[said.index("{") :])
    fetched = tmp_path / "here" / "demo" / "ddp"
    assert code == 0 and told["folder"] == str(fetched) and told["files"] > 5
    assert told["reports"] == [f"{fetched}/analysis/report.html"]
    assert told["not_fetched"] == ["traces", "checkpoints", "models"]
    assert read_files(fetched) == read_files(volume / "demo" / "ddp", "traces/", "checkpoints/", "model/")
    assert not (fetched / "link").exists() and not (fetched / ".half").exists()
    assert [path.name for path in fetched.parent.iterdir()] == ["ddp"]
    checks = {check.name: check.state for check in verify_run(fetched, None, with_report=False)}
    skipped = {name for name, state in checks.items() if state == "skipped"}
    assert skipped == {"traces", "mlflow", "report"}, "its server is known to the cluster alone"
    assert {*checks.values()} == {"ok", "skipped"}, "a copy without traces is whole"


def test_what_is_heavy_comes_when_named(call, volume, tmp_path):
    code, said = call("demo", "--with", "traces, checkpoints,models", "--output", tmp_path)
    assert code == 0 and f"{tmp_path}/demo/ddp/analysis/report.html" in said, said
    for run in ("ddp", "fsdp"):
        assert read_files(tmp_path / "demo" / run) == read_files(volume / "demo" / run)


def test_what_is_there_stays_unless_it_may_go(call, tmp_path, lab):
    target = build_run_dir(tmp_path / "demo", "ddp", "ddp")
    (target / "summary.json").unlink()
    code, said = call("demo/ddp", "--output", tmp_path)
    assert code == 2 and find_codes(said) == ["SL-fetched-already"]
    code, said = call("demo/ddp", "--output", tmp_path, "--replace")
    assert code == 0 and (target / "summary.json").is_file(), said
    lab[1].created.clear()
    theirs = tmp_path / "other" / "demo" / "ddp"
    theirs.mkdir(parents=True)
    (theirs / "thesis.tex").write_text("years")
    code, said = call("demo/ddp", "--output", tmp_path / "other", "--replace")
    assert code == 2 and find_codes(said) == ["SL-fetch-over-other"]
    assert (theirs / "thesis.tex").read_text() == "years" and lab[1].created == []


@pytest.mark.parametrize(
    ("arguments", "expected", "error"),
    [
        (("demo/nope",), 3, "SL-file-not-there"),
        (("../demo",), 2, "SL-fetch-name"),
        (("demo/ddp", "--with", "everything"), 2, "SL-fetch-with"),
    ],
)
def test_what_cannot_be_is_said(call, tmp_path, arguments, expected, error):
    code, said = call(*arguments, "--output", tmp_path / "here")
    assert code == expected and find_codes(said) == [error]
    assert not (tmp_path / "here" / "demo" / "nope").exists()
