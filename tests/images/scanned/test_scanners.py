"""What the Dockerfiles promise, as hadolint and checkov see it; each started for a planted one too."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.images.test_dockerfiles import DOCKERFILES

SCANNERS = Path(".tools/scan/bin").resolve()


def scan(*command):
    done = subprocess.run(
        [str(SCANNERS / str(command[0])), *map(str, command[1:])], capture_output=True, text=True
    )
    assert done.returncode in (0, 1), done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("dockerfile", DOCKERFILES, ids=lambda path: path.parent.name)
def test_hadolint_finds_nothing(dockerfile, tmp_path):
    assert scan("hadolint", "--format", "json", dockerfile) == []
    assert "hadolint ignore" not in dockerfile.read_text()
    bad = tmp_path / "Dockerfile"
    bad.write_text(dockerfile.read_text() + "\nRUN cd /tmp && sudo true\n")
    assert {"DL3003", "DL3004"} <= {each["code"] for each in scan("hadolint", "--format", "json", bad)}


def test_checkov_finds_nothing_that_is_not_waived_with_a_reason(tmp_path):
    for dockerfile in DOCKERFILES:
        (tmp_path / "shipped" / dockerfile.parent.name).mkdir(parents=True)
        shutil.copy(dockerfile, tmp_path / "shipped" / dockerfile.parent.name)
    (tmp_path / "planted").mkdir()
    text = DOCKERFILES[0].read_text().replace("USER 10001:10001", "USER root\nEXPOSE 22")
    (tmp_path / "planted" / "Dockerfile").write_text(text)
    report = scan(
        "checkov", "--skip-download", "--framework", "dockerfile", "--output", "json", "-d", tmp_path
    )
    assert report["summary"]["resource_count"] == len(DOCKERFILES) + 1
    assert report["summary"]["parsing_errors"] == 0

    def pick(kind, folder):
        found = report["results"][kind]
        return {each["check_id"]: each for each in found if each["file_path"].startswith(f"/{folder}/")}

    assert pick("failed_checks", "shipped") == {}
    assert {"CKV_DOCKER_8", "CKV_DOCKER_1"} <= pick("failed_checks", "planted").keys(), "it is not blind"
    skipped = pick("skipped_checks", "shipped")
    assert skipped.keys() == {"CKV_DOCKER_2", "CKV_DOCKER_7"}
    assert all(len(each["check_result"]["suppress_comment"].split()) >= 5 for each in skipped.values())
