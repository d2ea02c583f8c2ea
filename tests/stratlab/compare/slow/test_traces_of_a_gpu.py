"""Real traces of an H200: what the device waited for."""

import lzma
import shutil
from pathlib import Path

import pytest

from stratlab.analysis.hta_bridge import HtaLimits
from stratlab.analysis.run_analysis import analyze_run

RUNS = Path("tests/data/runs")


def test_zero2_waits_for_the_host(tmp_path):
    """134.8 ms of a recorded step, 92.2 alone; 40.1 and 1.6 ms of them the device had nothing to do."""
    root, waited = Path(shutil.copytree(RUNS / "h200", tmp_path / "h200")), {}
    for name in ("vit_base-single", "vit_base-zero2"):
        (root / name / "traces").mkdir()
        packed = (RUNS / "traces" / f"{name}.json.xz").read_bytes()
        (root / name / "traces" / "rank0_trace.json").write_bytes(lzma.decompress(packed))
        mean = analyze_run(root / name, tracking_uri=None, hta_limits=HtaLimits(memory_bytes=0))["mean"]
        share = mean["host_wait_pct"] + mean["launch_wait_pct"]  # until the launch, and until it started
        waited[name] = mean["step_ms"], share * mean["step_ms"] / 100
    assert waited["vit_base-single"] == pytest.approx((92.2, 1.6), abs=0.1)
    assert waited["vit_base-zero2"] == pytest.approx((134.8, 40.1), abs=0.1)
