"""Every test runs in exactly one tier, and a tier holds only what it may start."""

from pathlib import PurePath

import pytest

from tests.cluster.e2e.test_image import CHOSEN
from tests.suites.table import SUITES
from tests.tiers import (
    CHANGE,
    E2E,
    FAST,
    FOLDERS,
    NIGHTLY,
    TESTS,
    TIER_VARIABLE,
    refuse_in_fast,
    tier_of,
)

FILES = sorted(path.relative_to(TESTS) for path in TESTS.rglob("test_*.py"))
STARTERS = (
    *("tests.ranks", "tests.programs", "tests.stratlab.browser", "tests.stratlab.perfetto"),
    "tests.trainer.kept_runs",
)
"""Modules that start ranks, programs or a browser."""


def test_the_latest_tier_among_its_folders_counts_and_each_exists() -> None:
    assert (
        tier_of(PurePath("test_layers.py")) is FAST and tier_of(PurePath("cluster/e2e/test_path.py")) is E2E
    )
    assert tier_of(PurePath("parity/nightly/test_all.py")) is NIGHTLY
    parts = {part for path in FILES for part in path.parts[:-1]}
    assert set(FOLDERS) <= parts | {folder.as_posix() for path in FILES for folder in path.parents}


def test_every_nightly_test_is_in_one_suite_and_no_other_test_in_any() -> None:
    owners = {path: [suite.name for suite in SUITES if suite.owns("tests" / path)] for path in FILES}
    assert [path for path, names in owners.items() if len(names) != (tier_of(path) is NIGHTLY)] == []


def test_e2e_tests_are_where_the_target_looks() -> None:
    """What looks at an image from inside is brought there by a test of the cluster."""
    found = {
        path.as_posix() for path in FILES if tier_of(path) is E2E and path.parent.as_posix() != "cluster/e2e"
    }
    assert found == {"images/inside/test_environment.py"}
    assert {f"tests/{path}" for path in found} <= set(CHOSEN)


def test_fast_files_do_not_import_what_starts_ranks_or_a_browser() -> None:
    fast = [path for path in FILES if tier_of(path) is FAST and path.name != "test_tiers.py"]
    found = [(str(path), name) for path in fast for name in STARTERS if name in (TESTS / path).read_text()]
    assert found == []


def test_a_fast_test_cannot_start_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(AssertionError, match="starts rank processes: move its file"):
        refuse_in_fast("rank processes")
    monkeypatch.setenv(TIER_VARIABLE, CHANGE.name)
    refuse_in_fast("rank processes")
