"""A run of whose settings there is an operations file keeps what was foreseen of its memory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from stratlab_spec.memory.profiles import FOLDER
from tests.ranks import fork_ranks
from tests.trainer.ranks.test_worker import be_worker, settings


def test_the_run_directory_tells_what_was_foreseen(tmp_path: Path):
    env = settings(tmp_path, "ddp", TRAINER_PROFILE_STEPS="0", TRAINER_STEPS="4")
    (tmp_path / FOLDER).mkdir()
    options = ["--ranks", "2", "--operations", str(tmp_path / FOLDER / "ddp.json")]
    subprocess.run(
        [sys.executable, "-m", "trainer.count", *options],
        env=os.environ | env,
        check=True,
        capture_output=True,
    )
    done = fork_ranks(be_worker, 2, env=env)
    assert [rank.exit_code for rank in done] == [0, 0], "\n".join(rank.output[-2000:] for rank in done)
    folder = tmp_path / "default" / "ddp"
    kept = json.loads((folder / "config.json").read_text())["resolved"]["memory_forecast"]
    summary = json.loads((folder / "summary.json").read_text())
    results = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    (sent,) = [line for line in results if line["kind"] == "result"]
    assert kept["operations_file"] == "ddp.json" and not kept["at_most"]
    assert sum(kept["causes_gib"].values()) == pytest.approx(kept["peak_gib"])
    assert kept["causes_gib"]["parameters"] == pytest.approx(
        summary["parameter_memory_gib"], rel=0.05
    )  # blocks
    assert summary["forecast_memory_gib"] == sent["forecast_memory_gib"] == kept["peak_gib"]
    assert "forecast_memory_error_pct" not in summary, "a CPU has no device memory"
