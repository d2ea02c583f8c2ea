"""`stratlab analyze` of traces that this lab did not make: an analysis for each experiment in a folder or an archive.

The source is only read. Each experiment gets a folder `<output>/<experiment>/` with foreign.json and analysis/, which
`stratlab compare <output>` reads.
"""

from __future__ import annotations

import hashlib
import re
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from stratlab import UserError
from stratlab.analysis.hta_bridge import HTA_LIMITS, HtaLimits
from stratlab.analysis.measure import Progress
from stratlab.analysis.run_analysis import NoTraces, analyze_found, check_replaceable
from stratlab.analysis.run_facts import build_foreign_facts, say_ranks
from stratlab.run_directory.files import FOREIGN, MARKS, RUN_FOLDERS, is_run, read_foreign, write_foreign
from stratlab.traces.archives import OTHER_ENDING, collect_files, find_archive_stem
from stratlab.traces.discover import Found, TraceFinding
from stratlab.traces.experiments import (
    NOTHING_OF_A_TRACE,
    Experiment,
    TraceFile,
    find_hints,
    sort_experiments,
)
from stratlab.traces.rank_identity import strip_ending

OURS = {FOREIGN, "analysis"}


def is_foreign(source: Path) -> bool:
    """Return whether `source` may hold traces of another program, and is not a run directory of this lab.

    It is an archive, a file, or a folder without a run's own files. A folder with files in traces/, and otherwise
    only with folders that runs have, is a run that has lost its own files.
    """
    if source.is_file():
        return True
    if not source.is_dir() or _has_marks(source):
        return False
    there = [path for path in source.iterdir() if not path.name.startswith(".")]
    traces = next((path for path in there if path.name == "traces" and path.is_dir()), None)
    if traces is None or any(_is_of_no_run(path) for path in there):
        return any(there)
    inside = list(traces.iterdir())
    return any(path.is_dir() for path in inside) and not any(path.is_file() for path in inside)


def _has_marks(folder: Path) -> bool:
    """Return whether the folder has a run's files; a single config.json may belong to another program."""
    marks = [mark for mark in MARKS if (folder / mark).is_file()]
    return is_run(folder) or marks not in ([], ["config.json"])


def _is_of_no_run(path: Path) -> bool:
    if path.is_dir():
        return path.name not in RUN_FOLDERS
    return find_archive_stem(path.name) is not None


def check_source(source: Path, output: Path) -> None:
    """Check that the source is not a run of this lab, and not the place for results.

    Raises:
        UserError: `source` or `output` cannot be used.
    """
    if source.is_dir():
        runs = sorted(path.name for path in source.iterdir() if path.is_dir() and is_run(path))
        if runs:
            raise UserError(
                f"{source}: a comparison of this lab, not traces of another program; analyze one of its runs: "
                f"{', '.join(str(source / name) for name in runs[:3])} [SL-source-is-comparison]"
            )
        if output.resolve() == source.resolve():
            raise UserError(
                f"--output {output}: expected a folder other than the traces' own [SL-output-is-source]"
            )
    if output.exists() and not output.is_dir():
        raise UserError(f"--output {output}: expected a folder [SL-output-is-file]")


def check_place(folder: Path, experiment: Experiment, source: Path) -> None:
    """Check that an analysis replaces only an earlier one of the same source.

    Raises:
        UserError: `folder` holds something else.
    """
    if not folder.exists():
        return
    there = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else [folder.name]
    other = [name for name in there if name not in OURS and not name.startswith(".analysis-")]
    if other:
        raise UserError(
            f"{folder}: holds {other[0]}, which does not belong to an analysis; choose another --output "
            "[SL-output-of-others]"
        )
    known = read_foreign(folder, [])
    if known and not _is_of(known, experiment, source):
        origin = known.get("source_path") or known.get("source") or "other traces"
        raise UserError(
            f"{folder}: holds the analysis of {origin}; choose another --output [SL-output-other-source]"
        )
    check_replaceable(folder / "analysis")


def _is_of(known: Mapping[str, Any], experiment: Experiment, source: Path) -> bool:
    """Return whether the analysis has this source, which may have changed since, or moved."""
    if known.get("source_path") == str(source.resolve()):
        return True
    rows = [row for row in known.get("traces", []) if isinstance(row, dict)]
    if not rows or not all(isinstance(row.get("sha256"), str) for row in rows):
        return False
    there = {hash_file(trace.file.path) for trace in experiment.traces.values()}
    return {row["sha256"] for row in rows} <= there


def hash_file(path: Path) -> str:
    """Return the file's sha256."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


MOST_TOLD = 5  # files that are not traces


@dataclass(frozen=True)
class Analysed:
    """One experiment: its report, or the reason why it has no report."""

    name: str
    folder: Path
    report: dict[str, Any] | None = field(repr=False)
    why: str = ""


def name_source(source: Path) -> str:
    """Return `runs` of runs.zip, of runs/ and of runs.pt.trace.json.gz."""
    name = source.resolve().name
    if source.is_dir():
        return name or "traces"
    return find_archive_stem(name) or strip_ending(name) or name


def name_output(source: Path) -> Path:
    """Return the default folder of the analysis of `source`."""
    return Path(f"{name_source(source)}-analysis")


def parse_pattern(text: str) -> re.Pattern[str] | None:
    """Parse --rank-pattern; return None if it is empty.

    Raises:
        UserError: it is not a regular expression, or its first group cannot be a number.
    """
    if not text:
        return None
    why = ""
    try:
        if (pattern := re.compile(text)).groups == 1:
            return pattern
    except re.error as failure:
        why = f"; {failure}"
    raise UserError(
        f"--rank-pattern {text}: expected a regular expression with one group of digits, as 'trace_(\\d+)'{why} "
        "[SL-rank-pattern-syntax]"
    )


def analyze_foreign(
    source: Path,
    output: Path,
    *,
    pattern: re.Pattern[str] | None = None,
    progress: Progress = lambda sentence: None,
    hta_limits: HtaLimits | None = HTA_LIMITS,
    merge: bool = True,
) -> list[Analysed]:
    """Analyze every experiment in `source`; a failed one is named, and the others continue.

    Args:
        source: as for `collect_files`.
        output: is made if absent; other sources' results there stay.
        pattern: of `parse_pattern`.
        hta_limits, merge: as for `analyze_run`.

    Raises:
        UserError: `source` or `output` cannot be used.
        ArchiveError: `source` is an archive that is damaged or rejected.
        NoTraces: there is no trace in it.
    """
    check_source(source, output)
    with tempfile.TemporaryDirectory(prefix="stratlab-foreign-") as scratch:
        progress(f"{source}: looking for traces ...")
        collected = collect_files(source, Path(scratch))
        found = sort_experiments(collected, name_source(source), pattern)
        if not found.experiments:
            odd = [(name, why) for name, why in found.left_out if why != OTHER_ENDING]
            reasons = [f"  {name}: {why}" for name, why in odd[:20]] or ["  no .json and no .gz file in it"]
            raise NoTraces("\n".join([f"{source}: no trace in it [SL-source-no-trace]", *reasons]))
        for sentence in _say_left_out(found.left_out):
            progress(sentence)
        for hint in find_hints(found.experiments):
            progress(f"hint: {hint}")
        for experiment in found.experiments:
            check_place(output / experiment.name, experiment, source)
        analyze = partial(
            analyze_found, tracking_uri=None, progress=progress, hta_limits=hta_limits, merge=merge
        )
        done = []
        for number, experiment in enumerate(found.experiments, 1):
            ranks = f"{len(experiment.traces)} traces" if len(experiment.traces) > 1 else "1 trace"
            progress(f"experiment {experiment.name} ({number} of {len(found.experiments)}): {ranks}")
            done.append(_analyze(experiment, source, output / experiment.name, analyze))
        return done


def _analyze(
    experiment: Experiment, source: Path, folder: Path, analyze: Callable[..., dict[str, Any]]
) -> Analysed:
    if experiment.refused:
        return Analysed(experiment.name, folder, None, experiment.refused)
    findings = [*experiment.findings, *_find_gaps(experiment)]
    facts = build_foreign_facts(folder, experiment.name, experiment.world_size, experiment.backend, [])
    files = {rank: trace.file.path for rank, trace in experiment.traces.items()}
    try:
        report = analyze(facts, Found(files, findings, None), experiment.name)
    except NoTraces as failure:
        return Analysed(experiment.name, folder, None, str(failure))
    used = {row["rank"] for row in report["ranks"]}
    write_foreign(
        folder,
        {
            "schema_version": 1,
            "experiment": experiment.name,
            "source": source.resolve().name,
            "source_path": str(source.resolve()),
            "folders": list(experiment.folders),
            "world_size": experiment.world_size,
            "traces": [_describe(rank, t) for rank, t in experiment.traces.items() if rank in used],
        },
    )
    return Analysed(experiment.name, folder, report)


def _describe(rank: int, trace: TraceFile) -> dict[str, Any]:
    return {
        "rank": rank,
        "file": trace.file.shown,
        "rank_from": "only trace" if trace.rank is None else trace.rank_from,
        "bytes": trace.file.path.stat().st_size,
        "sha256": hash_file(trace.file.path),
    }


def _find_gaps(experiment: Experiment) -> list[TraceFinding]:
    """Find missing ranks; if the traces name the number of ranks, the analysis does it instead."""
    ranks = set(experiment.traces)
    if experiment.world_size is not None:
        return []
    findings = []
    if missing := sorted(set(range(max(ranks))) - ranks):
        why = (
            f"ranks {say_ranks(missing)} have no trace, though rank {max(ranks)} has: the means are over the others "
            "[SL-ranks-below-missing]"
        )
        findings.append(TraceFinding("noted", why))
    return [
        *findings,
        TraceFinding("noted", "the number of ranks is not in the traces [SL-world-size-untold]"),
    ]


def _say_left_out(left_out: Sequence[tuple[str, str]]) -> list[str]:
    """Name files that are not traces in one line; damaged or rejected ones in a line each."""
    other = [name for name, why in left_out if why in NOTHING_OF_A_TRACE]
    sentences = [
        f"warning: {name}: {why} (skipped)" for name, why in left_out if why not in NOTHING_OF_A_TRACE
    ]
    if other:
        more = f" and {len(other) - MOST_TOLD} more" if len(other) > MOST_TOLD else ""
        sentences.insert(0, f"no traces, left out: {', '.join(other[:MOST_TOLD])}{more}")
    return sentences
