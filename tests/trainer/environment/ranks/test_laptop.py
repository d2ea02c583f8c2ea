"""`python -m trainer.environment` on one machine: two processes; each lack alone: slow/, and test_judging.py."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.codes import find_codes
from tests.programs import find_python
from tests.trainer.environment.planted import KILLED, plant_in_ranks

ROOT = Path(__file__).parents[4]
SUBJECTS = [
    *("ranks", "versions", "devices", "shared memory", "results volume", "shared files", "clock"),
    "all-reduce",
]


def check(
    results: Path,
    *options: str,
    prefix: tuple[str, ...] = (),
    python: str = "",
    processes: int = 2,
    **env: str,
) -> tuple[int, dict[str, Any]]:
    """The exit code and what --json has printed."""
    words = ["-m", "trainer.environment", "--results", str(results), "--processes", str(processes), "--json"]
    command, env = [*prefix, python or find_python(), *words, *options], without_settings(**env)
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120)
    assert done.stdout.startswith("{"), done.stdout[-2000:] + done.stderr[-3000:]
    return done.returncode, json.loads(done.stdout)


def without_settings(**env: str) -> dict[str, str]:
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
    return {**kept, "OMP_NUM_THREADS": "1", "HOSTNAME": "laptop", **env}


def wrong(said: dict[str, Any]) -> list[tuple[str, str]]:
    return [(each["subject"], each["seen"]) for each in said["findings"] if each["state"] != "ok"]


def only(said: dict[str, Any]) -> tuple[str, str]:
    (named,) = wrong(said)
    return named


def test_a_healthy_machine_lacks_nothing(tmp_path: Path) -> None:
    code, said = check(tmp_path / "new")
    assert (code, wrong(said)) == (0, [])
    assert [each["subject"] for each in said["findings"]] == SUBJECTS
    rows = said["ranks"]["0"]["all-reduce"]["all"]
    assert [row["mib"] for row in rows] == [1 / 16, 1, 16] and all(row["gb_per_s"] > 0 for row in rows)
    kept = json.loads((tmp_path / "new" / "_environment" / "check.json").read_text())
    assert kept["findings"] == said["findings"] and kept["schema_version"] == 1
    assert [path.name for path in (tmp_path / "new" / "_environment").iterdir()] == ["check.json"], "swept"


def test_the_table_of_one_process_has_what_to_do(tmp_path: Path) -> None:
    """As the documents have it, from a folder of one's own, where the results lie."""
    command = [find_python(), "-m", "trainer.environment", "--accelerator", "nvidia.com/gpu"]
    env = without_settings(PYTHONPATH=str(ROOT))
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 1, done.stderr
    (row,) = [line for line in done.stdout.splitlines() if line.startswith("problem ")]
    assert row.split()[1] == "devices" and " -> " in done.stdout and len(find_codes(row)) == 1
    assert (tmp_path / "results" / "runs" / "_environment").is_dir()
    wrong_setting = [*command[:3], "--results", str(tmp_path), "--least-gb-per-s", "fast"]
    done = subprocess.run(wrong_setting, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and "--least-gb-per-s='fast'" in done.stderr, done.stderr


def test_a_rank_that_dies_is_named_and_not_the_one_that_is_ended_with_it(tmp_path: Path) -> None:
    planted = plant_in_ranks(tmp_path / "site", "1", KILLED)
    code, said = check(tmp_path, python=sys.executable, **planted)
    subject, seen = only(said)
    assert (code, subject) == (1, "ranks") and "rank 1 " in seen and "rank 0 " not in seen
