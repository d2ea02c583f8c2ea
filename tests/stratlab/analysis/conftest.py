import pytest

from stratlab.analysis import run_analysis
from stratlab.analysis.hta_bridge import HtaLimits, HtaRun
from stratlab.analysis.run_analysis import analyze_run
from tests.stratlab.simulated.small import build_gpu_trace, write_run

NO_HTA = HtaLimits(memory_bytes=0)


@pytest.fixture
def without_hta(monkeypatch):
    """A process that takes seconds and reads the traces itself; it is looked at elsewhere."""
    monkeypatch.setattr(run_analysis, "run_hta", lambda *_, **__: HtaRun([], [], ""))


@pytest.fixture(scope="session")
def plain_run(tmp_path_factory):
    traces = {0: build_gpu_trace(0), 1: build_gpu_trace(1, comm_start=700)}
    return write_run(tmp_path_factory.mktemp("results") / "plain", traces)


@pytest.fixture(scope="session")
def plain_report(plain_run):
    """Its analysis, without HTA: that takes seconds."""
    return analyze_run(plain_run, tracking_uri=None, hta_limits=NO_HTA)
