"""One run as every starter starts it, and what must be equal of what it leaves."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stratlab.machine import free_port
from tests.run_directories import LOAD

ROOT = Path(__file__).parents[3]
CHART = ROOT / "charts/ddp"
OPTIONS = [
    *("--values", str(ROOT / "examples/digits.yaml"), "--values", str(ROOT / "examples/cpu.yaml")),
    *(
        "--set", "run.config.epochs=1", "--set", "run.config.warmup_steps=5", "--set",
        "run.config.profile_steps=3",
    ),
]  # fmt: skip
STRATLAB = Path(sys.executable).parent / "stratlab"
MEASURED = re.compile(
    r"_ms_|_per_s$|(^|_)time_s$|memory|host_peak|mfu_|comm_exposed_pct|straggler|alloc_retries|peak_|" + LOAD
)
"""Names in summary.json that are times, memory or a machine's."""
HOSTS = {"device_name"}


def environment(home: Path) -> dict[str, str]:
    """Of a user of the machine: nothing of a run is in it."""
    return {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}:/usr/sbin:/sbin", "HOME": str(home)}


def render(starter: str, results: Path, script: Path, *more: str) -> Path:
    """The script, written by the command as a user types it."""
    command = [
        STRATLAB, "render", CHART, "--for", starter, *OPTIONS, "--results", results, "--output", script,
        *more,
    ]  # fmt: skip
    done = subprocess.run(list(map(str, command)), cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return script


def run_shells(script: Path, env: Mapping[str, str]) -> None:
    """The script for torchrun, started in two shells as on two machines; both end well."""
    meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "PET_LOCAL_ADDR": "127.0.0.1"}
    shells = [
        subprocess.Popen(
            ["bash", script], env={**env, **meeting, "NODE_RANK": str(index)}, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True,
        )
        for index in range(2)
    ]  # fmt: skip
    told = [shell.communicate(timeout=240)[0] for shell in shells]
    assert [shell.returncode for shell in shells] == [0, 0], told


def read_summary(run_dir: Path) -> dict[str, Any]:
    summary = json.loads((run_dir / "summary.json").read_text())
    return {name: value for name, value in summary.items() if not MEASURED.search(name) and name not in HOSTS}


def read_losses(run_dir: Path) -> list[tuple[int, float, float]]:
    """(step, loss, gradient norm) of every step, to the last bit."""
    lines = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    return [(line["step"], line["loss"], line["grad_norm"]) for line in lines if line["kind"] == "train"]


def last_step(run_dir: Path) -> int:
    return (
        max((step for step, *_ in read_losses(run_dir)), default=0)
        if (run_dir / "metrics.jsonl").exists()
        else 0
    )


def assert_same(run_dir: Path, rehearsed: Path) -> None:
    """As the rehearsal's: numbers, losses to the last bit, and the files that are there."""
    assert (read_losses(run_dir), len(read_losses(run_dir))) == (read_losses(rehearsed), 20)
    assert read_summary(run_dir) == read_summary(rehearsed)
    ours, theirs = ({str(p.relative_to(d)) for p in d.rglob("*")} for d in (run_dir, rehearsed))
    assert ours - {"mlflow.json", "metrics.sent"} == theirs - {"mlflow.json", "metrics.sent"}
    codes = [
        json.loads(line).get("exit_code") for line in (run_dir / "attempts.jsonl").read_text().splitlines()
    ]
    assert codes == [None, 0]
