"""The fake API as a fixture."""

import pytest

from tests.stratlab.cluster.fake_api import FakeApi, connect_to, serve


@pytest.fixture
def api():
    return FakeApi()


@pytest.fixture
def connection(api):
    with serve(api) as address:
        yield connect_to(address)
