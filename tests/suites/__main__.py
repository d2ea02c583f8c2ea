"""Runs nightly suites one after the other, and tells how old each result is.

    python -m tests.suites run                     # every suite without a result of this commit
    python -m tests.suites run parity memory       # these
    python -m tests.suites run --smallest          # one small case of each, as CI does
    python -m tests.suites status

`run` writes reports/<suite>.json when a suite ends, so it may be stopped and started again at any time; raw logs lie in
reports/raw/. Exit codes: 0 all passed or were skipped with a reason, 1 one failed, 2 no such suite.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from tests.suites.result import (
    FAILED,
    PASSED,
    SKIPPED,
    Result,
    count_commits_since,
    has_changes,
    judge,
    read_commit,
    read_result,
    write_result,
)
from tests.suites.table import RAW, REPORTS, ROOT, SUITES, Suite
from trainer.distributed.world import processor_name
from trainer.run import read_versions

app = typer.Typer(help=__doc__, add_completion=False, no_args_is_help=True, rich_markup_mode=None)


@app.command()
def run(
    names: Annotated[list[str] | None, typer.Argument(help="suites; all by default", metavar="SUITE")] = None,
    smallest: Annotated[
        bool, typer.Option(help="one small case of each; results stay in reports/raw/")
    ] = False,
    again: Annotated[bool, typer.Option(help="also where this commit has a result")] = False,
    cluster: Annotated[str, typer.Option(help="folder with scripts that start a cluster")] = "",
) -> None:
    """Runs suites; example: python -m tests.suites run parity --again"""
    suites = _choose(names or [])
    folder = RAW / "smallest" if smallest else REPORTS
    ended = []
    for number, suite in enumerate(suites, 1):
        if smallest and suite.smallest is None:
            continue
        known = read_result(folder, suite.name)
        if not again and known and known.result == PASSED and _age(known) == "0" and not has_changes():
            print(f"{suite.name}: passed already at this commit ({known.date})", flush=True)
            ended.append(known)
            continue
        of = f"{number}/{len(suites)}"
        about = "smallest case" if smallest else f"about {suite.minutes} minutes"
        print(f"\n=== {of} {suite.name}: {suite.proves} ({about})", flush=True)
        ended.append(_run(suite, smallest, cluster))
        write_result(folder, ended[-1])
    _print_results(ended)
    sys.exit(any(result.result == FAILED for result in ended))


@app.command()
def status() -> None:
    """Age in commits and result of every suite; example: python -m tests.suites status"""
    table = Table("suite", "result", "age in commits", "date", "seconds", "commit", "proves")
    for suite in SUITES:
        known = read_result(REPORTS, suite.name)
        if known is None:
            table.add_row(suite.name, "never run", "", "", "", "", suite.proves)
            continue
        commit = known.commit[:8] + ("+changes" if known.changed_since_commit else "")
        shown = f"{known.result}: {known.reason}" if known.reason else known.result
        table.add_row(
            suite.name, shown, _age(known), known.date, f"{known.seconds:.0f}", commit, suite.proves
        )
    Console(width=None if sys.stdout.isatty() else 160).print(table)


def _choose(names: list[str]) -> list[Suite]:
    """The suites of these names. Ends the process with 2 where one does not exist."""
    known = {suite.name: suite for suite in SUITES}
    for name in names:
        if name not in known:
            print(f"SUITE={name}: must be one of {', '.join(known)}", file=sys.stderr)
            sys.exit(2)
    return [known[name] for name in names] or list(SUITES)


def _run(suite: Suite, smallest: bool, cluster: str) -> Result:
    """Runs one suite, here and now."""
    words = [*suite.command, *(suite.smallest or () if smallest else ())]
    command = [word.format(python=sys.executable, cluster=cluster) for word in words]
    commit, changed, date, began = read_commit(), has_changes(), datetime.now(UTC), time.monotonic()
    code, output = run_command(command, RAW / ("smallest" if smallest else "") / f"{suite.name}.log")
    seconds = round(time.monotonic() - began, 1)
    result, reason, tests = judge(code, output)
    facts = _read_facts(suite, date)
    versions = facts["versions"] if isinstance(facts, dict) and "versions" in facts else read_versions()
    return Result(
        suite=suite.name, proves=suite.proves, result=result, reason=reason,
        commit=commit, changed_since_commit=changed, date=date.isoformat(timespec="seconds"),
        seconds=seconds, hardware=processor_name(), tests=tests, versions=versions,
        command=" ".join(words).replace("{python}", "python"), facts=facts,
    )  # fmt: skip


def run_command(command: Sequence[str], log: Path) -> tuple[int, str]:
    """Exit code and output, which goes to the terminal and the log too; Ctrl-C ends the command and is passed on."""
    log.parent.mkdir(parents=True, exist_ok=True)
    lines = []
    process = subprocess.Popen(
        list(command), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
        cwd=ROOT, stdin=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
    assert process.stdout
    try:
        with open(log, "w") as file:
            for line in process.stdout:
                lines.append(line)
                file.write(line)
                file.flush()
                print(line, end="", flush=True)
        code = process.wait()
    finally:
        _end_group(process)
    return code, "".join(lines)


def _end_group(process: subprocess.Popen[str]) -> None:
    """Ends what is left of the command's own process group: first with SIGINT, so that it can take down what it
    started (a cluster, say)."""
    for number, seconds in ((signal.SIGINT, 60.0), (signal.SIGKILL, 10.0)):
        if process.poll() is None:
            os.killpg(process.pid, number)
            with suppress(subprocess.TimeoutExpired):
                process.wait(seconds)


def _read_facts(suite: Suite, began: datetime) -> Any:
    """What the suite has written since it began."""
    path = RAW / suite.facts
    if not suite.facts or not path.exists() or path.stat().st_mtime < began.timestamp():
        return None
    if path.suffix == ".jsonl":  # of a program in stages: how each has ended
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        return [line for line in lines if line.get("item") == "end"]
    return json.loads(path.read_text())


def _age(result: Result) -> str:
    """Commits since the result, as text."""
    age = count_commits_since(result.commit)
    return "commit unknown" if age is None else str(age)


def _print_results(results: list[Result]) -> None:
    print()
    for result in results:
        reason = f": {result.reason}" if result.reason else ""
        log = f", log in {(RAW / result.suite).relative_to(ROOT)}.log" if result.result == FAILED else ""
        mark = "SKIPPED: " if result.result == SKIPPED else ""
        print(f"{mark}{result.suite} {result.result}{reason}, {result.seconds:.0f} s{log}", flush=True)


if __name__ == "__main__":
    os.chdir(ROOT)
    app()
