"""HTA's process never holds more than its limit, and what ended because of that says so."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from stratlab.analysis.hta.analyses import ANALYSES, Analysis, Scene
from stratlab.analysis.hta.bridge import HtaLimits, run_hta
from stratlab.analysis.hta.calls import run_analysis
from stratlab.analysis.hta.memory import find_memory_bytes
from tests.stratlab.simulated import team

MIB = 1 << 20


def run_limited(limit_bytes: int, code: str) -> subprocess.CompletedProcess[str]:
    head = f"from stratlab.analysis.hta.memory import apply_memory_limit; apply_memory_limit({limit_bytes}); "
    return subprocess.run([sys.executable, "-c", head + code], capture_output=True, text=True, timeout=60)


def test_limit_holds_for_the_process_and_its_children() -> None:
    fits, too_much = "len(bytes(50 << 20))", "len(bytes(300 << 20))"
    assert run_limited(200 * MIB, fits).returncode == 0
    assert "MemoryError" in run_limited(200 * MIB, too_much).stderr
    child = f"import subprocess, sys; sys.exit(subprocess.call([sys.executable, '-c', '{too_much}']))"
    assert "MemoryError" in run_limited(200 * MIB, child).stderr
    forked = f"import os; pid = os.fork(); pid or {too_much}; print(pid and os.wait()[1] >> 8)"
    assert run_limited(200 * MIB, forked).stdout == "1\n"


def test_limit_may_only_become_tighter() -> None:
    code = "apply_memory_limit(900 << 20); len(bytes(300 << 20))"
    assert "MemoryError" in run_limited(200 * MIB, code).stderr


def test_what_the_container_may_take(tmp_path: Path) -> None:
    machine = find_memory_bytes(tmp_path)
    assert machine > 100 * MIB
    (tmp_path / "memory.max").write_text("max\n")
    assert find_memory_bytes(tmp_path) == machine
    (tmp_path / "memory.max").write_text("1048576\n")
    assert find_memory_bytes(tmp_path) == MIB
    old = tmp_path / "old"
    (old / "memory").mkdir(parents=True)
    (old / "memory" / "memory.limit_in_bytes").write_text("9223372036854771712\n")  # none
    assert find_memory_bytes(old) == machine
    (old / "memory" / "memory.limit_in_bytes").write_text("2097152\n")
    assert find_memory_bytes(old) == 2 * MIB


@pytest.mark.parametrize(("limit_mib", "ranks"), [(20, 1), (150, 1), (150, 2)])
def test_too_little_memory_is_named(
    tmp_path: Path, limit_mib: int, ranks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Too little for its libraries, or for the traces: in its own process and in those that read the ranks."""
    monkeypatch.delenv(
        "OMP_NUM_THREADS", raising=False
    )  # threads' stacks count: with one of them 150 MiB can do
    scene = team.Scene(ranks=ranks, steps=20, layers=16)
    files = team.simulate(tmp_path / "traces", scene).files
    statuses = run_hta(files, True, 1, tmp_path, HtaLimits(memory_bytes=limit_mib * MIB))
    assert [s.analysis for s in statuses] == [a.name for a in ANALYSES]
    assert {s.status for s in statuses} == {"failed"}
    assert f"needs more than its {limit_mib / 1024:.3g} GiB of memory" in statuses[0].reason, statuses[0]


def test_limit_is_never_more_than_there_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = team.simulate(tmp_path / "traces", team.Scene(ranks=1)).files
    monkeypatch.setattr("stratlab.analysis.hta.bridge.find_memory_bytes", lambda: 20 * MIB)
    assert "0.0195 GiB" in run_hta(files, True, 1, tmp_path)[0].reason


def test_one_analysis_without_memory_does_not_stop_the_others(tmp_path: Path) -> None:
    def crash(scene: Scene) -> None:
        raise MemoryError("Unable to allocate 3.1 GiB")

    scene = Scene(hta=None, ranks=[0], has_gpu=True, names=[], scratch="", memory_bytes=2 << 30)
    outcome = run_analysis(Analysis("greedy", crash), scene, tmp_path)
    assert outcome["status"] == "failed"
    assert (
        outcome["reason"] == "needs more than its 2 GiB of memory (MemoryError: Unable to allocate 3.1 GiB)"
    )
