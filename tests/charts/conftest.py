"""Every strategy chart that is found, rendered with the values it is shipped with, by one helm.

Where helm's versions differ is in helms/.
"""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.register_assert_rewrite(
    "tests.charts.rendering", "tests.charts.golden_file", "tests.charts.contract"
)  # before their import

from tests.charts.rendering import CHARTS, HELMS, Document, discover_charts, find_program, render  # noqa: E402


@pytest.fixture(scope="session")
def helm() -> Path:
    return find_program(HELMS[0])


@pytest.fixture(scope="session", params=discover_charts(CHARTS))
def chart(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="session")
def documents(helm: Path, chart: str) -> list[Document]:
    """Rendered once; a test that changes them works on a copy."""
    return render(helm, CHARTS / chart)
