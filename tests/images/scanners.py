"""The scanners of .tools/scan, which `make test` installs first."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

SCANNERS = Path(".tools/scan/bin").resolve()
DOCKERFILES = sorted(Path("images").glob("*/Dockerfile"))


def run_hadolint(dockerfile: Path) -> list[str]:
    """The codes of hadolint's findings."""
    done = subprocess.run(
        [SCANNERS / "hadolint", "--format", "json", dockerfile], capture_output=True, text=True, timeout=60
    )
    assert done.returncode in (0, 1), done.stderr
    return [finding["code"] for finding in json.loads(done.stdout)]


def run_checkov(folder: Path) -> dict[str, Any]:
    """checkov's report on the Dockerfiles below a folder; offline."""
    done = subprocess.run(
        [
            SCANNERS / "checkov",
            "--skip-download",
            "--framework",
            "dockerfile",
            "--output",
            "json",
            "-d",
            folder,
        ],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode in (0, 1), done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    return report
