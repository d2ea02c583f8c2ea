"""The verb `stratlab analyze`: its options and its output."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from contextlib import ExitStack, redirect_stdout
from pathlib import Path
from typing import Annotated, Any, NoReturn, TextIO

import typer

from stratlab import NothingThere, UserError
from stratlab.commands import TrackingUri

MISSING = NothingThere.exit_code
NO_HTA = (
    "every analysis of Holistic Trace Analysis failed; the rest of the report is complete [SL-hta-all-failed]"
)


def analyze(
    run_dir: Annotated[
        Path,
        typer.Argument(
            metavar="RUN_DIR|TRACES",
            help="One run: RESULTS/COMPARISON/RUN. Or traces of another program: a folder, a ZIP or tar file, a trace.",
            show_default=False,
        ),
    ],
    tracking_uri: TrackingUri = "",
    output: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="For another program's traces: folder of the analysis; default: NAME-analysis.",
        ),
    ] = None,
    rank_pattern: Annotated[
        str,
        typer.Option(metavar="REGEX", help="Of another program's traces: its group is the rank in a path."),
    ] = "",
    as_json: Annotated[
        bool,
        typer.Option(
            "--json",
            help="As JSON: the report; of another program's traces a list of them; of a share its folder; "
            "in a Job null where another share merges.",
        ),
    ] = False,
    share: Annotated[
        str,
        typer.Option(
            metavar="INDEX/COUNT", help="For a run of many ranks: only read this share of them, 0/2."
        ),
    ] = "",
    shares: Annotated[
        int,
        typer.Option(metavar="COUNT", min=0, help="For a run: merge its shares, this many."),
    ] = 0,
    job: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="For a share: the name that all shares have in common; the last one merges them.",
        ),
    ] = "",
    no_hta: Annotated[bool, typer.Option("--no-hta", help="Without Holistic Trace Analysis.")] = False,
    no_merge: Annotated[bool, typer.Option("--no-merge", help="Without one trace of all ranks.")] = False,
) -> None:
    """Analyze the traces of the run in RUN_DIR, write a report next to them, and add it to the MLflow run.

    The report of a run that finished without traces holds the run's own measurements. Exit code 3: there is no run in
    RUN_DIR, its traces cannot be read, or it did not finish and left none.

    Traces of another program are sorted into experiments, with a folder and a report for each; the source is only read.
    Exit code 3: one of the experiments cannot be analysed, the others are.

    Example: stratlab analyze results/runs/demo/ddp

    Example: stratlab analyze traces.zip --output analysed
    """
    from stratlab.analysis.foreign_traces import is_foreign

    answers: TextIO | None = None
    extras = _build_extras(no_hta, no_merge)
    with ExitStack() as until_the_end:
        if as_json:
            answers = sys.stdout
            until_the_end.enter_context(redirect_stdout(sys.stderr))
        if is_foreign(run_dir):
            for option, value in (("share", share), ("shares", shares), ("job", job)):
                if value:
                    raise UserError(
                        f"--{option} is for a run of this lab; {run_dir} holds other traces [SL-option-for-runs]"
                    )
            _analyze_foreign(run_dir, output, rank_pattern, extras, answers)
            return
        if output or rank_pattern:
            _refuse_option(run_dir, "--output" if output else "--rank-pattern")
        if share and shares:
            raise UserError(
                "give either --share INDEX/COUNT, to read, or --shares COUNT, to merge [SL-share-and-shares]"
            )
        if job and not share:
            raise UserError("--job is for a share: --share INDEX/COUNT [SL-job-without-share]")
        if share and not job:
            _read_share(run_dir, share, answers)
        else:
            _analyze_run(
                run_dir, extras | {"tracking_uri": tracking_uri or None}, share, shares, job, answers
            )


def _refuse_option(run_dir: Path, option: str) -> NoReturn:
    """Reject an option for traces of another program if `run_dir` does not hold such traces."""
    from stratlab.run_directory.files import has_marks
    from stratlab.traces.archives import build_no_source

    if (run_dir / "traces").is_dir() and not has_marks(run_dir):
        raise UserError(
            f"{option} is for traces of another program, and {run_dir} may be a run; give {run_dir / 'traces'} "
            "[SL-output-for-maybe-run]"
        )
    if not run_dir.exists():
        raise build_no_source(run_dir)
    if not has_marks(run_dir):
        raise UserError(
            f"{run_dir}: has no traces; {option} is for traces of another program [SL-output-without-traces]"
        )
    raise UserError(
        f"{option} is for traces of another program; {run_dir} is a run: {run_dir / 'analysis'} "
        "[SL-output-for-run]"
    )


def _build_extras(no_hta: bool, no_merge: bool) -> dict[str, Any]:
    """Return the arguments of the analysis that leave something out."""
    return ({"hta_limits": None} if no_hta else {}) | ({"merge": False} if no_merge else {})


def _analyze_run(
    run_dir: Path, to: dict[str, Any], share: str, shares: int, job: str, answers: TextIO | None
) -> None:
    from stratlab.analysis.measure import parse_share
    from stratlab.analysis.run_analysis import NoTraces, analyze_run, say_untraced
    from stratlab.analysis.run_facts import NoRun
    from stratlab.analysis.share_job import analyze_in_job
    from stratlab.tracking import close_ended_run

    to, tracking_uri = to | {"progress": _say}, to["tracking_uri"]
    try:
        if share:
            report = analyze_in_job(run_dir, parse_share(share), job, **to)
        else:
            report = analyze_run(run_dir, shares=shares, **to)
    except (NoTraces, NoRun) as missing:
        _fail(str(missing), MISSING)
    finally:  # the analysis comes last: a run that is still open in MLflow would stay so
        if tracking_uri and (done := close_ended_run(run_dir, tracking_uri)):
            _say(done)
    _emit(report, answers)
    if report is None:
        return
    if report["source"] is None:
        _say(say_untraced(report))
        _say(f"report: {run_dir / 'analysis' / 'report.html'}")
        return
    if not _show(report, run_dir):
        _fail(NO_HTA, 1)


def _read_share(run_dir: Path, text: str, answers: TextIO | None) -> None:
    from stratlab.analysis.measure import parse_share
    from stratlab.analysis.run_analysis import analyze_share
    from stratlab.analysis.run_facts import NoRun

    share = parse_share(text)
    try:
        folder = analyze_share(run_dir, share, progress=_say)
    except NoRun as missing:
        _fail(str(missing), MISSING)
    _emit({"share": str(folder), "shares": share.count}, answers)
    _say(f"read: {folder}; when all are: stratlab analyze {run_dir} --shares {share.count}")


def _analyze_foreign(
    source: Path,
    output: Path | None,
    rank_pattern: str,
    extras: dict[str, Any],
    answers: TextIO | None,
) -> None:
    from stratlab.analysis.foreign_traces import analyze_foreign, name_output, parse_pattern
    from stratlab.analysis.run_analysis import NoTraces
    from stratlab.traces.archives import ArchiveError

    pattern = parse_pattern(rank_pattern)
    output = output or name_output(source)
    try:
        done = analyze_foreign(source, output, pattern=pattern, progress=_say, **extras)
    except (NoTraces, ArchiveError) as missing:
        _fail(str(missing), MISSING)
    known = [(one, one.report) for one in done if one.report]
    _emit([report for _, report in known], answers)
    whole = True
    for one, report in known:
        _say(f"\nexperiment {one.name}")
        whole = _show(report, one.folder) and whole
    if len(known) > 1:
        _say(f"\nside by side: stratlab compare {output}")
    for one in done:
        if not one.report:
            print(f"error: experiment {one.name}: {one.why}", file=sys.stderr)
    if len(known) < len(done):
        raise typer.Exit(MISSING)
    if not whole:
        _fail(NO_HTA, 1)


def _show(report: Mapping[str, Any], folder: Path) -> bool:
    """Return the answer in short. False if Holistic Trace Analysis has failed in everything."""
    from stratlab.analysis.summaries import build_answer

    if report.get("steps_from") == "recording":
        _say("no label tells the steps: the whole recording counts as one")
    for line in build_answer(report):
        _say(line)
    for entry in report["recommendations"]:
        _say(f"  {entry['severity']}, {entry['rule']}: {entry['title']}")
    _say(f"report: {folder / 'analysis' / 'report.html'}")
    failed = [row for row in report["hta"] if row["status"] == "failed"]
    for row in failed:
        _say(f"warning: Holistic Trace Analysis, {row['analysis']}: {row['reason']}")
    return not failed or any(row["status"] == "ok" for row in report["hta"])


def _emit(content: Any, answers: TextIO | None) -> None:
    """Print the answer of --json."""
    if answers:
        print(json.dumps(content, indent=1), file=answers, flush=True)


def _say(text: str) -> None:
    print(text, flush=True)


def _fail(sentence: str, code: int) -> NoReturn:
    print(f"error: {sentence}", file=sys.stderr)
    raise typer.Exit(code)
