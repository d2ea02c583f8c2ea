"""What the Dockerfiles promise, as checkov sees it."""

from __future__ import annotations

from pathlib import Path

from tests.images.scanners import DOCKERFILES, run_checkov


def test_checkov_finds_nothing_that_is_not_waived_with_a_reason() -> None:
    report = run_checkov(Path("images"))
    assert report["summary"]["resource_count"] == len(DOCKERFILES)
    assert report["summary"]["parsing_errors"] == 0
    assert [check["check_id"] for check in report["results"]["failed_checks"]] == []
    skipped = report["results"]["skipped_checks"]
    assert {check["check_id"] for check in skipped} == {"CKV_DOCKER_2", "CKV_DOCKER_7"}
    for check in skipped:
        assert len(check["check_result"]["suppress_comment"].split()) >= 5, check


def test_checkov_is_not_blind(tmp_path: Path) -> None:
    text = DOCKERFILES[0].read_text().replace("USER 10001:10001", "USER root\nEXPOSE 22")
    (tmp_path / "Dockerfile").write_text(text)
    failed = {check["check_id"] for check in run_checkov(tmp_path)["results"]["failed_checks"]}
    assert {"CKV_DOCKER_8", "CKV_DOCKER_1"} <= failed
