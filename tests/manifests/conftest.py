"""Every overlay that is found, one with each component alone, and one with every component."""

from __future__ import annotations

import pytest

pytest.register_assert_rewrite("tests.manifests.kustomize")  # before its import

from tests.charts.rendering import Document  # noqa: E402
from tests.manifests.kustomize import COMPONENTS, MANIFESTS, OVERLAYS, build, write_overlay  # noqa: E402

# A component alone has nobody to set right what it leaves out: `mpi` moves all objects into its own namespace.
WITH_COMPONENTS = {f"kind with {name}": [name] for name in COMPONENTS}
WITH_COMPONENTS["kind with every component"] = COMPONENTS


@pytest.fixture(scope="session", params=[*OVERLAYS, *WITH_COMPONENTS])
def overlay(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="session")
def documents(overlay: str, tmp_path_factory: pytest.TempPathFactory) -> list[Document]:
    """Built once; a test that changes them works on a copy."""
    if overlay in WITH_COMPONENTS:
        return build(write_overlay(tmp_path_factory.mktemp("overlay"), "kind", WITH_COMPONENTS[overlay]))
    return build(MANIFESTS / "overlays" / overlay)


@pytest.fixture(scope="session")
def kind() -> list[Document]:
    return build(MANIFESTS / "overlays" / "kind")
