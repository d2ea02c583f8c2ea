"""The whole trainer on a volume that is really full: a file system of its own, mounted where no right is needed."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.codes import find_codes
from tests.programs import find_python
from tests.trainer.ranks.test_launcher import ONE, environment, read_lines

PRIVATE = ("unshare", "--user", "--map-root-user", "--mount")
LARGE = {"TRAINER_MODEL": "vit_tiny", "TRAINER_IMAGE_SIZE": "32", "TRAINER_PROFILE_STEPS": "0"}
"""A checkpoint of 2.4 MB."""


@pytest.fixture
def results(tmp_path: Path) -> Path:
    if subprocess.run([*PRIVATE, "true"], capture_output=True).returncode != 0:
        pytest.skip("this machine has no user namespaces, so no small file system can be mounted")
    (tmp_path / "results").mkdir()
    return tmp_path / "results"


def launch_on(
    results: Path, size: str, beside: str = "", **settings: str
) -> tuple[subprocess.CompletedProcess[str], Path]:
    """The trainer with its results on `size` of memory, and what was in it at the end; `beside` runs with it."""
    kept = results.with_name("kept")
    mount = f"mount -t tmpfs -o size={size} none {results} && {{ {beside} }} || exit"
    mount = mount if beside else f"mount -t tmpfs -o size={size} none {results} || exit"
    mount += f'; "$@"; code=$?; rm -f {results}/filler; cp -r {results}/. {kept}; exit $code'
    command = [*PRIVATE, "sh", "-c", mount, "sh", find_python(), "-m", "trainer"]
    done = subprocess.run(
        command, env=environment(results, **settings), capture_output=True, text=True, timeout=200
    )
    return done, kept / "default" / "try"


def test_a_checkpoint_that_does_not_fit_is_left_out_and_the_next_ends_the_run(results: Path) -> None:
    """torch hides the cause in a BaseException: F9 all the same."""
    done, run = launch_on(results, "1m", **LARGE, **ONE, TRAINER_CHECKPOINT_EVERY="4")
    assert done.returncode == 13, done.stdout[-3000:] + done.stderr[-3000:]
    assert (
        "SL-checkpoint-left-out" in find_codes(done.stdout) and "Traceback" not in done.stdout + done.stderr
    )
    assert find_codes(done.stderr)[-1] == "SL-checkpoint-no-room"
    steps = [line["step"] for line in read_lines(run / "metrics.jsonl") if line["kind"] == "train"]
    assert steps == list(range(1, len(steps) + 1)) and 8 <= len(steps) <= 12
    assert [line.get("exit_code") for line in read_lines(run / "attempts.jsonl")] == [None, 13]
    assert not any((run / "checkpoints").iterdir())


def test_a_volume_that_takes_nothing_at_all_is_no_crash(results: Path) -> None:
    done, _ = launch_on(results, "4k", **ONE)
    assert done.returncode == 13 and "Traceback" not in done.stderr, done.stdout[-2000:] + done.stderr[-2000:]
