"""A namespace of one's own on the cluster, and the helms."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.charts.conftest import helm
from tests.cluster.parts.real_cluster import RealCluster, use_cluster

__all__ = ["cluster", "helm"]


@pytest.fixture(scope="session")
def cluster() -> Iterator[RealCluster]:
    with use_cluster() as cluster:
        yield cluster
