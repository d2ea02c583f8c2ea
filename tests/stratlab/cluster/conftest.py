"""The fake API as a fixture."""

from collections.abc import Iterator

import pytest

from stratlab.cluster.connection import Connection
from tests.stratlab.cluster.fake_api import FakeApi, connect_to, serve


@pytest.fixture
def api() -> FakeApi:
    return FakeApi()


@pytest.fixture
def connection(api: FakeApi) -> Iterator[Connection]:
    with serve(api) as address:
        yield connect_to(address)
