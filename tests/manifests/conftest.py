"""Every overlay that is found, and one overlay with every component."""

from __future__ import annotations

import pytest

pytest.register_assert_rewrite("tests.manifests.kustomize")  # before its import

from tests.charts.rendering import Document  # noqa: E402
from tests.manifests.kustomize import COMPONENTS, MANIFESTS, OVERLAYS, build, write_overlay  # noqa: E402

EVERYTHING = "kind with every component"


@pytest.fixture(scope="session", params=[*OVERLAYS, EVERYTHING])
def overlay(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="session")
def documents(overlay: str, tmp_path_factory: pytest.TempPathFactory) -> list[Document]:
    """Built once; a test that changes them works on a copy."""
    if overlay == EVERYTHING:
        return build(write_overlay(tmp_path_factory.mktemp("everything"), "kind", COMPONENTS))
    return build(MANIFESTS / "overlays" / overlay)


@pytest.fixture(scope="session")
def kind() -> list[Document]:
    return build(MANIFESTS / "overlays" / "kind")
