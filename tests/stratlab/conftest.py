"""What tests of several verbs share, made once per session: traces and their analyses; and a cluster."""

from tests.stratlab.cluster.conftest import api, connection
from tests.stratlab.cluster.lab import lab
from tests.stratlab.trace_fixtures import gloo_report, gloo_run, gloo_traces, gpu_report, gpu_run

__all__ = ["api", "connection", "gloo_report", "gloo_run", "gloo_traces", "gpu_report", "gpu_run", "lab"]
