"""What the Dockerfiles promise, as checkov sees it: started once, for them and a planted one."""

from __future__ import annotations

import shutil
from typing import Any

import pytest

from tests.images.scanners import DOCKERFILES, run_checkov


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """On shipped/<image>/Dockerfile and planted/Dockerfile."""
    folder = tmp_path_factory.mktemp("scan")
    for dockerfile in DOCKERFILES:
        (folder / "shipped" / dockerfile.parent.name).mkdir(parents=True)
        shutil.copy(dockerfile, folder / "shipped" / dockerfile.parent.name)
    text = DOCKERFILES[0].read_text().replace("USER 10001:10001", "USER root\nEXPOSE 22")
    (folder / "planted").mkdir()
    (folder / "planted" / "Dockerfile").write_text(text)
    return run_checkov(folder)


def pick(report: dict[str, Any], kind: str, folder: str) -> list[dict[str, Any]]:
    return [check for check in report["results"][kind] if check["file_path"].startswith(f"/{folder}/")]


def test_nothing_is_found_that_is_not_waived_with_a_reason(report: dict[str, Any]) -> None:
    assert report["summary"]["resource_count"] == len(DOCKERFILES) + 1
    assert report["summary"]["parsing_errors"] == 0
    assert [check["check_id"] for check in pick(report, "failed_checks", "shipped")] == []
    skipped = pick(report, "skipped_checks", "shipped")
    assert {check["check_id"] for check in skipped} == {"CKV_DOCKER_2", "CKV_DOCKER_7"}
    for check in skipped:
        assert len(check["check_result"]["suppress_comment"].split()) >= 5, check


def test_it_is_not_blind(report: dict[str, Any]) -> None:
    failed = {check["check_id"] for check in pick(report, "failed_checks", "planted")}
    assert {"CKV_DOCKER_8", "CKV_DOCKER_1"} <= failed
