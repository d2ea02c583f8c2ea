"""The commands of docs/analysis.md about shares, on eight real ranks, with Holistic Trace Analysis."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.documents.commands import read_commands, split
from tests.stratlab.real_traces import TEAM, unpack
from tests.stratlab.simulated.small import write_run

COMMANDS = sorted(command for command in read_commands() if "stratlab analyze RUN --share" in command)


def analyze(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    program = str(Path(sys.executable).parent / "stratlab")
    done = subprocess.run(
        [program, *words], cwd=folder, env=dict(os.environ), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done


def read_tables(run: Path) -> dict[str, bytes]:
    """HTA's status tells seconds."""
    tables = run / "analysis" / "tables"
    found = {str(path.relative_to(tables)): path.read_bytes() for path in tables.rglob("*.csv")}
    found.pop("hta_status.csv")
    return found


def read_report(run: Path) -> dict[str, Any]:
    report: dict[str, Any] = json.loads((run / "analysis" / "report.json").read_text())
    return report | {"hta": [{**row, "seconds": None} for row in report["hta"]]}


def test_the_commands_give_what_one_process_gives(tmp_path: Path) -> None:
    run = write_run(tmp_path / "RUN", {}, world_size=8)
    shutil.rmtree(run / "traces")
    shutil.copytree(next(iter(unpack(TEAM, tmp_path / "unpacked").values())).parent, run / "traces")
    analyze(tmp_path, "analyze", "RUN")
    report, tables = read_report(run), read_tables(run)
    merged = (run / "analysis" / "merged_trace.json.gz").read_bytes()
    shutil.rmtree(run / "analysis")
    options = [command.partition("RUN ")[2] for command in COMMANDS]
    assert options == ["--share 0/2", "--share 1/2", "--shares 2"]
    for command in COMMANDS:
        done = analyze(tmp_path, *split(command)[1:])
    assert "8 ranks" in done.stdout
    assert read_report(run) == report
    assert read_tables(run) == tables and any(name.startswith("hta/") for name in tables)
    assert (run / "analysis" / "merged_trace.json.gz").read_bytes() == merged
    assert not list(run.glob(".analysis*"))
