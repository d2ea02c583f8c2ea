"""`stratlab analyze RUN_DIR`: from the traces of a run to its report.

It reads the run directory and writes only `<run>/analysis`, in one step: a temporary folder is filled and renamed.

A run that finished without traces is described by its own measurements. Same files, same fields.
"""

from __future__ import annotations

import json
import os
import shutil
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from stratlab import UserError
from stratlab.analysis.advice import build_recommendations
from stratlab.analysis.hta_bridge import HTA_LIMITS, HtaLimits, HtaRun, build_unread, run_hta
from stratlab.analysis.measure import (
    SHARES,
    Progress,
    RankShare,
    find_shares,
    join_readings,
    measure_traces,
    write_share,
)
from stratlab.analysis.mlflow_upload import log_analysis
from stratlab.analysis.rank import RankAnalysis
from stratlab.analysis.report import build_frame, build_report
from stratlab.analysis.report_pages import build_html, build_markdown, list_recordings
from stratlab.analysis.run_facts import RUNNING, RunFacts, find_gaps, keep_one_source, read_facts
from stratlab.analysis.run_sections import (
    build_layout,
    build_links,
    build_origin_section,
    build_recordings,
    build_training,
)
from stratlab.analysis.summaries import build_origin
from stratlab.analysis.tables import write_tables
from stratlab.drawing import Column, Section, build_page, html_table, note, paragraph
from stratlab.drawing import escape_markdown as escape
from stratlab.run_directory.files import MERGED, PAGE
from stratlab.run_directory.outcome import is_alive
from stratlab.traces.discover import MANIFEST, Found, TraceFinding, find_traces, read_dropped
from stratlab.traces.merge import Clocks, Merged, build_unmerged, find_offsets, merge_traces
from stratlab.wording import format_number

OURS = ("report.json", PAGE, "summary.md", "tables", MERGED, ".report.json.tmp", f".{PAGE}.tmp")


class NoTraces(Exception):
    """The traces of all ranks are missing or unusable. The text gives the reason for every file."""


def analyze_run(
    run_dir: Path,
    *,
    tracking_uri: str | None,
    progress: Progress = lambda sentence: None,
    hta_limits: HtaLimits | None = HTA_LIMITS,
    merge: bool = True,
    shares: int = 0,
) -> dict[str, Any]:
    """Analyze the traces of one run, also partial ones, and write report.json, report.html and tables.

    For a run that finished without traces the report holds the run's own measurements; its `source` has the value
    None.

    Args:
        run_dir: `<results>/<comparison>/<run>`; an earlier analysis in it is replaced.
        tracking_uri: MLflow server that gets the result too; None = none.
        progress: gets one sentence per stage; problems start with `warning:`.
        hta_limits: of Holistic Trace Analysis; None = it is not run.
        merge: write one trace of all ranks.
        shares: the number of shares that `analyze_share` has read; 0 = the traces are read here.

    Returns:
        The content of report.json.

    Raises:
        NoRun: `run_dir` is not a run directory.
        UserError: the folder analysis/ of `run_dir` holds other files, or a share is missing.
        NoTraces: there are traces, or the run did not finish, and no trace can be analysed; an earlier analysis
            stays.
    """
    facts = read_facts(run_dir)
    check_replaceable(run_dir / "analysis")
    found = find_traces(run_dir / "traces", facts.world_size)
    report = analyze_found(
        facts,
        found,
        str(run_dir / "traces"),
        tracking_uri=tracking_uri,
        progress=progress,
        hta_limits=hta_limits,
        merge=merge,
        readings=find_shares(run_dir, shares, found.files, facts.axes) if shares else None,
    )
    if shares:
        shutil.rmtree(run_dir / SHARES, ignore_errors=True)
    return report


def analyze_share(run_dir: Path, share: RankShare, *, progress: Progress = lambda sentence: None) -> Path:
    """Read a share of the traces of one run and write the readings for `analyze_run`; return their folder.

    Raises:
        NoRun: `run_dir` is not a run directory.
    """
    facts = read_facts(run_dir)
    found = find_traces(run_dir / "traces", facts.world_size)
    return write_share(run_dir / SHARES, share, found.files, facts.axes, progress=progress)


def analyze_found(
    facts: RunFacts,
    found: Found,
    place: str,
    *,
    tracking_uri: str | None,
    progress: Progress,
    hta_limits: HtaLimits | None = HTA_LIMITS,
    merge: bool = True,
    readings: Mapping[int, Path | str] | None = None,
    scratch: Path | None = None,
) -> dict[str, Any]:
    """Do the same for traces that are already found; the analysis is written into `facts.folder`.

    Args:
        place: the place of the traces, for sentences.
        readings: readings of `find_shares`; None = the traces are read here.
        scratch: folder of the same file system in which it is made, if not the run's.
    """
    run_dir = facts.folder
    if readings is None:
        measures = measure_traces(found.files, facts.axes, progress=progress)
    else:
        measures = join_readings(found.files, facts.axes, sorted(readings.items()))
    ranks, mixed = keep_one_source(measures.ranks)
    findings = [*facts.findings, *found.findings, *measures.findings]
    findings += [*(finding for rank in ranks for finding in rank.findings), *mixed]
    if not ranks:
        if not facts.summary or any(finding.action == "skipped" for finding in findings):
            raise NoTraces(_explain(place, findings, is_alive(run_dir)))
        report = build_untraced_report(facts, findings)
        with _replace_analysis(run_dir, scratch or run_dir) as folder:
            page, text = build_untraced_html(report, facts), build_untraced_markdown(report, facts)
            _write_files(folder, report, [], page, text)
        return _log(run_dir, report, tracking_uri, progress)
    skipped = {finding.rank for finding in findings if finding.action == "skipped"}
    findings += find_gaps(ranks, facts, found.manifest, skipped)
    for finding in findings:
        if finding.action == "skipped":
            progress(f"warning: {_sentence(finding)}")

    with _replace_analysis(run_dir, scratch or run_dir) as folder:
        (folder / "tables" / "hta").mkdir(parents=True)
        clocks = find_offsets({rank.rank: measures.call_ends_ns[rank.rank] for rank in ranks})
        merged = _merge(ranks, folder / MERGED, clocks, merge, progress)
        hta = _run_hta(ranks, folder / "tables" / "hta", hta_limits, progress)
        report = build_report(facts, ranks, findings, hta, clocks, merged)
        report["recommendations"] = build_recommendations(report, facts)
        _write_files(folder, report, ranks, build_html(report, facts, ranks, folder), build_markdown(report))
    return _log(run_dir, report, tracking_uri, progress)


def _merge(
    ranks: Sequence[RankAnalysis], out: Path, clocks: Clocks, is_wanted: bool, progress: Progress
) -> Merged:
    """Write one trace of several ranks; of one only if Perfetto would hide labels under Python's stack."""
    if not is_wanted:
        return build_unmerged("--no-merge was given [SL-merge-unasked]")
    if len(ranks) == 1 and not ranks[0].has_stacks:
        return build_unmerged("the trace of a single rank is whole by itself [SL-merge-one-rank]")
    progress("one trace of all ranks ...")
    files = {rank.rank: rank.file for rank in ranks}
    try:
        return merge_traces(files, out, offsets_ns=clocks.offsets_ns, progress=progress)
    except OSError as failure:  # by far the largest file: the report may fit without it
        merged = build_unmerged(f"it could not be written: {failure.strerror} [SL-merged-not-written]")
        progress(f"warning: no merged trace, {merged.reason}")
        return merged


def _run_hta(
    ranks: Sequence[RankAnalysis], out: Path, limits: HtaLimits | None, progress: Progress
) -> HtaRun:
    if limits is None:
        return HtaRun([], [], "--no-hta was given [SL-hta-unasked]")
    progress("Holistic Trace Analysis ...")
    if any(rank.of_ascend for rank in ranks):
        hta = build_unread("it does not read traces of Ascend's profiler [SL-hta-ascend]")
    else:
        files = {rank.rank: rank.file for rank in ranks}
        raw_bytes = {rank.rank: rank.raw_bytes for rank in ranks}
        hta = run_hta(files, ranks[0].source == "gpu", raw_bytes, out, limits)
    if hta.reason:
        progress(f"Holistic Trace Analysis: {hta.reason}")
    return hta


@contextmanager
def _replace_analysis(run_dir: Path, scratch: Path) -> Iterator[Path]:
    """Yield a new folder in `scratch` that replaces `run_dir`/analysis when it is filled; it is removed on failure.

    A folder cannot be renamed over a full one, so the old one is moved first.
    """
    folder, target = scratch / f".analysis-{uuid.uuid4().hex[:8]}", run_dir / "analysis"
    aside = target.with_name(f"{folder.name}-old")
    try:
        make_folder(folder)
        yield folder
        if target.exists():
            os.rename(target, aside)
        try:
            os.rename(folder, target)
        except OSError:
            if aside.exists():
                os.rename(aside, target)
            raise
        shutil.rmtree(aside, ignore_errors=True)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _write_files(
    folder: Path, report: dict[str, Any], ranks: Sequence[RankAnalysis], page: str, text: str
) -> None:
    write_tables(folder / "tables", report, ranks)
    (folder / PAGE).write_text(page, encoding="utf-8")
    (folder / "summary.md").write_text(text, encoding="utf-8")
    _write_json(folder / "report.json", report)


def _log(
    run_dir: Path, report: dict[str, Any], tracking_uri: str | None, progress: Progress
) -> dict[str, Any]:
    report["mlflow"] = logged = log_analysis(run_dir, report, tracking_uri)
    if logged["status"] in ("unreachable", "failed"):
        progress(
            f"warning: not logged to MLflow, the report is in {run_dir / 'analysis'}: {logged['reason']} "
            "[SL-analysis-not-logged]"
        )
    elif not tracking_uri and (run_dir / "mlflow.json").is_file():
        progress(
            "the report is not in MLflow: --tracking-uri or MLFLOW_TRACKING_URI adds it to the run there "
            "[SL-analysis-not-in-mlflow]"
        )
    _write_json(run_dir / "analysis" / "report.json", report)
    return report


def _explain(place: str, findings: list[TraceFinding], at_work: bool) -> str:
    lines = [
        f"{place}: no trace can be analysed [SL-no-trace-usable]",
        *(f"  {_sentence(finding)}" for finding in findings),
    ]
    if at_work:
        lines.append(
            f"  {RUNNING}: traces come after step profile_first_step + profile_steps; analyze it again then "
            "[SL-traces-come-later]"
        )
    return "\n".join(lines)


def _sentence(finding: TraceFinding) -> str:
    subject = finding.file or (f"rank {finding.rank}" if finding.rank is not None else "the traces")
    return f"{subject}: {finding.reason}" + (" (skipped)" if finding.action == "skipped" else "")


def _write_json(path: Path, content: dict[str, Any]) -> None:
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.write_text(json.dumps(content, indent=1, allow_nan=False) + "\n")
    os.replace(temporary, path)


def check_replaceable(target: Path) -> None:
    """Check that an analysis replaces only an earlier one."""
    other = sorted(path.name for path in target.iterdir() if path.name not in OURS) if target.is_dir() else []
    if other or (target.exists() and not target.is_dir()):
        raise UserError(
            f"{target}: the analysis would replace {', '.join(other[:3]) or 'this file'}, which is not its own; "
            "move it elsewhere [SL-analysis-of-others]"
        )


def make_folder(folder: Path) -> None:
    """Make the folder and its parents.

    Raises:
        UserError: the place cannot be written.
    """
    try:
        folder.mkdir(parents=True)
    except OSError as failure:
        above = next(place for place in folder.parents if place.exists())
        raise UserError(
            f"{above}: cannot be written ({failure.strerror}), but the analysis belongs there; copy the folder to a "
            "writable place, or give --output for traces of another program [SL-analysis-unwritable]"
        ) from failure


TABLES = {  # title -> numbers of summary.json
    "Step": [
        *("measured_steps", "step_time_ms_p50", "step_time_ms_p95", "data_ms_p50", "forward_ms_p50"),
        *("backward_ms_p50", "optimizer_ms_p50", "samples_per_s", "tokens_per_s", "mfu_pct", "train_time_s"),
    ],
    "Memory of the rank with most": [
        *("parameter_memory_gib", "gradient_memory_gib", "optimizer_memory_gib"),
        *("peak_memory_gib", "peak_reserved_gib", "peak_host_memory_gib"),
    ],
    "Result": [
        *("steps", "train_loss", "validation_loss", "validation_accuracy_pct", "validation_perplexity"),
        *("test_loss", "test_accuracy_pct", "test_perplexity", "skipped_steps", "not_finite_steps"),
    ],
}


def build_untraced_report(facts: RunFacts, findings: Sequence[TraceFinding]) -> dict[str, Any]:
    """Return report.json of a run without traces: all lists empty, `source` None, the reason in `note`."""
    dropped = read_dropped(facts.folder / "traces" / MANIFEST)
    why = "profile_steps is 0" if facts.origin["profile_steps"] == 0 else "traces/ holds none"
    note = f"The traces could not be kept, {dropped}" if dropped else f"Nothing was recorded: {why}"
    return build_frame(facts, findings, note)


def say_untraced(report: Mapping[str, Any]) -> str:
    """Explain why there is no view inside a step, and give the step time by the run's own clock."""
    run = report["run"]
    step_ms, count = run.get("step_time_ms_p50"), run.get("measured_steps")
    if step_ms is None:
        return f"{report['note']}, and no step was measured."
    return f"{report['note']}. A step took {format_number(step_ms)} ms, the median of {format_number(count)}."


def build_untraced_html(report: dict[str, Any], facts: RunFacts) -> str:
    """Return the page: the run's measurements, its losses and its test."""
    sections = [
        Section("Where the time of a step goes", paragraph(say_untraced(report)) + note(_advice(report))),
        *build_layout(report),
        *(Section(title, html_table([row], list(row))) for title, row in _rows(facts)),
        *build_training(facts),
        *build_recordings(report),
        build_origin_section(report),
    ]
    title = f"Analysis of {report['run']['run']}"
    return build_page(title, build_origin(report), sections, links=build_links(report, facts))


def build_untraced_markdown(report: dict[str, Any], facts: RunFacts) -> str:
    """Return the text of summary.md."""
    blocks = [f"# Analysis of {escape(report['run']['run'])}", escape(build_origin(report))]
    blocks += [f"**{escape(say_untraced(report))}**", escape(_advice(report))]
    for title, row in _rows(facts):
        lines = ["| number | value | unit |", "|---|---:|---|"]
        for key, value in row.items():
            name, unit = Column(key).title()
            lines.append(f"| {escape(name)} | {escape(format_number(value))} | {escape(unit)} |")
        blocks += [f"## {title}", "\n".join(lines)]
    return "\n\n".join([*blocks, *list_recordings(report)]) + "\n"


def _rows(facts: RunFacts) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the tables that have a number."""
    for title, names in TABLES.items():
        if row := {name: facts.summary[name] for name in names if facts.summary.get(name) is not None}:
            yield title, row


def _advice(report: Mapping[str, Any]) -> str:
    if report["run"].get("profile_steps") == 0:
        return "With run.config.profile_steps above 0 a few steps are recorded on every rank and taken apart here."
    if report["note"].startswith("The traces"):
        return "With that mended, the run trained anew records them; its other numbers are whole."
    return (
        "An attempt that goes on from a checkpoint behind the steps to be recorded, with too few left, records none; "
        "nor are there traces where they could not be written."
    )
