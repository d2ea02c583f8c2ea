"""What tests of several verbs share, made once per session: traces and their analyses; and a cluster."""

import sys

import pytest

from stratlab import cli
from tests.stratlab.cluster.conftest import api, connection
from tests.stratlab.cluster.lab import lab
from tests.stratlab.trace_fixtures import gloo_report, gloo_run, gloo_traces, gpu_report, gpu_run

__all__ = ["api", "connection", "gloo_report", "gloo_run", "gloo_traces", "gpu_report", "gpu_run", "lab"]


@pytest.fixture
def stratlab(monkeypatch, capsys):
    """Exit code, standard output and error output of the program, called in this process."""

    def call(*words):
        monkeypatch.setattr(sys, "argv", ["stratlab", *map(str, words)])
        with pytest.raises(SystemExit) as end:
            cli.main()
        return int(end.value.code or 0), *capsys.readouterr()

    return call
