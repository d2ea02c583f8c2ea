"""A namespace of its own on the cluster for each file, and both helms."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.charts.rendering import HELMS, find_program
from tests.cluster.parts.real_cluster import RealCluster, use_cluster


@pytest.fixture(scope="session", params=HELMS)
def helm(request: pytest.FixtureRequest) -> Path:
    return find_program(request.param)


@pytest.fixture(scope="module")
def cluster() -> Iterator[RealCluster]:
    with use_cluster() as cluster:
        yield cluster
