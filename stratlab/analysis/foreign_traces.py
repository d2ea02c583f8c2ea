"""`stratlab analyze` of traces that this lab did not make: an analysis for each experiment in a folder or an archive.

The source is only read. Each experiment gets a folder `<output>/<experiment>/` with foreign.json and analysis/, which
`stratlab compare <output>` reads.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stratlab.analysis.analyze import NoTraces, analyze_found
from stratlab.analysis.foreign_places import check_place, check_source, hash_file
from stratlab.analysis.measuring.measure import Progress
from stratlab.analysis.reporting.quality import say_ranks
from stratlab.analysis.reporting.run_facts import build_foreign_facts
from stratlab.run_directory.foreign import write_foreign
from stratlab.traces.archives import OTHER_ENDING, find_archive_stem
from stratlab.traces.discover import Finding, Found
from stratlab.traces.experiments import NOTHING_OF_A_TRACE, Experiment, sort_experiments
from stratlab.traces.rank_hints import find_hints
from stratlab.traces.rank_names import strip_ending
from stratlab.traces.rank_trace import TraceFile
from stratlab.traces.trace_files import collect_files
from stratlab.user_error import UserError

MOST_TOLD = 5  # files that are no traces


@dataclass(frozen=True)
class Analysed:
    """One experiment: its report, or why there is none."""

    name: str
    folder: Path
    report: dict[str, Any] | None = field(repr=False)
    why: str = ""


def name_source(source: Path) -> str:
    """`runs` of runs.zip, of runs/ and of runs.pt.trace.json.gz."""
    name = source.resolve().name
    if source.is_dir():
        return name or "traces"
    return find_archive_stem(name) or strip_ending(name) or name


def name_output(source: Path) -> Path:
    """Where the analysis of `source` goes if nobody says."""
    return Path(f"{name_source(source)}-analysis")


def parse_pattern(text: str) -> re.Pattern[str] | None:
    """Of --rank-pattern; None where it is empty.

    Raises:
        UserError: it is no regular expression, or its first group cannot be a number.
    """
    if not text:
        return None
    said = f"--rank-pattern {text}: expected a regular expression with one group of digits, as 'trace_(\\d+)'"
    code = "[SL-rank-pattern-syntax]"
    try:
        pattern = re.compile(text)
    except re.error as failure:
        raise UserError(f"{said}; {failure} {code}") from failure
    if pattern.groups != 1:
        raise UserError(f"{said} {code}")
    return pattern


def analyze_foreign(
    source: Path,
    output: Path,
    *,
    pattern: re.Pattern[str] | None = None,
    progress: Progress = lambda said: None,
) -> list[Analysed]:
    """Analyses every experiment in `source`; one that cannot be is said to be so, and the others go on.

    Args:
        source: as for `collect_files`.
        output: is made where it is absent; what other sources have left there stays.
        pattern: of `parse_pattern`.

    Raises:
        UserError: `source` or `output` cannot be used.
        ArchiveError: `source` is an archive that is damaged or refused.
        NoTraces: there is no trace in it.
    """
    check_source(source, output)
    with tempfile.TemporaryDirectory(prefix="stratlab-foreign-") as scratch:
        progress(f"{source}: looking for traces ...")
        collected = collect_files(source, Path(scratch))
        found = sort_experiments(collected, name_source(source), pattern)
        if not found.experiments:
            odd = [(name, why) for name, why in found.left_out if why != OTHER_ENDING]
            said = [f"  {name}: {why}" for name, why in odd[:20]] or ["  no .json and no .gz file in it"]
            raise NoTraces("\n".join([f"{source}: no trace in it [SL-source-no-trace]", *said]))
        for sentence in _say_left_out(found.left_out):
            progress(sentence)
        for hint in find_hints(found.experiments):
            progress(f"hint: {hint}")
        for experiment in found.experiments:
            check_place(output / experiment.name, experiment, source)
        done = []
        for number, experiment in enumerate(found.experiments, 1):
            ranks = f"{len(experiment.traces)} traces" if len(experiment.traces) > 1 else "1 trace"
            progress(f"experiment {experiment.name} ({number} of {len(found.experiments)}): {ranks}")
            done.append(_analyze(experiment, source, output / experiment.name, progress))
        return done


def _analyze(experiment: Experiment, source: Path, folder: Path, progress: Progress) -> Analysed:
    if experiment.refused:
        return Analysed(experiment.name, folder, None, experiment.refused)
    findings = [*experiment.findings, *_find_gaps(experiment)]
    facts = build_foreign_facts(folder, experiment.name, experiment.world_size, experiment.backend, [])
    files = {rank: trace.file.path for rank, trace in experiment.traces.items()}
    try:
        report = analyze_found(
            facts, Found(files, findings, None), experiment.name, tracking_uri=None, progress=progress
        )
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


def _find_gaps(experiment: Experiment) -> list[Finding]:
    """Where the traces tell how many ranks there were, the analysis says which are missing."""
    ranks = set(experiment.traces)
    if experiment.world_size is not None:
        return []
    findings = []
    if missing := sorted(set(range(max(ranks))) - ranks):
        why = (
            f"ranks {say_ranks(missing)} have no trace, though rank {max(ranks)} has: the means are over the others "
            "[SL-ranks-below-missing]"
        )
        findings.append(Finding("noted", why))
    return [*findings, Finding("noted", "no trace tells how many ranks there were [SL-world-size-untold]")]


def _say_left_out(left_out: Sequence[tuple[str, str]]) -> list[str]:
    """What is no trace at all in one line; what is damaged or refused in a line each."""
    other = [name for name, why in left_out if why in NOTHING_OF_A_TRACE]
    said = [f"warning: {name}: {why} (skipped)" for name, why in left_out if why not in NOTHING_OF_A_TRACE]
    if other:
        more = f" and {len(other) - MOST_TOLD} more" if len(other) > MOST_TOLD else ""
        said.insert(0, f"no traces, left out: {', '.join(other[:MOST_TOLD])}{more}")
    return said
