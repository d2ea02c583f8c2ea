"""A job that SLURM stops at its time limit: the script's own --signal comes before it, and the ranks save."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.rehearsals.start.machines import wait_until
from tests.rehearsals.start.runs import last_step, render
from tests.rehearsals.start.slurm import ENDLESS, LACK, expect_another_start, open_slurm, submit


@pytest.mark.skipif(bool(LACK), reason=f"{LACK} (Debian: apt-get install slurm-wlm iproute2)")
def test_the_time_limit_loses_no_step(tmp_path: Path) -> None:
    """40 s before three minutes, and up to one minute earlier, as SLURM's manual says."""
    run_dir = tmp_path / "runs/demo/ddp"
    options = (*ENDLESS, "--set", "run.graceSeconds=40")
    with open_slurm(tmp_path / "slurm") as head:
        job = submit(head, render("slurm", tmp_path / "runs", tmp_path / "ddp.sbatch", *options), "--time=3")
        wait_until(lambda: last_step(run_dir) >= 20, "step 20", 120, 0.5)
        expect_another_start(head, job, run_dir)
