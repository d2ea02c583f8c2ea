"""Runs the small forms of experiments on this machine, and keeps what came out beside them.

    python -m experiments                                # all
    python -m experiments offload vit-lora-cifar100      # these; EXPERIMENT/PART for one part of one
    python -m experiments --list

For each part: small data and weights go where `charts/prepare` puts the real ones on a cluster; `stratlab sweep ...
--rehearse` renders the charts, runs them and compares the runs; report, table, date and hardware go to
experiments/<experiment>/result/<part>/, where a part passed; else what was kept before stays. Exit codes: 0 all as it
should be; 1 not; 2 no such experiment, or a folder of somebody else or of one that is at work; 130, 143 interrupted.
"""

from __future__ import annotations

import argparse
import difflib
import json
import shutil
import signal
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path

from experiments.catalogue import FOLDER, Part, list_experiments
from experiments.part_run import run_part
from experiments.result import ROOT, Outcome
from stratlab import UserError
from stratlab.machine import Interrupted, signals_raise
from stratlab.sweep.state import only_one

OUT = ROOT / "experiments-results"
FOUND = "found.json"
"""In the folder of the runs, from the first moment: it is ours, and what was found so far."""


def main(arguments: Sequence[str] | None = None) -> int:
    """A line per part; returns the exit code."""
    asked = build_parser().parse_args(arguments)
    every = [part for experiment in list_experiments() for part in experiment.parts]
    if asked.list:
        print("\n".join(part.full_name for part in every))
        return 0
    known = {name for part in every for name in (part.experiment, part.full_name)}
    if unknown := [name for name in asked.names if name not in known]:
        print("\n".join(_say_unknown(name, known) for name in unknown), file=sys.stderr)
        return 2
    parts = [p for p in every if not asked.names or {p.experiment, p.full_name} & set(asked.names)]
    try:
        with _claim(asked.out), signals_raise():
            return _run_all(parts, every, asked.out, asked.keep)
    except UserError as problem:
        print(problem, file=sys.stderr)
        return 2
    except Interrupted as stop:
        print(f"{stop}: stopped; {asked.out} has what has run, results that were kept stay", file=sys.stderr)
        return stop.code


def _run_all(parts: Sequence[Part], every: Sequence[Part], out: Path, keep: Path) -> int:
    outcomes: list[Outcome] = []
    _write_found(out, outcomes)
    shutil.rmtree(out / "volume", ignore_errors=True)
    for number, part in enumerate(parts, 1):
        print(f"\n=== {number}/{len(parts)} {part.full_name}", flush=True)
        parts_of_it = sum(each.experiment == part.experiment for each in every)
        outcomes.append(run_part(part, out, keep, parts_of_it))
        _write_found(out, outcomes)
    print()
    for outcome in outcomes:
        said = "; ".join(outcome.complaints) or "as it must be"
        print(f"{outcome.part:44} {outcome.seconds:6.0f} s  {said}")
    print(
        f"results: {keep}/*/result, in place of earlier ones where a part is as it must be; pages and runs: {out}"
    )
    return int(any(outcome.complaints for outcome in outcomes))


def _claim(out: Path) -> AbstractContextManager[None]:
    """Holds the folder of the runs, which is emptied: of nobody else, and not while another command is at work in it.

    Raises:
        UserError: it is not ours; on entering, where somebody is at work in it.
    """
    found = out / FOUND
    if out.exists() and any(out.iterdir()) and not found.exists():
        raise UserError(
            f"--out {out}: is not empty and has no {FOUND}; expected a new folder [SL-out-of-others]"
        )
    out.mkdir(parents=True, exist_ok=True)
    found.touch()
    return only_one(found, "python -m experiments")


def _say_unknown(name: str, known: set[str]) -> str:
    near = difflib.get_close_matches(name, sorted(known), n=1)
    hint = f", did you mean {near[0]}?" if near else f": expected of {', '.join(sorted(known))}"
    return f"NAMES={name} is no experiment{hint} [SL-experiment-unknown]"


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
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # of `--list | head`
    sys.exit(main())
