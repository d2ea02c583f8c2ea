"""Count the memory of every run of the GPU's program, into benchmarks/gpu/operations/: some nine minutes.

Counted on a CPU, by CUDA's rules, with torch and DeepSpeed installed. The runs on a card find the files, and report
the error of the forecast.
"""

from __future__ import annotations

import subprocess
import sys

from benchmarks.gpu import memory, project, strategies
from benchmarks.gpu.models import build_models, resolve_run
from benchmarks.gpu.own_run import OPERATIONS, file_name
from benchmarks.gpu.session import ROOT, Session

UNCOUNTED = ("+compile", "+taught", "+again")
"""The compiler's own memory is not counted (docs/memory.md); a teacher does not exist yet; a repeat has its first
run's file."""
PRECISION = "bf16"
"""The value of `auto` on these cards."""


def list_runs() -> list[str]:
    """Return the names of the runs to count; files answer for every number of steps."""
    names = [*project.RUNS, *strategies.RUNS, *memory.RUNS]
    plain = [name.removesuffix(f"+{memory.SHORT}") for name in names]
    return [*dict.fromkeys(name for name in plain if not name.endswith(UNCOUNTED))]


def count(name: str) -> int:
    """Return one run's file; the exit code of the count."""
    session = Session("project", "cuda", False, "", "", 0.0)
    _, settings, _ = resolve_run(name, build_models(session))
    asked = {"PRECISION": PRECISION} | settings
    sets = [f"--set={key.lower()}={value}" for key, value in asked.items()]
    target = OPERATIONS / f"{file_name(name)}.json"
    command = [sys.executable, "-m", "trainer.count", "--ranks", "1", *sets, "--operations", str(target)]
    return subprocess.call(command, cwd=ROOT)


def main() -> int:
    """Count all runs; return 1 if a count failed."""
    OPERATIONS.mkdir(exist_ok=True)
    failed = [name for name in list_runs() if count(name)]
    print(f"not counted: {', '.join(failed) or 'none'}")
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
