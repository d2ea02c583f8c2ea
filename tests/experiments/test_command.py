"""The command of the experiments, and what a small form may differ in."""

import copy
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from experiments import __main__ as command
from experiments import part_run
from experiments.catalogue import list_experiments
from experiments.differences import find_clusters, find_differences
from tests.codes import find_codes


def test_what_lies_in_a_folder_of_somebody_else_stays(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = tmp_path / "volume" / "data"
    kept.parent.mkdir()
    kept.write_text("theirs")
    assert command.main(["--out", str(tmp_path), "--keep", str(tmp_path / "kept"), "offload"]) == 2
    assert find_codes(capsys.readouterr().err) == ["SL-out-of-others"]
    assert kept.read_text() == "theirs"


def test_two_do_not_share_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with command._claim(tmp_path / "out"):
        assert (
            command.main(["--out", str(tmp_path / "out"), "--keep", str(tmp_path / "kept"), "offload"]) == 2
        )
    assert str(tmp_path / "out") in capsys.readouterr().err
    assert not (tmp_path / "out" / "volume").exists()
    with command._claim(tmp_path / "out"):
        pass  # the other one has ended


def test_a_misspelt_name_is_told_with_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["ofload", "zzz"]) == 2
    said = capsys.readouterr().err
    assert find_codes(said) == ["SL-experiment-unknown"] * 2 and "offload?" in said and "NAMES=zzz" in said


def test_a_signal_ends_what_was_started_too(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[subprocess.Popen[bytes]] = []

    class Interrupted(subprocess.Popen[bytes]):
        def wait(self, timeout: float | None = None) -> int:
            if not started:
                started.append(self)
                raise KeyboardInterrupt
            return super().wait(timeout)

    monkeypatch.setattr(subprocess, "Popen", Interrupted)
    with pytest.raises(KeyboardInterrupt):
        part_run._run([sys.executable, "-c", "import time; time.sleep(60)"])
    assert started[0].returncode == -signal.SIGTERM


def test_a_file_that_cannot_be_read_is_a_complaint_of_its_part(tmp_path: Path) -> None:
    part = list_experiments()[0].parts[0]
    (tmp_path / "small.yaml").write_text("run: [broken")
    broken = replace(part, small=tmp_path / "small.yaml")
    (complaint,) = part_run.run_part(broken, tmp_path / "out", tmp_path / "kept", 1).complaints
    assert "small.yaml" in complaint and not (tmp_path / "kept").exists()


def test_a_form_that_changes_while_it_runs_gives_no_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    part = list_experiments()[0].parts[0]
    small = tmp_path / "small.yaml"
    small.write_text(part.small.read_text())
    values = tmp_path.parent / "values.yaml"
    values.write_text((part.small.parents[1] / "values.yaml").read_text())
    monkeypatch.setattr(part_run, "ROOT", tmp_path)
    monkeypatch.setattr(part_run, "_fill", lambda part, out, runs: runs.mkdir(parents=True))
    monkeypatch.setattr(part_run, "find_complaints", lambda report, names: [])
    monkeypatch.setattr(
        part_run, "_run", lambda line: bool(values.write_text("run: {config: {lr: 7}}")) and 0
    )
    outcome = part_run.run_part(replace(part, small=small), tmp_path / "out", tmp_path / "kept", 1)
    assert find_codes(outcome.complaints) == ["SL-form-changed"]


def test_a_sweep_that_ends_without_a_report_is_told_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    part = list_experiments()[0].parts[0]
    monkeypatch.setattr(part_run, "_fill", lambda part, out, runs: runs.mkdir(parents=True))
    monkeypatch.setattr(part_run, "_run", lambda line: 2)
    outcome = part_run.run_part(part, tmp_path / "out", tmp_path / "kept", 1)
    assert find_codes(outcome.complaints) == ["SL-sweep-no-report"] and "exit code 2" in str(
        outcome.complaints
    )


FULL: dict[str, Any] = {
    "comparison": "a",
    "values": "../values.yaml",
    "set": {"run.nodes": 2, "run.config.epochs": 3, "run.config.lr": 0.1},
    "matrix": {
        "strategy": ["ddp", "zeropp"],
        "run.processesPerNode": [1, 8],
        "run.config.micro_batch_size": [16, 32, 64],
        "run.config.zeropp": ["hpz", "hpz,qgz"],
    },
    "exclude": [
        {"strategy": "ddp", "run.processesPerNode": 8},
        {"strategy": "ddp", "run.config.micro_batch_size": 64},
    ],
}


def smaller() -> dict[str, Any]:
    """All that the table allows."""
    small = copy.deepcopy(FULL)
    small["set"] |= {"run.nodes": 1, "run.config.epochs": 1}
    small["matrix"] |= {
        "run.processesPerNode": [1, 2],
        "run.config.micro_batch_size": [4],
        "run.config.zeropp": ["hpz"],
    }
    small["exclude"] = [{"strategy": "ddp", "run.processesPerNode": 2}]
    return small


def test_smaller_numbers_are_allowed_and_what_is_switched_off_in_both_forms() -> None:
    off = {"set": {"run.config.profile_steps": 0}}
    for full, small in ((FULL, FULL), (FULL, smaller()), (off, off)):
        assert find_differences(full, small) == []


@pytest.mark.parametrize(
    ("place", "value", "code"),
    [
        ("comparison", "b", "SL-form-differs"),
        ("values", "extra.yaml", "SL-form-other-file"),
        ("tune", {"steps": 3}, "SL-form-differs"),
        ("set run.config.lr", 0.01, "SL-form-differs"),
        ("set run.config.seed", 1, "SL-form-differs"),
        *(("set run.config.epochs", odd, "SL-form-not-smaller") for odd in (4, 0, -3, True, 0.5)),
        ("matrix strategy", ["ddp"], "SL-form-axis"),
        ("matrix run.processesPerNode", [1, 16], "SL-form-axis-not-smaller"),
        ("matrix run.config.micro_batch_size", [1, 2, 3, 4], "SL-form-axis-not-smaller"),
        ("matrix run.config.zeropp", ["hpz,qwz"], "SL-form-no-part"),
        ("matrix run.config.seed", [1], "SL-form-axes"),
        ("exclude", [], "SL-form-exclude"),
    ],
)
def test_every_other_key_is_refused(place: str, value: Any, code: str) -> None:
    small = smaller()
    node, *rest = place.split()
    if rest:
        small[node][rest[0]] = value
    else:
        small[node] = value
    found = find_differences(FULL, small)
    assert code in find_codes(found) and place.split()[-1] in str(found)


def test_a_key_that_the_small_form_lacks_is_a_difference() -> None:
    small = smaller()
    del small["set"]["run.nodes"]
    assert find_codes(find_differences(FULL, small)) == ["SL-form-differs"]


def test_the_file_of_a_cluster_is_the_full_forms_alone() -> None:
    full = FULL | {"values": ["../values.yaml", "../../../examples/cluster-a.yaml"]}
    assert find_differences(full, smaller()) == []
    assert find_clusters(full) == ["../../../examples/cluster-a.yaml"] and find_clusters(smaller()) == []
    assert find_differences(full | {"values": ["../../../examples/cluster-a.yaml"]}, smaller())


@pytest.mark.parametrize(("rows", "differences"), [(16, 0), (17, 1), (0, 1)])
def test_the_share_of_a_step_is_bounded_by_the_step(rows: int, differences: int) -> None:
    """Four samples of one GPU of many may be more on each of two processes."""
    full = copy.deepcopy(FULL)
    full["set"] |= {"run.config.global_batch_size": 16, "run.config.micro_batch_size": 4}
    small = copy.deepcopy(full)
    small["set"]["run.config.micro_batch_size"] = rows
    assert len(find_differences(full, small)) == differences
