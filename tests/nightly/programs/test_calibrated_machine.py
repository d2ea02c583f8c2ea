"""`stratlab calibrate` on this machine's CPU, and what `predict` makes of its file."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from stratlab_spec.step_time.measured_machine import COPY, HOP, HOST, PRODUCT, read_machine

SETTINGS = ("dataset=digits", "image_size=16", "micro_batch_size=4", "global_batch_size=8")


def test_two_ranks_are_calibrated_and_predicted_and_a_finished_run_refines_them(tmp_path: Path) -> None:
    file = tmp_path / "machine.json"
    stratlab = [sys.executable, "-m", "stratlab"]
    subprocess.run([*stratlab, "calibrate", "--out", str(file), "--ranks", "2"], check=True, timeout=600)
    machine = read_machine(file)
    assert set(machine.scalars) == {PRODUCT, COPY, HOST, HOP} and machine.origin.steps > 0
    sets = [word for setting in SETTINGS for word in ("--set", setting)]
    command = [*stratlab, "predict", "vit_tiny", "--gpus", "2", "--machine", str(file), "--json", *sets]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=120)
    speeds = {row["name"]: row["speed"] for row in json.loads(done.stdout) if row.get("speed")}
    low, high = speeds["ddp"]["band_pct"]
    assert -80 < low < 0 < high < 200
    run = [
        "--set",
        f"results={tmp_path}",
        "--set",
        "model=vit_tiny",
        "--set",
        "steps=40",
        "--set",
        "profile_steps=0",
    ]
    trained = [*run, "--set", "strategy=ddp", "--set", "run=ddp", "--set", "comparison=mine", *sets]
    subprocess.run([sys.executable, "-m", "trainer", "--processes", "2", *trained], check=True, timeout=240)
    subprocess.run(
        [*stratlab, "calibrate", "--out", str(file), "--from-runs", str(tmp_path / "mine")],
        check=True,
        timeout=60,
    )
    assert read_machine(file).origin.steps > machine.origin.steps
