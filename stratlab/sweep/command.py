"""The verb `stratlab sweep`: its options, and what it prints."""

from __future__ import annotations

import json
import os
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from stratlab.options import Context, PodResources

CHECKING = "checking the settings of every release"


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
    context: Context = None,
    pod_resources: PodResources = "",
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

    What is done is kept in FILE.state.json: after Ctrl-C or a crash the same command goes on. Runs that have
    succeeded are not repeated, running ones are joined. Exit code 1: a run failed, or the comparison.

    With the key `tune` in FILE each strategy is tuned first, by short runs that form a comparison of their own, and
    the best of each is compared.

    Example: stratlab sweep examples/sweep.yaml --dry-run

    Example: stratlab sweep examples/tuned.yaml --rehearse tuned-rehearsal

    With --context releases go to that cluster, and what is done is kept apart from other clusters'.
    """
    from rich.console import Console

    from stratlab.cluster.connection import connect
    from stratlab.machine.interruption import Interrupted, signals_raise
    from stratlab.rendering.helm import find_helm
    from stratlab.sweep.cluster_place import ClusterPlace
    from stratlab.sweep.definition import list_varied, read_sweep
    from stratlab.sweep.planned_release import build_plan, check_settings, foretell_all
    from stratlab.sweep.rehearsed_sweep import rehearse_sweep
    from stratlab.sweep.state import only_one, read_state, state_file, tuning_file
    from stratlab.sweep.sweep import Choices, Site, decide_all, run_sweep, uninstall_ended
    from stratlab.sweep.sweep_display import SweepDisplay
    from stratlab.sweep.sweep_record import record_plan, record_result
    from stratlab.sweep.sweep_tables import build_plan_table, count_steps, print_result, say_tuning_plan
    from stratlab.sweep.tuning.candidates import name_tuning
    from stratlab.sweep.tuning.tuning_loop import Workbench, check_candidates, tune_strategies
    from stratlab.user_error import UserError

    asked = read_sweep(file)
    space = namespace or asked.namespace
    helm = find_helm()
    console = Console(width=None if Console().is_terminal else 160, stderr=as_json)
    with SweepDisplay(console) as display, signals_raise(), ExitStack() as until_the_end:
        bench = Workbench(asked, file.parent, helm, display)
        plan = build_plan(asked, file.parent, helm, display.pass_by)
        display.pass_by(CHECKING)
        reasons = [
            check_settings(
                plan,
                os.environ,
                lambda waited: display.pass_by(f"{CHECKING}, for {waited:.0f} s"),
                rehearse.expanduser().resolve() / "runs" if rehearse else None,
            ),
            check_candidates(bench) if asked.tune else "",
        ]
        for reason in dict.fromkeys(filter(None, reasons)):
            display.say(f"the settings could not be checked beforehand: {reason}")
        for told in foretell_all(plan):
            display.say(told)
        if rehearse and not dry_run:
            result = rehearse_sweep(
                bench, rehearse, output, retry_failed=retry_failed, stop_on_failure=stop_on_failure
            )
            output = output or rehearse / "report"
            if as_json:
                print(json.dumps(record_result(plan, result, output), indent=1))
            else:
                print_result(console, plan, result, output)
            raise typer.Exit(1 if result.problems else 0)
        if not dry_run:
            until_the_end.enter_context(only_one(state_file(file)))
        where = f"{context}/{space}" if context else space
        state = read_state(state_file(file), asked.comparison, where)
        tuning_state = read_state(tuning_file(file), name_tuning(asked.comparison), where)
        try:
            site = None
            if not rehearse:
                connection = connect(context=context, namespace=space, pod_resources=pod_resources)
                site = Site(connection, space, helm, context)
        except UserError as missing:
            if not dry_run:
                raise
            display.say(f"the cluster was not looked at: {missing}")
            site = None
        if dry_run or site is None:
            todo = decide_all(plan, state, site, retry_failed, display.pass_by) if site else []
            if as_json:
                print(json.dumps(record_plan(plan, todo), indent=1))
            else:
                display.print(build_plan_table(plan, todo))
            if asked.tune:
                display.say(say_tuning_plan(asked.tune, bench.combinations))
            display.say(
                f"{len(plan)} releases, all charts render, "
                f"{'the settings were not looked at' if any(reasons) else 'no setting is refused'}; nothing was started"
                + ("" if rehearse else ", no data or model was looked at")
            )
            return
        record = None
        output = output or Path(f"{asked.comparison}-report")
        most = parallel or asked.parallel
        try:
            if asked.tune:
                releases, record = tune_strategies(
                    bench,
                    ClusterPlace(site, most, display),
                    tuning_state,
                    Path(f"{output}-tuning"),
                    retry_failed=retry_failed,
                )
                plan = build_plan(asked, file.parent, helm, display.pass_by, releases)
            todo = decide_all(plan, state, site, retry_failed, display.pass_by)
            display.say(count_steps(todo))
            choices = Choices(most, stop_on_failure, output, record, list_varied(asked))
            result = run_sweep(todo, state, site, choices, display)
        except Interrupted:
            display.say(
                f"what runs in the cluster goes on; the same command joins it: {state.file} knows how far"
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
        print(json.dumps(record_result(plan, result, output), indent=1))
        raise typer.Exit(1 if problems else 0)
    print_result(console, plan, result, output)
    if not uninstall:
        print("remove the releases, results stay: stratlab sweep", file, "--uninstall")
    raise typer.Exit(1 if problems else 0)
