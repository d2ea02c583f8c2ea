"""What a sweep prints before and after its work."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stratlab.number import format_count

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from rich.console import Console
    from rich.table import Table

    from stratlab.sweep.decision import Decision
    from stratlab.sweep.matrix import Release
    from stratlab.sweep.planned_release import Planned
    from stratlab.sweep.state import State
    from stratlab.sweep.sweep import Result
    from stratlab.sweep.tuning_definition import Tune


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


def print_result(console: Console, plan: Sequence[Planned], result: Result, output: Path) -> None:
    """How the releases ended, the comparison, and what went wrong."""
    from stratlab.compare.showing.terminal_table import terminal_table

    console.print(build_result_table(plan, result.state))
    if result.report:
        console.print(terminal_table(result.report, console.width))
        print(f"report: {output / 'report.html'}")
    for problem in result.problems:
        print(f"problem: {problem}")


def say_tuning_plan(tune: Tune, combinations: Mapping[str, Sequence[Release]]) -> str:
    """`tuned first: a, b; each by 4 candidates at most, ...`, and what is left as it comes."""
    tuned = {name: each[0].strategy in tune.knobs for name, each in combinations.items()}
    first = ", ".join(name for name, is_tuned in tuned.items() if is_tuned)
    others = ", ".join(name for name, is_tuned in tuned.items() if not is_tuned)
    text = (
        f"tuned first: {first}; each by {tune.candidates} candidates at most, "
        f"{format_count(tune.repeats, 'run')} of {tune.steps} steps for each"
    )
    return f"{text}\nnot tuned: {others}" if others else text
