"""The verb `stratlab sweep`: its options, and its output before and after its work."""

from __future__ import annotations

import os
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stratlab import UserError
from stratlab.commands import Context, PodResources, open_console, print_json
from stratlab.wording import format_count

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rich.console import Console
    from rich.table import Table

    from stratlab.progress import SweepDisplay
    from stratlab.sweep.definition import Tune
    from stratlab.sweep.execution import Result
    from stratlab.sweep.planned_release import Planned, Release
    from stratlab.sweep.state import Decision, State


CHECKING = "checking the settings of every release"


def build_plan_table(plan: Sequence[Planned], todo: Sequence[tuple[Planned, Decision]]) -> Table:
    """Return one row per release to start; the last column only if a cluster was checked."""
    from rich.markup import escape
    from rich.table import Table

    paths = [path for path in plan[0].release.point if path != "strategy"]
    headers = ["release", "strategy", *(path.rpartition(".")[2] for path in paths), "repeat", "processes"]
    table = Table(*headers, *["what would happen"] * bool(todo), title="dry run")
    for number, planned in enumerate(plan):
        release = planned.release
        cells = [release.name, release.strategy, *(str(release.point[path]) for path in paths)]
        cells += [str(release.repeat), str(planned.facts.processes or "")]
        if todo:
            decision = todo[number][1]
            cells.append(f"{decision.step}: {decision.reason}")
        table.add_row(*map(escape, cells))
    return table


def build_result_table(plan: Sequence[Planned], state: State) -> Table:
    """Return how each release ended."""
    from rich.markup import escape
    from rich.table import Table

    from stratlab.progress import format_seconds

    table = Table("release", "result", "time", "what was seen", title=escape(f"sweep {state.comparison}"))
    for planned in plan:
        entry = state.releases.get(planned.release.name)
        if entry is None:
            table.add_row(planned.release.name, "not started", "", "")
            continue
        time = format_seconds(entry.ended - entry.started) if entry.ended else ""
        table.add_row(*map(escape, (planned.release.name, entry.stage, time, entry.sentence)))
    return table


def print_result(console: Console, plan: Sequence[Planned], result: Result, output: Path) -> None:
    """Print the outcome of the releases, the comparison, and problems."""
    from stratlab.compare.terminal_view import build_screen

    console.print(build_result_table(plan, result.state))
    if result.report:
        console.print(build_screen(result.report, console.width))
        print(f"\nreport: {output / 'report.html'}")
    for problem in result.problems:
        print(f"problem: {problem}")


def say_tuning_plan(tune: Tune, combinations: Mapping[str, Sequence[Release]]) -> str:
    """Return `tuned first: a, b; each by 4 candidates at most, ...`, and the strategies that stay untuned."""
    tuned = {name: each[0].strategy in tune.knobs for name, each in combinations.items()}
    first = ", ".join(name for name, is_tuned in tuned.items() if is_tuned)
    others = ", ".join(name for name, is_tuned in tuned.items() if not is_tuned)
    text = (
        f"tuned first: {first}; each by {tune.candidates} candidates at most, "
        f"{format_count(tune.repeats, 'run')} of {tune.steps} steps for each"
    )
    return f"{text}\nnot tuned: {others}" if others else text


def _say_waiting(display: SweepDisplay, waited_s: float) -> None:
    display.pass_by(f"{CHECKING}, for {waited_s:.0f} s")


def sweep(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The sweep, as YAML.", show_default=False)],
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Render all charts and list the releases without starting them.")
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
    context: Context = None,
    pod_resources: PodResources = "",
    retry_failed: Annotated[
        bool, typer.Option("--retry-failed", help="Start runs again that have failed.")
    ] = False,
    stop_on_failure: Annotated[
        bool, typer.Option("--stop-on-failure", help="Stop after a run that failed.")
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
        typer.Option(metavar="FOLDER", help="Folder of the report; default: COMPARISON-report."),
    ] = None,
    rehearse: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Run all of it on this machine, without a cluster; runs, state and reports go there.",
        ),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="As JSON, at the end: an object with the releases.")
    ] = False,
) -> None:
    """Run a matrix of strategies and settings on the cluster, one helm release each, and compare them.

    FILE.state.json keeps the progress: after Ctrl-C or a crash the same command resumes. Runs that have succeeded are
    not repeated, running ones are joined. Exit code 1: a run failed, or the comparison.

    With the key `tune` in FILE each strategy is tuned first, by short runs that form a comparison of their own, and
    the best of each is compared.

    Example: stratlab sweep examples/sweep.yaml --dry-run

    Example: stratlab sweep examples/tuned.yaml --rehearse tuned-rehearsal

    With --context releases are installed in that cluster, and its progress is kept apart from other clusters'.
    """
    from stratlab.cluster.connection import connect
    from stratlab.compare.publishing import check_output
    from stratlab.helm import find_helm
    from stratlab.machine import Interrupted, signals_raise
    from stratlab.progress import SweepDisplay
    from stratlab.sweep.definition import list_varied, read_sweep
    from stratlab.sweep.execution import (
        ClusterPlace,
        carry_out,
        decide_all,
        record_plan,
        record_result,
        rehearse_sweep,
        uninstall_ended,
    )
    from stratlab.sweep.helm_release import Site
    from stratlab.sweep.planned_release import build_sweep_plan, check_settings, foretell_all
    from stratlab.sweep.state import only_one, read_state, state_file, tuning_file
    from stratlab.sweep.tuning_loop import Workbench, check_candidates, tune_strategies
    from stratlab.sweep.tuning_search import name_tuning

    asked, helm = read_sweep(file), find_helm()
    space = namespace or asked.namespace
    options: Any = {"retry_failed": retry_failed, "stop_on_failure": stop_on_failure}
    console = open_console(stderr=as_json)
    with SweepDisplay(console) as display, signals_raise(), ExitStack() as until_the_end:
        bench = Workbench(asked, file.parent, helm, display)
        plan = build_sweep_plan(asked, file.parent, helm, display.pass_by)
        display.pass_by(CHECKING)
        here = rehearse.expanduser().resolve() / "runs" if rehearse else None
        reason, notes = check_settings(plan, os.environ, partial(_say_waiting, display), here)
        reasons = [reason, *([check_candidates(bench)] if asked.tune else [])]
        for reason in dict.fromkeys(filter(None, reasons)):
            display.say(f"the settings could not be checked beforehand: {reason}")
        for told in (*notes, *foretell_all(plan)):
            display.say(told)
        if rehearse and not dry_run:
            result = rehearse_sweep(bench, rehearse, output, **options)
            output = output or rehearse / "report"
            if as_json:
                print_json(record_result(plan, result, output))
            else:
                print_result(console, plan, result, output)
            raise typer.Exit(1 if result.problems else 0)
        if not dry_run:
            until_the_end.enter_context(only_one(state_file(file)))
        where = f"{context}/{space}" if context else space
        state = read_state(state_file(file), asked.comparison, where)
        tuning_state = read_state(tuning_file(file), name_tuning(asked.comparison), where)
        site = None
        try:
            if not rehearse:
                connection = connect(context=context, namespace=space, pod_resources=pod_resources)
                site = Site(connection, space, helm, context)
        except UserError as missing:
            if not dry_run:
                raise
            display.say(f"the cluster was not looked at: {missing}")
        if dry_run or site is None:
            todo = decide_all(plan, state, site, retry_failed, display.pass_by) if site else []
            if as_json:
                print_json(record_plan(plan, todo))
            else:
                display.print(build_plan_table(plan, todo))
            if asked.tune:
                display.say(say_tuning_plan(asked.tune, bench.combinations))
            looked = "the settings were not looked at" if any(reasons) else "no setting is refused"
            unseen = "" if rehearse else ", without checking data or model"
            display.say(f"{len(plan)} releases, all charts render, {looked}; not started{unseen}")
            return
        record, output = None, output or Path(f"{asked.comparison}-report")
        place = ClusterPlace(site, parallel or asked.parallel, display)
        try:
            if asked.tune:
                releases, record = tune_strategies(
                    bench, place, tuning_state, Path(f"{output}-tuning"), retry_failed=retry_failed
                )
                plan = build_sweep_plan(asked, file.parent, helm, display.pass_by, releases)
            check_output(output)
            kept: Any = {"tuning": record, "varied": list_varied(asked)}
            result = carry_out(replace(place, counts=True), plan, state, output, **options, **kept)
        except Interrupted:
            display.say(
                f"runs in the cluster continue; the same command joins them: {state.file} knows how far"
            )
            raise
        problems = list(result.problems)
        if uninstall:
            if asked.tune:  # the state as the candidates left it
                tuning_state = read_state(tuning_file(file), name_tuning(asked.comparison), where)
                problems += uninstall_ended(tuning_state.releases, tuning_state, site, display.say)
            names = [planned.release.name for planned in plan]
            problems += uninstall_ended(names, result.state, site, display.say)
    result = replace(result, problems=problems)
    if as_json:
        print_json(record_result(plan, result, output))
        raise typer.Exit(1 if problems else 0)
    print_result(console, plan, result, output)
    if not uninstall:
        print("remove the releases, results stay: stratlab sweep", file, "--uninstall")
    raise typer.Exit(1 if problems else 0)
