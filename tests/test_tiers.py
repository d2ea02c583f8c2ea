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
    Tier,
    refuse_in_fast,
    tier_of,
)

FILES = sorted(path.relative_to(TESTS) for path in TESTS.rglob("test_*.py"))
STARTERS = (
    *("tests.ranks", "tests.programs", "tests.stratlab.browser", "tests.stratlab.perfetto"),
    "tests.trainer.kept_runs",
)
"""Modules that start ranks, programs or a browser."""


@pytest.mark.parametrize(
    ("path", "tier"),
    [
        ("test_layers.py", FAST),
        ("trainer/ranks/test_worker.py", CHANGE),
        ("stratlab/analysis/hta/test_hta_bridge.py", CHANGE),
        ("stratlab/cluster/test_watching.py", FAST),  # a mirror of stratlab/cluster, on a fake API
        ("cluster/e2e/test_path.py", E2E),
        ("parity/nightly/test_all.py", NIGHTLY),
        ("benchmarks/processes/test_benchmarks.py", NIGHTLY),
    ],
)
def test_the_latest_tier_among_its_folders_counts(path: str, tier: Tier) -> None:
    assert tier_of(PurePath(path)) is tier


def test_every_named_folder_exists() -> None:
    parts = {part for path in FILES for part in path.parts[:-1]}
    folders = parts | {folder.as_posix() for path in FILES for folder in path.parents}
    assert set(FOLDERS) <= folders


def test_every_nightly_test_is_in_one_suite() -> None:
    owners = {
        str(path): [suite.name for suite in SUITES if suite.owns("tests" / path)]
        for path in FILES
        if tier_of(path) is NIGHTLY
    }
    assert {path: names for path, names in owners.items() if len(names) != 1} == {}


def test_a_suite_has_only_nightly_tests() -> None:
    owned = [path for path in FILES if any(suite.owns("tests" / path) for suite in SUITES)]
    assert [str(path) for path in owned if tier_of(path) is not NIGHTLY] == []


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
