"""A real MLflow server for every test that wants one; started once per session."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from stratlab.tracking_server import run_server


@pytest.fixture(scope="session")
def mlflow_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of an MLflow server on loopback with sqlite and its own artifact folder."""
    with run_server(tmp_path_factory.mktemp("mlflow")) as uri:
        yield uri
