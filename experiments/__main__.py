"""Runs the small forms of experiments on this machine, and keeps what came out beside them.

    python -m experiments                                # all
    python -m experiments offload vit-lora-cifar100      # these; EXPERIMENT/PART for one part of one
    python -m experiments --list

For each part: small data and weights go where `charts/prepare` puts the real ones on a cluster; `stratlab sweep ...
--rehearse` renders the charts, runs them and compares the runs; report, table, date and hardware go to
experiments/<experiment>/result/<part>/. Exit codes: 0 all as it should be; 1 not; 2 no such experiment, or a
folder of somebody else.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from experiments.catalogue import FOLDER, Part, list_experiments
from experiments.prepared import fill_volume
from experiments.result import ROOT, Outcome, find_complaints, keep_result, read_report
from stratlab.sweep.definition import read_sweep
from stratlab.sweep.matrix import expand

OUT = ROOT / "experiments-results"
FOUND = "found.json"
"""In the folder of the runs, from the first moment: it is ours, and what was found so far."""


def main(arguments: Sequence[str] | None = None) -> int:
    """A line per part; returns the exit code."""
    asked = build_parser().parse_args(arguments)
    every = [part for experiment in list_experiments() for part in experiment.parts]
    if asked.list:
        print("\n".join(_name(part) for part in every))
        return 0
    known = {name for part in every for name in (part.experiment, _name(part))}
    if unknown := [name for name in asked.names if name not in known]:
        print(f"NAMES={' '.join(unknown)}: expected of {', '.join(sorted(known))}", file=sys.stderr)
        return 2
    parts = [p for p in every if not asked.names or {p.experiment, _name(p)} & set(asked.names)]
    if asked.out.exists() and any(asked.out.iterdir()) and not (asked.out / FOUND).exists():
        print(f"--out {asked.out}: is not empty and has no {FOUND}; expected a new folder", file=sys.stderr)
        return 2
    asked.out.mkdir(parents=True, exist_ok=True)
    outcomes: list[Outcome] = []
    _write_found(asked.out, outcomes)
    shutil.rmtree(asked.out / "volume", ignore_errors=True)
    for number, part in enumerate(parts, 1):
        print(f"\n=== {number}/{len(parts)} {_name(part)}", flush=True)
        parts_of_it = sum(each.experiment == part.experiment for each in every)
        outcomes.append(run_part(part, asked.out, asked.keep, parts_of_it))
        _write_found(asked.out, outcomes)
    print()
    for outcome in outcomes:
        said = "; ".join(outcome.complaints) or "as it must be"
        print(f"{outcome.part:44} {outcome.seconds:6.0f} s  {said}")
    return int(any(outcome.complaints for outcome in outcomes))


def run_part(part: Part, out: Path, keep: Path, parts: int) -> Outcome:
    """One part: fills the volume, runs and compares, keeps the result.

    Args:
        out: gets volume/, what the small forms read, and <experiment>/<part>/ with runs, MLflow's store and report.
        keep: <experiment>/result/<part>/ below it gets what is to stay.
        parts: of the experiment.
    """
    began = time.monotonic()
    folder = out / part.experiment / part.name
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "runs").mkdir(parents=True)
    fill_volume(part.prepared(), out / "volume", out / "volume" / "as-published")
    (out / "volume" / "_prepared").mkdir(parents=True, exist_ok=True)
    (folder / "runs" / "_prepared").symlink_to((out / "volume" / "_prepared").resolve())
    command = ["stratlab", "sweep", str(part.small.relative_to(ROOT)), "--rehearse"]
    done = subprocess.run([sys.executable, "-m", *command, str(folder)], cwd=ROOT)
    report = read_report(folder / "report")
    names = [release.name for release in expand(read_sweep(part.small))]
    complaints = find_complaints(report, names)
    if done.returncode and not complaints:
        complaints = [f"stratlab sweep ended with exit code {done.returncode}"]
    outcome = Outcome(_name(part), time.monotonic() - began, complaints, report)
    told = " ".join([*command, "FOLDER"])
    kept = keep / part.experiment / "result" / part.name
    keep_result(folder / "report", kept, outcome, told, parts)
    return outcome


def _name(part: Part) -> str:
    return f"{part.experiment}/{part.name}"


def _read_folder(given: str) -> Path:
    """Absolute: what prepares data takes a relative path for a name on the hub."""
    return Path(given).resolve()


def _write_found(out: Path, outcomes: Sequence[Outcome]) -> None:
    """For the suite of `make nightly`."""
    rows = [
        {"part": each.part, "seconds": round(each.seconds), "complaints": list(each.complaints)}
        for each in outcomes
    ]
    (out / FOUND).write_text(json.dumps(rows, indent=1) + "\n")


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m experiments",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help="experiment, or experiment/part; all by default"
    )
    parser.add_argument("--list", action="store_true", help="says which there are")
    parser.add_argument(
        "--out", type=_read_folder, default=OUT, metavar="FOLDER", help="gets volume and runs"
    )
    parser.add_argument(
        "--keep",
        type=_read_folder,
        default=FOLDER,
        metavar="FOLDER",
        help="gets the results (default: experiments/)",
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
