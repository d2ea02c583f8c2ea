"""What a change has done to the host's cost of a step: the benchmark of another tree and of this one in turns.

    python benchmarks/host_tax_before.py ../before --turns 12

Both trees run `benchmarks/host_tax.py` with this interpreter, one after the other, so that both see the same machine.
What counts is the difference of a turn: what the loop adds to a step here, minus what it adds there. CPU time.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parents[1]
STUDENT_95 = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23, 2.20, 2.18, 2.16, 2.14, 2.13, 2.12)
"""Of 1 to 16 degrees of freedom; 2.1 above."""


def measure(tree: Path) -> dict[str, float]:
    """The report of one round in this tree."""
    done = subprocess.run(
        [sys.executable, "benchmarks/host_tax.py", "--rounds", "1"],
        cwd=tree,
        env=os.environ | {"PYTHONPATH": str(tree), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    if done.returncode:
        sys.exit(f"{tree}: {done.stderr[-2000:]}")
    report: dict[str, float] = json.loads(done.stdout)
    return report


def interval(values: list[float]) -> tuple[float, float, float]:
    """(mean, lower and upper end of its 95 % interval) by Student's t."""
    freedom = len(values) - 1
    factor = STUDENT_95[freedom - 1] if freedom <= len(STUDENT_95) else 2.1
    half = factor * statistics.stdev(values) / len(values) ** 0.5
    mean = statistics.mean(values)
    return mean, mean - half, mean + half


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("before", type=Path, help="another checkout")
    parser.add_argument("--turns", type=int, default=12)
    asked = parser.parse_args()
    found: dict[str, list[dict[str, float]]] = {"before": [], "after": []}
    for turn in range(asked.turns):
        order = [("before", asked.before.resolve()), ("after", HERE)]
        for name, tree in order if turn % 2 else order[::-1]:
            found[name].append(measure(tree))
        print(
            f"{turn + 1}/{asked.turns}: "
            + ", ".join(f"{n} {rows[-1]['added_us_per_step']:.1f} us" for n, rows in found.items()),
            file=sys.stderr,
            flush=True,
        )
    report: dict[str, object] = {"turns": asked.turns, "clock": "CPU time of the process"}
    for key in ("added_us_per_step", "alone_us_per_step"):
        pairs = list(zip(found["after"], found["before"], strict=True))
        mean, low, high = interval([after[key] - before[key] for after, before in pairs])
        report[key] = {
            **{name: round(statistics.mean(row[key] for row in rows), 1) for name, rows in found.items()},
            "difference": round(mean, 1),
            "interval_95": [round(low, 1), round(high, 1)],
        }
    print(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
