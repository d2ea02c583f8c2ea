"""docs/python-api.md as a plain file."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.documents.commands import ROOT

(CODE,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs/python-api.md").read_text(), re.DOTALL)


def test_the_page_as_a_file(tmp_path: Path) -> None:
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    (tmp_path / "try.py").write_text(CODE)
    env = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    command = [sys.executable, "try.py"]
    env |= {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr[-2000:]
    said = done.stdout.splitlines()
    assert said[0].startswith("finished ") and said[-1] == "12"
    assert [line.split()[:2] for line in said[1:-4]] == [["ddp", "ddp"], ["fsdp", "fsdp"]]
    assert re.fullmatch(r"traces [1-9]\d*", said[-4]) and said[-3] == "3"
    assert "strategy='dpp'" in said[-2]
    assert (tmp_path / "python-report/report.html").is_file()
