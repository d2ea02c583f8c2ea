"""Verify that a finished run is complete: its folder, and its numbers in MLflow.

The pod of `helm test` checks the same. MLflow must hold the numbers that the trainer's sender derives from
metrics.jsonl.
"""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from stratlab import NothingThere
from stratlab.machine import name_program, shorten
from stratlab.run_directory.files import (
    FETCHED,
    PAGE,
    check_folder,
    find_pod_logs,
    is_number,
    is_run,
    read_line,
    read_object,
)
from stratlab.run_directory.record import RunRecord, read_run
from stratlab.tracking import IMPATIENT, does_answer, explain_failure, is_of_this_machine
from stratlab_spec.run_directory import NOT_POINTS, find_stored_name, name_metric

if TYPE_CHECKING:
    from mlflow.tracking import MlflowClient


REPORT_PAGES = ("report.html", "report.json", "summary.md")
REPORT_FILES = (*REPORT_PAGES, "tables/schema.json")  # files of every analysis, except the merged trace
Point = tuple[int, int, float]
"""Step, time stamp in ms, value: MLflow stores equal ones once."""


def read_points(lines: Iterable[Mapping[str, Any]]) -> dict[str, set[Point]]:
    """Return metric -> points that the trainer's sender derives from the lines of metrics.jsonl."""
    points: dict[str, set[Point]] = {}
    for line in lines:
        for key, value in line.items():
            if key not in NOT_POINTS and is_number(value):
                name = name_metric(key, line.get("kind"))
                points.setdefault(name, set()).add((line["step"], int(line["t"] * 1000), float(value)))
    return points


def compare_points(expected: Mapping[str, set[Point]], held: Mapping[str, set[Point]]) -> Iterator[str]:
    """Return one sentence per metric if MLflow holds fewer points, or others."""
    for key, points in sorted(expected.items()):
        missing, added = len(points - held[key]), len(held[key] - points)
        if missing or added:
            more = f", and {added} that are not in metrics.jsonl" if added else ""
            yield f"{key}: MLflow has {len(points) - missing} of {len(points)} points{more} [SL-verify-mlflow-points]"


@dataclass(frozen=True)
class Check:
    """Hold one line: subject, state, observation.

    `skipped`: there is no data to check; `warning`: a problem that does not make the run incomplete.
    """

    name: str
    state: Literal["ok", "skipped", "warning", "failed"]
    text: str

    def __str__(self) -> str:
        return f"{self.state:<8}{self.name}: {self.text}"


def verify_run(run_dir: Path, tracking_uri: str | None, *, with_report: bool = True) -> Iterator[Check]:
    """Check one part after the other; change no file.

    Args:
        run_dir: <results>/<comparison>/<run>.
        tracking_uri: the MLflow server; None = the server in mlflow.json.
        with_report: False: no analysis belongs to this run, so that a missing report is not a problem.

    Raises:
        NothingThere: `run_dir` is not a run.
        UserError: it is a file.
    """
    check_folder(run_dir, "the folder of a run")
    run = read_run(run_dir)
    if run.status == "not a run":
        inside = sorted(path.name for path in run_dir.iterdir() if path.is_dir() and is_run(path))
        runs = [f"it holds the runs {', '.join(inside)}; name one of them"] if inside else []
        said = "; ".join([f"{run_dir}: {run.ending}", *runs, *_read_refusals(run_dir)])
        raise NothingThere(f"{said} [SL-verify-no-run]")
    yield _check_files(run)
    yield _check_ranks(run)
    if steps := run.summary.get("not_finite_steps"):
        asked = run.config.get("config", {}).get("on_not_finite")
        yield Check("losses", "warning", f"not finite in {steps} steps (run.config.on_not_finite={asked})")
    yield _check_device(run)
    yield _check_traces(run)
    no_report = Check("report", "skipped", "no analysis belongs to this run")
    yield _check_report(run_dir) if with_report else no_report
    yield from _check_mlflow(run, tracking_uri, with_report)


def _check_files(run: RunRecord) -> Check:
    own_lines = ("analysis/report.json", "traces", "ranks")  # separate lines check these
    missing = [name for name in run.missing if not name.startswith(own_lines)]
    wrong = [*(f"{name} is missing" for name in missing), *run.problems]
    if run.status != "finished":
        wrong.insert(0, f"{run.status}: {run.ending}")
    if wrong:
        return Check("run directory", "failed", f"{'; '.join(wrong)} [SL-verify-files]")
    return Check("run directory", "ok", f"{run.folder}, {run.ending}, {run.summary.get('steps')} steps")


def _check_ranks(run: RunRecord) -> Check:
    world_size = run.config.get("resolved", {}).get("world_size")
    if not isinstance(world_size, int):
        return Check("ranks", "failed", "config.json names no world_size [SL-verify-world-size]")
    done = {rank.get("rank") for rank in run.ranks if rank.get("done") is True}
    if absent := sorted(set(range(world_size)) - done):
        said = (
            f"{len(done)} of {world_size} are done; missing: {', '.join(map(str, absent))} [SL-verify-ranks]"
        )
        return Check("ranks", "failed", said)
    return Check("ranks", "ok", f"all {world_size} are done")


def _check_device(run: RunRecord) -> Check:
    resolved = run.config.get("resolved", {})
    device = f"{resolved.get('device_type')}, {resolved.get('device_name')}"
    asked = run.config.get("config", {}).get("accelerator")
    if asked and resolved.get("device_type") == "cpu":
        said = f"run.accelerator={asked} was set, but it trained on {device} [SL-verify-device]"
        return Check("device", "failed", said)
    return Check("device", "ok", device)


def _read_refusals(run_dir: Path) -> Iterator[str]:
    """Yield the reports of pods that were refused."""
    for path in sorted((run_dir / "pods").glob("*.jsonl")):
        last = read_line((path.read_bytes().splitlines() or [b""])[-1])
        if last.get("event") == "refused":
            yield f"pod {path.stem}: {last.get('reason')} (exit code {last.get('exit_code')}): {last.get('text')}"


def _check_traces(run: RunRecord) -> Check:
    if run.config.get("config", {}).get("profile_steps", 1) == 0:
        return Check("traces", "skipped", "profile_steps is 0")
    path = run.folder / "traces" / "manifest.json"
    left_there = read_object(run.folder / FETCHED, [], {"without": list}).get("without", [])
    if "traces" in left_there and not path.parent.exists():
        return Check("traces", "skipped", "not here; fetched without them (stratlab fetch --with traces)")
    try:
        manifest = json.loads(path.read_bytes())
        files = {Path(entry["file"]).name: int(entry["bytes"]) for entry in manifest["files"]}
        complete = manifest["complete"]
    except OSError:
        return Check("traces", "failed", "traces/manifest.json is missing [SL-verify-no-manifest]")
    except (ValueError, KeyError, TypeError, RecursionError) as failure:
        said = f"traces/manifest.json is not in the trainer's format ({failure!r}) [SL-verify-manifest]"
        return Check("traces", "failed", said)
    if complete is not True:
        said = f"the manifest is not complete; it names {len(files)} files [SL-verify-manifest-part]"
        return Check("traces", "failed", said)
    sizes = {name: _size(path.with_name(name)) for name in files}
    wrong = [f"{name}: {sizes[name]} of {files[name]} bytes" for name in files if sizes[name] != files[name]]
    if wrong:
        return Check("traces", "failed", f"{'; '.join(wrong)} [SL-verify-trace-bytes]")
    return Check("traces", "ok", f"the manifest is complete, {len(files)} files, {sum(files.values())} bytes")


def _check_report(run_dir: Path) -> Check:
    names = [f"analysis/{name}" for name in REPORT_FILES]
    report = read_object(run_dir / "analysis" / "report.json", [], {"merged": dict})
    if merged := report.get("merged", {}).get("file"):
        names.append(f"analysis/{merged}")
    missing = [name for name in names if not _size(run_dir / name)]
    if missing:
        said = f"missing or empty: {', '.join(missing)}; create it with stratlab analyze [SL-verify-report]"
        return Check("report", "failed", said)
    return Check("report", "ok", str(run_dir / names[0]))


def _check_mlflow(run: RunRecord, tracking_uri: str | None, expects_report: bool) -> Iterator[Check]:
    written = read_object(run.folder / "mlflow.json", [])
    uri = tracking_uri or written.get("tracking_uri")
    if not uri:
        yield Check("mlflow", "skipped", "not asked: no tracking URI given and no mlflow.json here")
        return
    if not run.mlflow_run_id:
        said = f"mlflow.json names no run, so that {uri} has no data of it [SL-verify-mlflow-no-run]"
        yield Check("mlflow", "failed", said)
        return
    if not tracking_uri and (run.folder / FETCHED).is_file() and not does_answer(uri):
        yield Check("mlflow", "skipped", f"not asked: {uri} does not answer here; give --tracking-uri")
        return
    if not tracking_uri and is_of_this_machine(uri) and not does_answer(uri):
        yield _explain_ended_server(run.folder, uri)
        return
    for name, value in IMPATIENT.items():
        os.environ.setdefault(name, value)
    from mlflow.exceptions import MlflowException  # the import takes 3 s: only users of a server pay for it
    from mlflow.tracking import MlflowClient

    try:
        yield from _check_mlflow_run(MlflowClient(uri), uri, run, expects_report)
    except MlflowException as failure:
        said = f"{uri}: {explain_failure(uri, failure.message)[:500]} [SL-verify-mlflow-failed]"
        yield Check("mlflow", "failed", said)


def _explain_ended_server(run_dir: Path, uri: str) -> Check:
    """Explain the ended server of a rehearsal; its store is next to the results unless --mlflow set another folder."""
    store = run_dir.resolve().parent.parent.parent / "mlflow"
    has_store = (store / "mlflow.db").is_file()
    if not has_store and not find_pod_logs(run_dir).is_dir():
        said = f"no server answers at {uri}, which only this machine reaches [SL-verify-mlflow-away]"
        return Check("mlflow", "failed", said)
    folder = shlex.quote(str(shorten(store))) if has_store else "FOLDER"
    whose = "its store" if has_store else "its store, the folder that --mlflow named,"
    start = f"start {whose} again ({name_program()} mlflow {folder} --port 5000)"
    given = "give --tracking-uri http://127.0.0.1:5000"
    ended = f"not asked: {uri} has ended with its rehearsal"
    return Check("mlflow", "skipped", f"{ended}; to check it, {start} and {given}")


def _check_mlflow_run(
    client: MlflowClient, uri: str, run: RunRecord, expects_report: bool
) -> Iterator[Check]:
    run_id = run.mlflow_run_id
    assert run_id
    found = client.get_run(run_id)
    status = found.info.status
    yield Check("mlflow run", "ok" if status == "FINISHED" else "failed", f"{run_id} at {uri} is {status}")
    expected = read_points(run.metrics)
    names = {key: find_stored_name(key, found.data.metrics) for key in expected}
    held = {
        key: {(m.step, m.timestamp, float(m.value)) for m in client.get_metric_history(run_id, name)}
        for key, name in names.items()
    }
    differences = list(compare_points(expected, held))
    total = sum(len(points) for points in expected.values())
    if differences or not total:
        text = "; ".join(differences) or "metrics.jsonl lacks numbers [SL-verify-no-numbers]"
        yield Check("mlflow metrics", "failed", text)
    else:
        older = sum(key != name for key, name in names.items())
        said = f"{total} points of {len(expected)} metrics, as in metrics.jsonl"
        said += f"; {older} have the name of an older version" if older else ""
        yield Check("mlflow metrics", "ok", said)
    if not expects_report:
        yield Check("mlflow report", "skipped", "no analysis belongs to this run")
        return
    files = {entry.path for place in ("", "analysis") for entry in client.list_artifacts(run_id, place)}
    if f"analysis/{PAGE}" in files:  # the place of an older version
        files.add(PAGE)
    wanted = [PAGE, *(f"analysis/{name}" for name in REPORT_PAGES if name != PAGE)]
    missing = [name for name in wanted if name not in files]
    text = ", ".join(missing or wanted)
    state: Literal["ok", "failed"] = "failed" if missing else "ok"
    yield Check("mlflow report", state, f"{text}: {'no artifact' if missing else 'artifacts'} of the run")


def _size(path: Path) -> int:
    return path.stat().st_size if path.is_file() else 0
