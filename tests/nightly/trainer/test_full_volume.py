"""The whole trainer on a volume that has no room for a trace, or fills up while it works."""

from __future__ import annotations

import json
from pathlib import Path

from tests.codes import find_codes
from tests.trainer.ranks.slow import test_worker as test_full_volume
from tests.trainer.ranks.slow.test_worker import launch_on
from tests.trainer.ranks.test_launcher import ONE

results = test_full_volume.results


def test_a_trace_that_does_not_fit_is_dropped_and_the_run_succeeds(results: Path) -> None:
    """F10: Kineto only prints that it could not write or rename its file."""
    done, run = launch_on(results, "256k", **ONE, TRAINER_STEPS="16")
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    manifest = json.loads((run / "traces" / "manifest.json").read_text())
    assert (manifest["complete"], manifest["files"]) == (False, []) and manifest["dropped"][0]["rank"] == 0
    assert sorted(path.name for path in (run / "traces").iterdir()) == ["manifest.json"]
    assert (run / "summary.json").is_file()


def test_a_volume_that_fills_up_meanwhile_costs_no_finished_run(results: Path) -> None:
    """The results have their space from the start on."""
    begun = results / "default" / "try" / "attempts.jsonl"
    wait = f"timeout 60 sh -c 'until [ -e {begun} ]; do sleep 0.1; done'"
    fill = f"( {wait}; sleep 0.5; cat /dev/zero > {results}/filler ) >/dev/null 2>&1 &"
    rarely = {f"TRAINER_{name}": "300" for name in ("STEPS", "CHECKPOINT_EVERY", "EVALUATE_EVERY")}
    done, run = launch_on(results, "6m", fill, **ONE, **rarely, TRAINER_PROFILE_STEPS="0")
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert {"SL-checkpoint-left-out", "SL-weights-left-out"} <= {*find_codes(done.stdout)}
    assert not (run / "model").exists()
    assert json.loads((run / "summary.json").read_text())["steps"] == 300
    assert json.loads((run / "ranks" / "rank0.json").read_text())["done"] is True
    assert not (run / ".reserve").exists() and not [*run.rglob("*.tmp")]
