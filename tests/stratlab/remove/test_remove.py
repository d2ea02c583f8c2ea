"""The folder of a run goes, here and on the volume of a cluster; nothing else does. A process here plays the pod."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from stratlab import cli
from tests.stratlab.cluster.lab import Lab
from tests.stratlab.example_run import build_run_dir
from tests.stratlab.watch.objects import RUNS, build_run


@pytest.fixture
def results(tmp_path: Path) -> Path:
    for strategy in ("ddp", "fsdp"):
        build_run_dir(tmp_path / "results" / "demo", strategy, strategy)
    return tmp_path / "results"


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    def run(*arguments: str | Path) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["stratlab", "remove", *map(str, arguments)])
        with pytest.raises(SystemExit) as end:
            cli.main()
        shown = capsys.readouterr()
        return int(end.value.code or 0), shown.out + shown.err

    return run


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_run_here(call, results: Path) -> None:
    (results / "demo" / ".logs" / "ddp").mkdir(parents=True)
    assert call(results / "demo" / "ddp", "--yes")[0] == 0
    assert names(results / "demo") == [".logs", "fsdp"] and names(results / "demo" / ".logs") == []
    code, shown = call(results / "demo" / "fsdp", "--yes", "--json")
    assert code == 0 and json.loads(shown) == {"removed": str(results / "demo" / "fsdp")}


@pytest.mark.parametrize(
    ("folder", "words"),
    [
        ("demo", "not a run: nothing in it says"),
        ("demo/nope", "no such folder"),
        ("link", "a link; expected the folder of a run itself"),
        ("_prepared/pets", "not a run"),
    ],
)
def test_what_is_no_run_stays(call, results: Path, folder: str, words: str) -> None:
    (results / "link").symlink_to(results / "demo" / "ddp")
    (results / "_prepared" / "pets").mkdir(parents=True)
    (results / "_prepared" / "pets" / "DONE.json").write_text("{}")
    code, said = call(results / folder, "--yes")
    assert code == (2 if folder == "link" else 3) and words in said
    assert names(results / "demo") == ["ddp", "fsdp"]


def test_nothing_goes_unasked(call, results: Path) -> None:
    code, said = call(results / "demo" / "ddp")
    assert code == 2 and "give --yes" in said
    assert names(results / "demo") == ["ddp", "fsdp"]


def test_a_run_on_a_volume(call, lab: Lab, results: Path) -> None:
    code, said = call("demo/ddp", "--on-cluster", "--mount", results, "--yes")
    assert code == 0, said
    assert "demo/ddp: removed" in said and names(results / "demo") == ["fsdp"]
    code, said = call("demo/ddp", "--on-cluster", "--mount", results, "--yes")
    assert (
        code == 3
        and f"on the claim stratlab-results of namespace lab: {results}/demo/ddp: no such folder" in said
    )


def test_a_run_that_still_writes_stays(call, lab: Lab, results: Path) -> None:
    running = build_run("Running")
    running["metadata"]["annotations"]["stratlab/run-directory"] = "/results/demo/demo"
    lab[1].api.put(RUNS, running)
    code, said = call("demo/demo", "--on-cluster", "--mount", results, "--yes")
    assert code == 2 and "PyTorchJob demo is Running; first helm -n lab uninstall demo" in said
    assert lab[1].created == []


def test_a_path_is_no_name_on_a_cluster(call, lab: Lab) -> None:
    for wrong in ("ddp", "demo/../x", "/results/demo/ddp", "_prepared/pets"):
        code, said = call(wrong, "--on-cluster", "--yes")
        assert code == 2 and "give COMPARISON/RUN" in said
