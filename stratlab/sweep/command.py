"""The verb `stratlab sweep`: its options, and what it prints."""

from __future__ import annotations

import os
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.table import Table

    from stratlab.sweep.decision import Decision
    from stratlab.sweep.planned_release import Planned
    from stratlab.sweep.state import State


def sweep(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The sweep, as YAML.", show_default=False)],
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Render all charts, list the releases, start nothing.")
    ] = False,
    parallel: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=64,
            help="Releases at work at the same time, instead of FILE's; on one node they disturb each other.",
        ),
    ] = None,
    namespace: Annotated[
        str | None, typer.Option("--namespace", "-n", help="Instead of the one in FILE.")
    ] = None,
    retry_failed: Annotated[
        bool, typer.Option("--retry-failed", help="Start runs again that have failed.")
    ] = False,
    stop_on_failure: Annotated[
        bool, typer.Option("--stop-on-failure", help="Start no further run after one that failed.")
    ] = False,
    uninstall: Annotated[
        bool,
        typer.Option(
            "--uninstall",
            help="At the end remove the releases that have ended, also failed ones; results stay.",
        ),
    ] = False,
    output: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Where the report goes; COMPARISON-report if left out."),
    ] = None,
) -> None:
    """Run a matrix of strategies and settings on the cluster, one helm release each, and compare them.

    What is done is kept in FILE.state.json: after Ctrl-C or a crash the same command goes on. Runs that have
    succeeded are not repeated, running ones are joined. Exit code 1: a run failed, or the comparison.

    Example: stratlab sweep examples/sweep.yaml --dry-run
    """
    from rich.console import Console

    from stratlab.cluster.connection import connect
    from stratlab.compare.showing.terminal_table import terminal_table
    from stratlab.machine.interruption import Interrupted, signals_raise
    from stratlab.rendering.helm import find_helm
    from stratlab.sweep.definition import read_sweep
    from stratlab.sweep.planned_release import build_plan, check_settings
    from stratlab.sweep.state import only_one, read_state, state_file
    from stratlab.sweep.sweep import Choices, Site, decide_all, run_sweep, uninstall_ended
    from stratlab.sweep.sweep_display import SweepDisplay
    from stratlab.user_error import UserError

    asked = read_sweep(file)
    space = namespace or asked.namespace
    helm = find_helm()
    console = Console(width=None if Console().is_terminal else 160)
    with SweepDisplay(console) as display, signals_raise(), ExitStack() as until_the_end:
        plan = build_plan(asked, file.parent, helm, display.pass_by)
        display.pass_by("checking the settings of every release")
        if reason := check_settings(plan, os.environ):
            display.say(f"the settings could not be checked beforehand: {reason}")
        if not dry_run:
            until_the_end.enter_context(only_one(state_file(file)))
        state = read_state(state_file(file), asked.comparison, space)
        try:
            site = Site(connect(namespace=space), space, helm)
        except UserError as missing:
            if not dry_run:
                raise
            display.say(f"the cluster was not looked at: {missing}")
            site = None
        todo = decide_all(plan, state, site, retry_failed, display.pass_by) if site else []
        if dry_run or site is None:
            display.print(build_plan_table(plan, todo))
            display.say(
                f"{len(plan)} releases, all charts render, no setting is refused; nothing was started"
            )
            return
        display.say(count_steps(todo))
        choices = Choices(
            parallel=parallel or asked.parallel,
            stop_on_failure=stop_on_failure,
            output=output or Path(f"{asked.comparison}-report"),
        )
        try:
            result = run_sweep(todo, state, site, choices, display)
        except Interrupted:
            display.say(
                f"what runs in the cluster goes on; the same command joins it: {state.file} knows how far"
            )
            raise
        problems = list(result.problems)
        if uninstall:
            problems += uninstall_ended(plan, result.state, site, display.say)
    console.print(build_result_table(plan, result.state))
    if result.report:
        console.print(terminal_table(result.report))
        print(f"report: {choices.output / 'report.html'}")
    if not uninstall:
        print("remove the releases, results stay: stratlab sweep", file, "--uninstall")
    for problem in problems:
        print(f"problem: {problem}")
    raise typer.Exit(1 if problems else 0)


def count_steps(todo: Sequence[tuple[Planned, Decision]]) -> str:
    """`12 releases: 3 skip, 1 join, 8 install`, and why the skipped ones are skipped."""
    steps = [decision.step for _, decision in todo]
    counts = ", ".join(f"{steps.count(step)} to {step}" for step in dict.fromkeys(steps))
    reasons = [f"  {p.release.name} {d.reason}" for p, d in todo if d.step in ("skip", "join", "reinstall")]
    return "\n".join([f"{len(steps)} releases: {counts}", *reasons])


def build_plan_table(plan: Sequence[Planned], todo: Sequence[tuple[Planned, Decision]]) -> Table:
    """What would be started, one row per release; the last column only where a cluster was looked at."""
    from rich.markup import escape
    from rich.table import Table

    table = Table(title="dry run")
    paths = [path for path in plan[0].release.point if path != "strategy"]
    for header in (
        "release",
        "strategy",
        *(path.rpartition(".")[2] for path in paths),
        "repeat",
        "processes",
    ):
        table.add_column(header)
    if todo:
        table.add_column("what would happen")
    for number, planned in enumerate(plan):
        release = planned.release
        cells = [
            release.name,
            release.strategy,
            *(str(release.point[path]) for path in paths),
            str(release.repeat),
        ]
        cells.append(str(planned.facts.processes or ""))
        if todo:
            decision = todo[number][1]
            cells.append(f"{decision.step}: {decision.reason}")
        table.add_row(*map(escape, cells))
    return table


def build_result_table(plan: Sequence[Planned], state: State) -> Table:
    """How each release ended."""
    from rich.markup import escape
    from rich.table import Table

    from stratlab.progress.run_progress import format_seconds

    table = Table(title=escape(f"sweep {state.comparison}"))
    for header in ("release", "result", "time", "what was seen"):
        table.add_column(header)
    for planned in plan:
        entry = state.releases.get(planned.release.name)
        if entry is None:
            table.add_row(planned.release.name, "not started", "", "")
            continue
        time = format_seconds(entry.ended - entry.started) if entry.ended else ""
        table.add_row(*map(escape, (planned.release.name, entry.stage, time, entry.sentence)))
    return table
