"""The fake API as a fixture."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from stratlab.cluster.connection import Connection
from tests.stratlab.cluster.fake_api import FakeApi, connect_to, serve
from tests.stratlab.cluster.real_cluster import RealCluster, use_cluster


@pytest.fixture
def api() -> FakeApi:
    return FakeApi()


@pytest.fixture
def connection(api: FakeApi) -> Iterator[Connection]:
    with serve(api) as address:
        yield connect_to(address)


@pytest.fixture(scope="session")
def cluster() -> Iterator[RealCluster]:
    with use_cluster() as cluster:
        yield cluster
