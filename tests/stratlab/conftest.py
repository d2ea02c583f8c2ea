"""What tests of several verbs share, made once per session: a real MLflow server, traces and their analyses."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from stratlab.tracking_server import run_server
from tests.stratlab.trace_fixtures import gloo_report, gloo_run, gloo_traces, gpu_report, gpu_run

__all__ = ["gloo_report", "gloo_run", "gloo_traces", "gpu_report", "gpu_run", "mlflow_server"]


@pytest.fixture(scope="session")
def mlflow_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of an MLflow server on loopback with sqlite and its own artifact folder."""
    with run_server(tmp_path_factory.mktemp("mlflow")) as uri:
        yield uri
