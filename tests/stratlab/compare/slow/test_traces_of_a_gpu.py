"""Real traces of an H200: what the device waited for, and how far off the forecast is, by part."""

import lzma
import shutil
from pathlib import Path

import pytest

from stratlab.analysis.hta_bridge import HtaLimits
from stratlab.analysis.run_analysis import analyze_run
from stratlab_spec.settings.config import Config
from stratlab_spec.step_time.step_forecast import STEP_FORECAST, forecast_step_time
from tests.stratlab.compare.building import edit

RUNS = Path("tests/data/runs")
VIT = {"run": "x", "model": "vit_base", "dataset": "synthetic", "precision": "bf16", "image_size": 224}
BATCH = {"micro_batch_size": 256, "global_batch_size": 256}


def test_zero2_waits_for_the_host(tmp_path):
    """134.8 ms of a recorded step, 92.2 alone; 40.1 and 1.6 ms of them the device had nothing to do.

    The forecast has the device's part to 2 %; it names the host's as the one that deviates under zero2.
    """
    root, waited, late = Path(shutil.copytree(RUNS / "h200", tmp_path / "h200")), {}, {}
    for strategy in ("single", "zero2"):
        name = f"vit_base-{strategy}"
        (root / name / "traces").mkdir()
        packed = (RUNS / "traces" / f"{name}.json.xz").read_bytes()
        (root / name / "traces" / "rank0_trace.json").write_bytes(lzma.decompress(packed))
        forecast = forecast_step_time(Config(**VIT, **BATCH, strategy=strategy), 1, 1, "NVIDIA H200")
        foreseen = {STEP_FORECAST: forecast}
        edit(root / name / "config.json", lambda config, new=foreseen: config["resolved"].update(new))
        report = analyze_run(root / name, tracking_uri=None, hta_limits=HtaLimits(memory_bytes=0))
        mean, (compute, *_) = report["mean"], report["forecast"]["parts"]
        share = mean["host_wait_pct"] + mean["launch_wait_pct"]  # until the launch, and until it started
        waited[name] = mean["step_ms"], share * mean["step_ms"] / 100
        late[strategy] = report["forecast"]["deviates"]
        assert compute["ms"] == pytest.approx(compute["measured_ms"], rel=0.02)
    assert waited["vit_base-single"] == pytest.approx((92.2, 1.6), abs=0.1)
    assert waited["vit_base-zero2"] == pytest.approx((134.8, 40.1), abs=0.1)
    assert late == {"single": None, "zero2": "host"}
