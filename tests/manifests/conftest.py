"""Two overlays as they are, and one with every component."""

import pytest

pytest.register_assert_rewrite("tests.manifests.kustomize")  # before its import

from tests.charts.rendering import Document  # noqa: E402
from tests.manifests.kustomize import (  # noqa: E402
    COMPONENTS,
    MANIFESTS,
    build,
    build_overlay,
)

ALL = "kind with every component"


@pytest.fixture(scope="session", params=["kind", "cluster", ALL])
def overlay(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="session")
def documents(overlay: str) -> list[Document]:
    """Built once; a test that changes them works on a copy."""
    return build_overlay("kind", *COMPONENTS) if overlay == ALL else build(MANIFESTS / "overlays" / overlay)


@pytest.fixture(scope="session")
def kind() -> list[Document]:
    return build(MANIFESTS / "overlays" / "kind")
