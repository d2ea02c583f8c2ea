"""`stratlab predict` as README and docs have it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.documents.commands import ROOT, read_commands, split

COMMANDS = [c for c in sorted(read_commands()) if c.startswith("stratlab predict") and ".tgz" not in c]


@pytest.mark.parametrize("command", [c for c in COMMANDS if "--count" not in c and "charts/" not in c][:3])
def test_from_shipped_files_alone(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """There is no cache, and nothing is counted."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    words = [str(tmp_path / word) if word.endswith(".html") else word for word in split(command)[1:]]
    done = subprocess.run(
        [sys.executable, "-m", "stratlab", *words], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0 and not done.stderr, done.stderr
    unknown = [line.split()[0] for line in done.stdout.splitlines() if "not known" in line]
    assert {*unknown} <= {"hsdp", "zeropp"}, "whose files answer for 8 ranks alone"
    assert "fsdp" in done.stdout
