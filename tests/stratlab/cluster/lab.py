"""A cluster for verbs that read a results volume: an API server that answers, and pods that are processes here."""

import os
import sys

import pytest

from stratlab.cluster import connection
from stratlab.cluster.connection import Connection
from tests.stratlab.cluster.fake_api import FakeApi
from tests.stratlab.cluster.fake_kubelet import Kubelet, run_kubelet
from tests.stratlab.watch.objects import RUNS

Lab = tuple[Connection, Kubelet]


@pytest.fixture
def lab(monkeypatch):
    """Whoever connects meets it. Mount the volume at a folder of this machine."""
    api = FakeApi()
    with run_kubelet(api) as pair:
        pair[1].env["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
        api.served.add(RUNS)
        monkeypatch.setattr(connection, "connect", lambda **_: pair[0])
        yield pair
