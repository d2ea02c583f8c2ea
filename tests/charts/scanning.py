"""checkov on pods, offline, and what may be left as it is."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import yaml

from tests.charts.rendering import Document, find_program

WAIVERS = Path(__file__).parent / "waivers.yaml"


@dataclass(frozen=True)
class Finding:
    """A failed check: checkov's id of it, and its name."""

    check: str
    title: str


@dataclass(frozen=True)
class Waiver:
    """A check that need not hold, for every pod or one, and why not."""

    check: str
    reason: str
    pod: str = ""

    def covers(self, finding: Finding, pod: str) -> bool:
        return finding.check == self.check and self.pod in ("", pod)


def read_waivers() -> dict[str, list[Waiver]]:
    return {
        section: [Waiver(**entry) for entry in entries]
        for section, entries in yaml.safe_load(WAIVERS.read_text()).items()
    }


def scan(objects: Mapping[str, Document], folder: Path) -> dict[str, list[Finding]]:
    """Failed checks by the names of `objects`, which become files in `folder`. One start of checkov: 5 s CPU."""
    for name, document in objects.items():
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(document))
    done = subprocess.run(
        [
            str(find_program("scan/bin/checkov")),
            *("--directory", str(folder), "--framework", "kubernetes"),
            *("--output", "json", "--compact", "--skip-download"),
        ],
        capture_output=True,
        text=True,
        timeout=300,
        cwd=folder,
        env={name: value for name, value in os.environ.items() if not name.startswith(("BC_", "CKV_"))},
    )
    assert done.returncode in (0, 1), done.stderr
    report = json.loads(done.stdout)
    assert report["summary"]["parsing_errors"] == 0
    found: dict[str, list[Finding]] = {name: [] for name in objects}
    for failed in report["results"]["failed_checks"]:
        found[Path(failed["file_path"]).stem].append(Finding(failed["check_id"], failed["check_name"]))
    return found
