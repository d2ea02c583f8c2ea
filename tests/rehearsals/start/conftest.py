import subprocess
from pathlib import Path

import pytest

from tests.rehearsals.start.runs import CHART, OPTIONS, ROOT, STRATLAB


@pytest.fixture(scope="session")
def rehearsed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    results = tmp_path_factory.mktemp("rehearsed") / "runs"
    command = [STRATLAB, "rehearse", CHART, *OPTIONS, "--results", results, "--no-analysis"]
    done = subprocess.run(list(map(str, command)), cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return results / "demo" / "ddp"
