"""`python -m trainer.environment` on one machine: two processes, each lack planted alone."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.programs import find_python
from tests.trainer.environment.planted import HANGS, KILLED, SHIFTED, mounted, plant_in_ranks, slow_loopback

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
    done = subprocess.run(
        [*prefix, python or find_python(), *words, *options],
        env=without_settings(**env),
        capture_output=True,
        text=True,
        timeout=120,
    )
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


def test_one_process_has_nothing_to_send(tmp_path: Path) -> None:
    code, said = check(tmp_path, processes=1)
    assert (code, wrong(said)) == (0, [])
    assert "one rank, nothing to send" in said["findings"][-1]["seen"]


def test_the_documents_command(tmp_path: Path) -> None:
    """As it stands there, from a folder of one's own; the results lie in it."""
    done = subprocess.run(
        [find_python(), "-m", "trainer.environment"],
        cwd=tmp_path,
        env=without_settings(PYTHONPATH=str(ROOT)),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert (
        done.stdout.endswith("nothing is missing\n")
        and (tmp_path / "results" / "runs" / "_environment").is_dir()
    )


def test_the_table_has_what_to_do(tmp_path: Path) -> None:
    """As a person sees it, with progress beside it."""
    words = ["-m", "trainer.environment", "--results", str(tmp_path), "--accelerator", "nvidia.com/gpu"]
    done = subprocess.run([find_python(), *words], capture_output=True, text=True, timeout=120)
    assert done.returncode == 1, done.stderr
    assert "problem  devices" in done.stdout and "-> look at the node" in done.stdout
    assert done.stdout.endswith("1 problem, 0 warnings\n") and "all-reduce ..." in done.stderr


def test_no_shared_memory(tmp_path: Path) -> None:
    with mounted(Path("/dev/shm"), "1m") as prefix:
        code, said = check(tmp_path, prefix=prefix)
    subject, seen = only(said)
    assert (code, subject) == (1, "shared memory") and "No space left on device" in seen


def test_little_shared_memory(tmp_path: Path) -> None:
    """As a container has it without a volume there."""
    with mounted(Path("/dev/shm"), "64m") as prefix:
        code, said = check(tmp_path, prefix=prefix)
    assert (code, *only(said)) == (
        *(1, "shared memory"),
        "pod laptop: 64 of 64 MiB free in /dev/shm, 205 are needed for 2 rank(s)",
    )


@pytest.mark.parametrize("size", ["4k", "8m"])
def test_a_full_volume(tmp_path: Path, size: str) -> None:
    """With room for a folder and with none."""
    with mounted(tmp_path, size) as prefix:
        code, said = check(tmp_path, prefix=prefix)
    subject, seen = only(said)
    assert (code, subject) == (1, "results volume") and "cannot be written: No space left on device" in seen


def test_a_slow_link(tmp_path: Path) -> None:
    with slow_loopback(f"stratlab-check-{os.getpid()}") as prefix:
        code, said = check(tmp_path, prefix=prefix, python=sys.executable)
    subject, seen = only(said)
    assert (code, subject) == (
        1,
        "all-reduce",
    ) and "expected at least 0.02 GB/s (processes of one machine)" in seen
    assert "1 MiB" in seen and "16 MiB" not in seen, "what would take a minute is left out"


def test_a_link_slower_than_stated(tmp_path: Path) -> None:
    code, said = check(tmp_path, "--least-gb-per-s", "99999")
    subject, seen = only(said)
    assert (code, subject) == (1, "all-reduce") and seen.endswith("expected at least 1e+05 GB/s (as stated)")


def test_a_wrong_clock(tmp_path: Path) -> None:
    """Both ranks have it, the files of the volume have not. What Python calls the time is shifted, no clock is set."""
    planted = plant_in_ranks(tmp_path / "site", "01", SHIFTED.format(seconds=-3600))
    code, said = check(tmp_path, python=sys.executable, **planted)
    subject, seen = only(said)
    assert (code, subject) == (1, "clock") and seen.endswith(
        "its clock is 3600.0 s behind the results volume's"
    )


def test_a_missing_device(tmp_path: Path) -> None:
    code, said = check(tmp_path, "--accelerator", "nvidia.com/gpu")
    subject, seen = only(said)
    assert (code, subject) == (1, "devices") and "asked for 2 in this pod, one per process" in seen


def test_a_rank_that_dies_is_named_and_not_the_one_that_is_ended_with_it(tmp_path: Path) -> None:
    planted = plant_in_ranks(tmp_path / "site", "1", KILLED)
    code, said = check(tmp_path, python=sys.executable, **planted)
    subject, seen = only(said)
    assert (code, subject) == (1, "ranks") and seen.startswith("rank 1 said nothing, killed"), seen


def test_a_setting_that_is_none(tmp_path: Path) -> None:
    words = ["-m", "trainer.environment", "--results", str(tmp_path), "--least-gb-per-s", "fast"]
    done = subprocess.run([find_python(), *words], capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and "--least-gb-per-s='fast'" in done.stderr, done.stderr


def test_ctrl_c_ends_it(tmp_path: Path) -> None:
    planted = plant_in_ranks(tmp_path / "site", "01", HANGS)
    words = [sys.executable, "-m", "trainer.environment", "--results", str(tmp_path), "--processes", "2"]
    with subprocess.Popen(words, env={**os.environ, **planted}, stderr=subprocess.PIPE, text=True) as done:
        time.sleep(5)
        done.send_signal(signal.SIGINT)
        assert done.wait(60) == 143
