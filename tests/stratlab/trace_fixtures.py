"""Traces and analyses that several tests look at; made once per session."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.stratlab.simulated.small import build_gpu_trace, write_manifest, write_run

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def gloo_traces(tmp_path_factory):
    """A folder with rank0_trace.json and rank1_trace.json of a real training."""
    folder = tmp_path_factory.mktemp("gloo")
    command = [sys.executable, "-m", "tests.stratlab.simulated.record_gloo", str(folder)]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-3000:]
    return folder


@pytest.fixture(scope="session")
def gloo_run(gloo_traces, tmp_path_factory):
    facts = {"world_size": 2, "backend": "gloo", "device_type": "cpu", "device_name": "test processor"}
    run = write_run(tmp_path_factory.mktemp("results") / "gloo", {}, **facts)
    for path in gloo_traces.glob("rank*_trace.json"):
        shutil.copy(path, run / "traces")
    write_manifest(run / "traces")
    return run


@pytest.fixture(scope="session")
def gloo_report(gloo_run):
    """Its analysis, with HTA; the files are in the run directory."""
    from stratlab.analysis.run_analysis import analyze_run

    return analyze_run(gloo_run, tracking_uri=None)


@pytest.fixture(scope="session")
def gpu_run(tmp_path_factory):
    """Two synthetic GPU ranks; the second enters every all-reduce 100 us later. Not analysed."""
    traces = {0: build_gpu_trace(0), 1: build_gpu_trace(1, comm_start=700)}
    return write_run(tmp_path_factory.mktemp("results") / "gpu", traces)


@pytest.fixture(scope="session")
def gpu_report(gpu_run):
    from stratlab.analysis.run_analysis import analyze_run

    return analyze_run(gpu_run, tracking_uri=None)
