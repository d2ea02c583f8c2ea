"""What every run is held against can tell a wrong one: the last bit of a loss, a count, a file, an attempt."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.rehearsals.start.runs import assert_same, environment, read_losses, render, run_shells


def _another_loss(run_dir: Path) -> None:
    """Of one step, by its last bit."""
    lines = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    step = next(line for line in lines if line["kind"] == "train" and line["step"] == 7)
    step["loss"] = math.nextafter(step["loss"], 9)
    (run_dir / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def _another_count(run_dir: Path) -> None:
    summary = json.loads((run_dir / "summary.json").read_text())
    summary["world_size"] += 1
    (run_dir / "summary.json").write_text(json.dumps(summary))


def _lack_a_file(run_dir: Path) -> None:
    (run_dir / "ranks/rank1.json").unlink()


def _another_attempt(run_dir: Path) -> None:
    attempts = run_dir / "attempts.jsonl"
    attempts.write_text(attempts.read_text() * 2)


@pytest.mark.parametrize("plant", [_another_loss, _another_count, _lack_a_file, _another_attempt])
def test_what_differs_is_seen(plant: Callable[[Path], None], rehearsed: Path, tmp_path: Path) -> None:
    copy = tmp_path / "ddp"
    shutil.copytree(rehearsed, copy)
    assert_same(copy, rehearsed)
    plant(copy)
    with pytest.raises(AssertionError):
        assert_same(copy, rehearsed)


def test_a_rate_that_is_a_millionth_higher_gives_other_losses(rehearsed: Path, tmp_path: Path) -> None:
    rate = json.loads((rehearsed / "config.json").read_text())["config"]["lr"] * (1 + 1e-6)
    script = render("torchrun", tmp_path / "runs", tmp_path / "ddp.sh", "--set", f"run.config.lr={rate!r}")
    run_shells(script, environment(tmp_path))
    other = tmp_path / "runs/demo/ddp"
    assert read_losses(other)[0][1] == read_losses(rehearsed)[0][1], "before the first update"
    assert read_losses(other) != read_losses(rehearsed)
