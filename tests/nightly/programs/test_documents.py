"""The commands of docs/python-api.md, docs/local.md and docs/foreign.md, as a user types them; planted causes."""

import gzip
import json
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.documents.commands import ROOT, read_commands, split
from tests.stratlab.compare.longer.test_planted_causes import PLANTS, check
from tests.stratlab.real_traces import SINGLE, TEAM, unpack
from tests.stratlab.simulated.small import build_gpu_trace


@pytest.mark.parametrize("cause", PLANTS)
def test_every_planted_cause_of_20_teams_is_found(cause: str, tmp_path: Path) -> None:
    check(cause, 20, tmp_path)


(CODE,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs/python-api.md").read_text(), re.DOTALL)


def test_the_page_as_a_file(tmp_path: Path) -> None:
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    (tmp_path / "try.py").write_text(CODE)
    env = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    command = [sys.executable, "try.py"]
    env |= {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr[-2000:]
    said = done.stdout.splitlines()
    assert said[0].startswith("finished ") and said[-1] == "12"
    assert [line.split()[:2] for line in said[1:-4]] == [["ddp", "ddp"], ["fsdp", "fsdp"]]
    assert re.fullmatch(r"traces [1-9]\d*", said[-4]) and said[-3] == "3"
    assert "strategy='dpp'" in said[-2]
    assert (tmp_path / "python-report/report.html").is_file()


COMMANDS = sorted(
    command
    for command, files in read_commands().items()
    if command.startswith("python -m trainer --config ")
    and not files & {"docs/faults.md", "examples/faults.yaml", "docs/python-api.md"}
)


assert len(COMMANDS) >= 3


@pytest.mark.parametrize("command", COMMANDS)
def test_the_command_trains(command: str, tmp_path: Path) -> None:
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    arguments = split(command)[1:]
    env = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
    env |= {"OMP_NUM_THREADS": "1"}
    words = [sys.executable, *arguments]
    done = subprocess.run(words, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr[-2000:]
    (summary,) = (tmp_path / "results/runs").glob("*/*/summary.json")
    strategy = next((word[9:] for word in arguments if word.startswith("strategy=")), "ddp")
    assert json.loads(summary.read_text())["strategy"] == strategy
    assert str(summary.parent.relative_to(tmp_path)) in done.stderr


FOREIGN = [command for command, files in read_commands().items() if "docs/foreign.md" in files]
FOLDERS = {  # as somebody may have sorted them
    "in_flight_a100_rank0": "a100/in flight",
    "nccl_a100": "a100/nccl",
    "event_sync_a100": "a100/small/events",
    "triton_a100": "a100/small/triton",
    "resnet_checkpointing_mi300x": "amd/mi300x",
    "mi250_rocm62": "amd/mi250",
    "resnet50_2021_v100": "v100/2021",
}
DEVICES = {
    "a100-in_flight": "NVIDIA A100-SXM4-80GB", "a100-nccl": "NVIDIA A100-PG509-200",
    "a100-small-events": "NVIDIA A100-PG509-200", "a100-small-triton": "NVIDIA A100-PG509-200",
    "amd-mi250": "AMD Radeon Graphics", "amd-mi300x": "AMD Instinct MI300X", "v100-2021": None,
    "v100-dlrm": "Tesla V100-SXM2-32GB",
}  # fmt: skip
MI300X_MS = (18.980 + 18.983 + 18.554) / 3  # by hand


def run(command: str, folder: Path, code: int = 0) -> subprocess.CompletedProcess[str]:
    words = [Path(sys.executable).parent / "stratlab", *split(command)[1:]]
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True)
    assert done.returncode == code and "Traceback" not in done.stderr, done.stderr
    return done


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """traces.zip: all of tests/data/traces, some packed, a folder each, and what else lies in such folders."""
    folder = tmp_path_factory.mktemp("real")
    assert {*FOLDERS, TEAM} == {*SINGLE, TEAM}
    with zipfile.ZipFile(folder / "traces.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for name, place in FOLDERS.items():
            (path,) = unpack(name, folder / "unpacked").values()
            archive.writestr(f"{place}/{name}.json.gz", gzip.compress(path.read_bytes(), 1))
        for rank, path in unpack(TEAM, folder / "unpacked" / TEAM).items():
            archive.write(path, f"v100/dlrm/worker{rank}_step_12.{1694128201545 + rank}.pt.trace.json")
        archive.writestr("v100/README.md", "where they are from")
        archive.writestr("settings.json", '{"lr": 0.1}')
    return folder


def test_real_traces_are_analysed_and_compared(real: Path) -> None:
    said = run("stratlab analyze traces.zip", real).stdout
    assert "v100/README.md, settings.json" in said and "stratlab compare traces-analysis" in said
    files = (real / "traces-analysis").glob("*/analysis/report.json")
    reports = {path.parents[1].name: json.loads(path.read_text()) for path in files}
    assert {name: report["device"] for name, report in reports.items()} == DEVICES
    assert {report["source"] for report in reports.values()} == {"gpu"}
    assert reports["amd-mi300x"]["mean"]["step_ms"] == pytest.approx(MI300X_MS, abs=5e-4)
    assert reports["v100-dlrm"]["mean"]["ranks"] == 8
    assert any("1-15 of 16" in row["reason"] for row in reports["a100-in_flight"]["quality"])

    run("stratlab compare traces-analysis", real)
    report = json.loads((real / "traces-analysis" / "report" / "report.json").read_text())
    assert [row["run"] for row in report["runs"]] == sorted(DEVICES)
    assert report["fairness"]["verdict"] == "not comparable"
    pairs, others = (report["attribution"][name] for name in ("pairs", "not_attributed"))
    assert len(pairs) + len(others) == len(DEVICES) - 1
    for pair in pairs:
        parts = sum(part["ms"] for part in pair["parts"])
        assert parts == pytest.approx(pair["run_ms"] - pair["baseline_ms"])


def test_ranks_that_only_a_pattern_finds(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "traces.zip", "w") as archive:
        for rank in (0, 1):
            trace = build_gpu_trace(None)
            trace.label("only here", 5000 + rank, 5001)
            archive.writestr(f"a/trace_gpu{rank}.json", trace.text())
    (command,) = [command for command in FOREIGN if "--rank-pattern" in command]
    assert "3 steps on 2 ranks" in run(command, tmp_path).stdout
    traces = json.loads((tmp_path / "by-gpu" / "a" / "foreign.json").read_text())["traces"]
    assert [trace["rank_from"] for trace in traces] == ["pattern", "pattern"]


def test_the_exit_code_tells_what_cannot_be_analysed(tmp_path: Path) -> None:
    build_gpu_trace(0, steps=1).write(tmp_path / "in" / "good" / "rank0.json")
    (tmp_path / "in" / "bad").mkdir()
    (tmp_path / "in" / "bad" / "rank0.json").write_text("")
    assert "experiment bad" in run("stratlab analyze in", tmp_path, 3).stderr
    assert (tmp_path / "in-analysis" / "good" / "analysis" / "report.html").is_file()
    with zipfile.ZipFile(tmp_path / "bad.zip", "w") as archive:
        archive.writestr("../rank0.json", "{}")
    run("stratlab analyze bad.zip", tmp_path, 3)
    assert not (tmp_path / "bad-analysis").exists()
    run("stratlab analyze in/good --rank-pattern rank", tmp_path, 2)
    (tmp_path / "run" / "traces").mkdir(parents=True)
    build_gpu_trace(0, steps=1).write(tmp_path / "run" / "traces" / "rank0_trace.json")
    assert "run/traces" in run("stratlab analyze run --output x", tmp_path, 2).stderr
