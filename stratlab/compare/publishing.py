"""Publish a comparison in MLflow, and compare in a pod on a cluster.

log_for_user         one MLflow run of the runs' experiment, of the kind `comparison`, holds the report. The files are
                     on disk before; an unreachable server takes some seconds and prints a warning.
compare_on_cluster   compares in a pod that mounts the results; the report is copied through its log.
"""

from __future__ import annotations

import base64
import hashlib
import io
import json
import re
import shlex
import sys
import tarfile
import tempfile
import urllib.error
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stratlab import NothingThere, UserError
from stratlab import tracking as runs_page
from stratlab.cluster import ClusterError
from stratlab.cluster.pod_template import PodRequest
from stratlab.compare.report_files import FILES
from stratlab.compare.run_sources import KIND, KIND_TAG, is_comparison, list_runs
from stratlab.compare.summary_view import describe, describe_compared
from stratlab.drawing import drop_file_links
from stratlab.machine import explain_untrusted, name_program, shorten
from stratlab.run_directory.files import PAGE
from stratlab.run_directory.record import RunRecord
from stratlab.tracking import describe_redirect, find_redirect, impatient, is_of_this_machine, open_directly
from stratlab.tracking_server import run_server
from stratlab_spec.run_directory import NOTE, OWN, build_note, may_describe

if TYPE_CHECKING:
    from mlflow.entities import Experiment, Run
    from mlflow.tracking import MlflowClient

    from stratlab.cluster.connection import Connection


MARK = b"stratlab-report"
LARGEST_MIB = 32
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
TOO_LARGE = 4
IN_MLFLOW = re.compile(r"(?P<what>report|charts) in MLflow: (?P<server>https?://[^/]+)(?P<path>/.*)")
SERVICE = re.compile(r"http://([a-z0-9-]+):(\d+)")
NOT_THERE = "the report is not in MLflow"
"""Words of `stratlab compare` in the pod."""

# Runs in the pod. argv: the folder of the comparison, the largest archive in MiB, options of the verb.
SCRIPT = f"""
import base64, hashlib, io, subprocess, sys, tarfile
folder, largest_mib = sys.argv[1], int(sys.argv[2])
command = [sys.executable, "-m", "stratlab", "compare", folder, *sys.argv[3:]]
code = subprocess.run(command, stderr=subprocess.STDOUT).returncode
if code:
    sys.exit(code)
buffer = io.BytesIO()
with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
    archive.add(folder + "/report", arcname="report")
data = buffer.getvalue()
if len(data) > largest_mib << 20:
    print(f"the report has {{len(data) >> 20}} MiB")
    sys.exit({TOO_LARGE})
print({MARK.decode()!r}, len(data), hashlib.sha256(data).hexdigest(), flush=True)
for start in range(0, len(data), 3000):
    print(base64.b64encode(data[start : start + 3000]).decode())
"""


def compare_on_cluster(
    connection: Connection,
    namespace: str,
    comparison: str,
    *,
    claim: str | None,
    mount: str,
    image: str,
    output: Path,
    progress: Callable[[str], None],
    options: Sequence[str] = (),
    certificates: str = "",
) -> dict[str, Any]:
    """Compare the runs in `<mount>/<comparison>` on the claim; the report is written there, and into `output`."""
    if not NAME.fullmatch(comparison):
        raise UserError(
            f"{comparison}: with --on-cluster give the name of a comparison, not a folder [SL-on-cluster-name]"
        )
    from stratlab.cluster.volume_pod import (
        run_on_volume,
    )  # Kubernetes' client takes a third of a comparison's CPU time

    check_output(output)
    folder = f"{mount.rstrip('/')}/{comparison}"
    # the network rules let this component reach MLflow
    pod = PodRequest(claim, mount, image, read_only=False, component="comparison", certificates=certificates)
    command = ["python", "-c", SCRIPT, folder, str(LARGEST_MIB), *options]
    finished = run_on_volume(connection, pod, command, progress)
    words, _, payload = finished.output.partition(MARK + b" ")
    said = words.decode(errors="replace").strip()
    refusals = {UserError.exit_code: UserError, NothingThere.exit_code: NothingThere}
    if refusal := refusals.get(finished.exit_code):
        raise refusal(f"on the claim {claim} of namespace {namespace}: {_last_line(said)}")
    if finished.exit_code == TOO_LARGE:
        raise ClusterError(
            f"{_last_line(said)}, more than {LARGEST_MIB}: it stays on the volume, {folder}/report "
            "[SL-report-too-large]"
        )
    if finished.exit_code:
        raise ClusterError(
            f"stratlab compare {folder} ended with {finished.exit_code}: {_tail(said, finished.termination)} "
            "[SL-compare-pod-failed]"
        )
    write_report_folder(unpack_payload(payload), output)
    for sentence in find_mlflow(said, namespace):
        progress(sentence)
    report: dict[str, Any] = json.loads((output / "report.json").read_bytes())
    return report


def find_mlflow(said: str, namespace: str) -> list[str]:
    """Read the pod's output about MLflow: the report's address from this machine, or why it is missing."""
    found, forward = [], ""
    for line in said.splitlines():
        if line.startswith(NOT_THERE):
            found.append(line)
        elif place := IN_MLFLOW.fullmatch(line):
            inside = SERVICE.fullmatch(place["server"])
            server = "http://localhost:5000" if inside else place["server"]
            found.append(f"{place['what']} in MLflow: {server}{place['path']}")
            if inside:
                forward = f"kubectl -n {namespace} port-forward service/{inside[1]} 5000:{inside[2]}"
    return [*found, f"  after {forward}"] if forward else found


def build_options(asked: Mapping[str, str | float | None]) -> list[str]:
    """Return `--name=value` of each set option: in one word, so that no value is taken for an option."""
    return [f"--{name.replace('_', '-')}={value}" for name, value in asked.items() if value is not None]


def unpack_payload(payload: bytes) -> dict[str, bytes]:
    """Return file -> content of the report in the log.

    Raises:
        ClusterError: it is incomplete, or not a report.
    """
    head, _, lines = payload.partition(b"\n")
    try:
        length, digest = head.decode().split()
        data = base64.b64decode(b"".join(lines.split()), validate=True)
        whole = len(data) == int(length) and hashlib.sha256(data).hexdigest() == digest
    except ValueError:
        whole = False
    if not whole:
        raise ClusterError(
            "the report did not arrive whole, the log of the pod was cut; try again [SL-report-cut]"
        )
    files: dict[str, bytes] = {}
    with tarfile.open(fileobj=io.BytesIO(data), mode="r:gz") as archive:
        for member in archive.getmembers():
            path = Path(member.name)
            content = archive.extractfile(member) if member.isfile() else None
            if content and path.parts[0] == "report" and ".." not in path.parts:
                files[str(Path(*path.parts[1:]))] = content.read()
    if "report.json" not in files or "report.html" not in files:
        raise ClusterError(
            f"the pod did not send a report, but: {', '.join(sorted(files)) or 'no file'} [SL-report-not-one]"
        )
    return files


def write_report_folder(files: dict[str, bytes], output: Path) -> None:
    """Write each file whole or not at all; other files in `output` stay, because users may work there."""
    output.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=output, prefix=".report.") as temporary:
        for number, (name, content) in enumerate(files.items()):
            fresh, target = Path(temporary) / str(number), output / name
            page = name == PAGE  # the runs stay on the volume: here its links would lead nowhere
            fresh.write_bytes(drop_file_links(content.decode()).encode() if page else content)
            target.parent.mkdir(parents=True, exist_ok=True)
            fresh.rename(target)


def check_output(output: Path) -> None:
    """Check before a pod is started that only a report is replaced.

    Raises:
        UserError: `output` is something else.
    """
    if not output.exists():
        return
    is_report = all((output / name).is_file() for name in ("report.json", "comparison.csv"))
    if not is_report and not (output.is_dir() and not any(output.iterdir())):
        raise UserError(f"--output {output}: exists, and is not a report of a comparison [SL-output-taken]")


def _last_line(text: str) -> str:
    return text.splitlines()[-1].removeprefix("error: ") if text else "no word from the pod"


def _tail(said: str, termination: str) -> str:
    return "\n".join(said.splitlines()[-15:]) or termination


COMPARED = "\n\n[//]: # (compared)\n\n"
"""In the description of a run, around its comparison's findings: a comment, which pages do not show."""
OLDER = "\n\n---\n\n"
"""The same before version 0.2, at the end."""
ANSWER_S = 3.0


def log_for_user(
    report: Mapping[str, Any],
    runs: Sequence[RunRecord],
    folder: Path,
    experiment: str | None,
    tracking_uri: str,
    store: Path | None,
) -> str:
    """Log the report to the server of the runs; return the sentence to print, empty if no server is known.

    Args:
        experiment: its name; None = the comparison's.
        tracking_uri: of the server; empty = the runs' own server, if all have the same.
        store: of a rehearsal, instead: its server runs meanwhile.

    Raises:
        UserError, ServerFailed: the store is invalid, or its server does not start.
    """
    name = experiment or str(report["comparison"])
    if store:
        if not (store / "mlflow.db").is_file():
            raise UserError(
                f"--mlflow {store}: mlflow.db is missing, name the --mlflow folder of a rehearsal [SL-mlflow-no-store]"
            )
        with run_server(store, progress=lambda text: print(text, file=sys.stderr, flush=True)) as uri:
            return log_to_store(report, folder, uri, store, name)
    known = sorted({run.tracking_uri for run in runs if run.tracking_uri})
    if len(known) > 1 and not tracking_uri:
        sent = f"the runs were sent to {' and '.join(known)}"
        return f"{NOT_THERE}: {sent}; --tracking-uri names one of them [SL-report-several-servers]"
    uri = tracking_uri or "".join(known)
    if not uri:
        return ""
    try:
        places = log_comparison(report, folder, uri, name)
    except NotLogged as reason:
        return f"{NOT_THERE}: {reason}"
    said = [f"report in MLflow: {uri}/{places.report}", f"charts in MLflow: {uri}/{places.charts}"]
    return "\n".join([*said, places.note] if places.note else said)


def log_to_store(
    report: Mapping[str, Any], folder: Path, uri: str, store: Path, experiment: str | None = None
) -> str:
    """Log to the server at `uri`, which serves a rehearsal's store for a while; return the sentence to print."""
    name = experiment or str(report["comparison"])
    try:
        places = log_comparison(report, folder, uri, name)
    except NotLogged as reason:
        return f"{NOT_THERE}: {reason}"
    command = f"{name_program()} mlflow {shlex.quote(str(shorten(store)))}"
    said = f"report and charts in MLflow, experiment {name}:  {command}"
    return f"{said}\n{places.note}" if places.note else said


@dataclass(frozen=True)
class Places:
    """Pages of a server, relative to its address."""

    report: str
    charts: str
    note: str
    """A sentence on runs that an older version has sent, or ""."""


class NotLogged(Exception):
    """Why a report is not in MLflow. It is still on the disk."""


def log_comparison(report: Mapping[str, Any], folder: Path, tracking_uri: str, experiment: str) -> Places:
    """Log the files in `folder`; a second comparison replaces them in the same run.

    Raises:
        NotLogged: the server does not answer, refuses, or has no such experiment.
    """
    _check_answers(tracking_uri)
    with impatient():
        from mlflow.exceptions import MlflowException  # 3 s: only who logs pays
        from mlflow.tracking import MlflowClient

        try:
            client = MlflowClient(tracking_uri)
            found = client.get_experiment_by_name(experiment)
            if found is None:
                raise NotLogged(f"{tracking_uri} has no experiment {experiment} [SL-report-no-experiment]")
            return _log(client, found, report, folder)
        except (MlflowException, OSError) as failure:
            _check_answers(tracking_uri)  # it may have ended meanwhile
            raise NotLogged(f"{tracking_uri}: {str(failure)[:300]} [SL-report-not-logged]") from failure


def _log(client: MlflowClient, experiment: Experiment, report: Mapping[str, Any], folder: Path) -> Places:
    experiment_id = experiment.experiment_id
    runs = list_runs(client, experiment_id)
    known = [run for run in runs if is_comparison(run)]
    run = known[0] if known else client.create_run(experiment_id, run_name=KIND, tags={KIND_TAG: KIND})
    run_id = str(run.info.run_id)
    report_place = runs_page.build_artifact_place(experiment_id, run_id, PAGE)
    charts_place = runs_page.build_place(experiment_id)
    note = build_note(f"{describe(report)}\n\n[Report]({report_place}), [charts]({charts_place})")
    tags = {
        KIND_TAG: KIND,
        "verdict": report["headline"]["verdict"],
        "best": ", ".join(f"{metric}: {run}" for metric, run in report["winners"].items() if run) or "nobody",
        NOTE: note,
    }
    for name, value in tags.items():
        client.set_tag(run_id, name, value)
    for name in FILES:
        if name == PAGE:  # MLflow has no files next to it
            page = drop_file_links((folder / name).read_text(encoding="utf-8"))
            client.log_text(run_id, page, name)
        else:
            client.log_artifact(run_id, str(folder / name), KIND)
    described = experiment.tags.get(NOTE)
    # an older version wrote it without the mark of its own
    if may_describe(described) or (known and described == known[0].data.tags.get(NOTE)):
        client.set_experiment_tag(experiment_id, NOTE, note)
    client.set_experiment_tag(experiment_id, *runs_page.KIND_TAG)
    metrics = {name for each in runs for name in each.data.metrics}
    client.set_experiment_tag(experiment_id, runs_page.TAG, runs_page.build_view(metrics))
    _describe_runs(client, runs, report)
    client.set_terminated(run_id)
    older = sorted(str(each.info.run_name) for each in runs if runs_page.has_older_names(each.data.metrics))
    said = (
        f"{', '.join(older)}: metrics in MLflow have the names of an older version; stratlab metrics replay and "
        "stratlab analyze add the new ones [SL-mlflow-older-names]"
    )
    return Places(report_place, charts_place, said if older else "")


def _describe_runs(client: MlflowClient, runs: Sequence[Run], report: Mapping[str, Any]) -> None:
    """Insert the comparison's findings after the first paragraph of each run's own description."""
    names = {row["mlflow_run_id"]: row["run"] for row in report["runs"]}
    for run in runs:
        note = run.data.tags.get(NOTE, "")
        if run.info.run_id in names and may_describe(note):
            before, _, rest = note.removesuffix(OWN).partition(OLDER)[0].partition(COMPARED)
            own, _, more = f"{before}\n\n{rest.partition(COMPARED)[2]}".partition("\n\n")
            found = describe_compared(report, names[run.info.run_id])
            parts = (own.strip(), found, more.strip())
            client.set_tag(run.info.run_id, NOTE, build_note(COMPARED.join(parts)))


def _check_answers(uri: str) -> None:
    """Check the server before mlflow's client is imported, because that takes 3 s."""
    try:
        with open_directly(f"{uri.rstrip('/')}/health", ANSWER_S):
            return
    except urllib.error.HTTPError as answer:
        if not 300 <= answer.code < 400:
            return  # its own message explains the error
        target = find_redirect(uri)
        where = describe_redirect(target) if target else "redirects its callers"
        raise NotLogged(f"{uri} {where} [SL-report-redirect]") from None
    except (OSError, ValueError) as failure:
        if cure := explain_untrusted(failure):
            raise NotLogged(f"{uri}: {cure} [SL-report-untrusted]") from failure
        ended = is_of_this_machine(uri)
        hint = "; that of a rehearsal ends with it, name its store instead: --mlflow FOLDER" if ended else ""
        raise NotLogged(f"{uri} does not answer{hint} [SL-report-server-away]") from failure
