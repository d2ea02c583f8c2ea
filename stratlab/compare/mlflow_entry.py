"""Puts the comparison's report beside its runs: one MLflow run of the same experiment, of the kind `comparison`.

Everything is on disk before; a server that is away costs seconds and a sentence.
"""

from __future__ import annotations

import shlex
import sys
import urllib.error
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stratlab.compare.comparison_pod import NOT_THERE
from stratlab.compare.judging.ranking import say_search
from stratlab.compare.judging.sharding import say_sharding
from stratlab.compare.reading.experiment import KIND, KIND_TAG
from stratlab.compare.showing.report_files import FILES
from stratlab.drawing import drop_file_links
from stratlab.machine.certificates import explain_untrusted
from stratlab.machine.own_program import name_program, shorten
from stratlab.run_directory.places import PAGE
from stratlab.run_directory.record import RunRecord
from stratlab.tracking import runs_page
from stratlab.tracking.address import is_of_this_machine
from stratlab.tracking.mlflow_run import impatient
from stratlab.tracking.redirect import describe_redirect, find_redirect, open_directly
from stratlab.tracking.server import run_server
from stratlab.user_error import UserError

if TYPE_CHECKING:
    from mlflow.tracking import MlflowClient

NOTE = "mlflow.note.content"  # the description that MLflow shows of a run and of an experiment
ANSWER_S = 3.0


def log_for_user(
    report: Mapping[str, Any],
    runs: Sequence[RunRecord],
    folder: Path,
    experiment: str | None,
    tracking_uri: str,
    store: Path | None,
) -> str:
    """Log the report to the server of the runs; return the sentence to print, empty where no server is known.

    Args:
        experiment: its name; None = that of the comparison.
        tracking_uri: of the server; empty = the one that the runs were sent to, if it is one and the same.
        store: of a rehearsal, instead: its server runs meanwhile.

    Raises:
        UserError, ServerFailed: the store is none, or its server does not start.
    """
    name = experiment or str(report["comparison"])
    if store:
        if not (store / "mlflow.db").is_file():
            raise UserError(
                f"--mlflow {store}: holds no mlflow.db, name the --mlflow folder of a rehearsal [SL-mlflow-no-store]"
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
    places = _try(report, folder, uri, name)
    if isinstance(places, str):
        return places
    return f"report in MLflow: {uri}/{places.report}\ncharts in MLflow: {uri}/{places.charts}"


def log_to_store(
    report: Mapping[str, Any], folder: Path, uri: str, store: Path, experiment: str | None = None
) -> str:
    """To the server at `uri`, which serves a rehearsal's store for a while; the sentence to print."""
    name = experiment or str(report["comparison"])
    places = _try(report, folder, uri, name)
    if isinstance(places, str):
        return places
    command = f"{name_program()} mlflow {shlex.quote(str(shorten(store)))}"
    return f"report and charts in MLflow, experiment {name}:  {command}"


def _try(report: Mapping[str, Any], folder: Path, uri: str, experiment: str) -> Places | str:
    try:
        return log_comparison(report, folder, uri, experiment)
    except NotLogged as reason:
        return f"{NOT_THERE}: {reason}"


@dataclass(frozen=True)
class Places:
    """Pages of a server, behind its address."""

    report: str
    charts: str


class NotLogged(Exception):
    """Why a report is not in MLflow. It is on the disk all the same."""


def log_comparison(report: Mapping[str, Any], folder: Path, tracking_uri: str, experiment: str) -> Places:
    """Logs the files in `folder`; a second comparison replaces them in the same run.

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
            run_id = _log(client, found.experiment_id, report, folder)
        except (MlflowException, OSError) as failure:
            _check_answers(tracking_uri)  # it may have ended meanwhile
            raise NotLogged(f"{tracking_uri}: {str(failure)[:300]} [SL-report-not-logged]") from failure
    report_page = f"#/experiments/{found.experiment_id}/runs/{run_id}/artifacts"
    return Places(report_page, runs_page.build_place(found.experiment_id))


def describe(report: Mapping[str, Any]) -> str:
    """The answer in Markdown: the verdict, who is best in what, and why the others are slower."""
    headline = report["headline"]
    lines = [f"**{headline['verdict']}**: {headline['reason']}."]
    lines += [f"* {said}" for said in headline["answers"]]
    lines += [f"* {metric}: **{run}**" for metric, run in report["winners"].items() if run]
    found = [*say_search(report["search"]), *say_sharding(report["sharding"])]
    lines += [f"* {said}" for said in found]
    lines += [f"* {remark}" for remark in report["remarks"]]
    lines += [pair["sentence"] for pair in report["attribution"]["pairs"]]
    return "\n\n".join(lines)


def _log(client: MlflowClient, experiment_id: str, report: Mapping[str, Any], folder: Path) -> str:
    wanted = f"tags.`{KIND_TAG}` = '{KIND}'"
    known = client.search_runs([experiment_id], filter_string=wanted, max_results=1)
    tags = {
        KIND_TAG: KIND,
        "verdict": report["headline"]["verdict"],
        "best": ", ".join(f"{metric}: {run}" for metric, run in report["winners"].items() if run) or "nobody",
        NOTE: describe(report),
    }
    run = known[0] if known else client.create_run(experiment_id, run_name=KIND, tags={KIND_TAG: KIND})
    run_id = str(run.info.run_id)
    for name, value in tags.items():
        client.set_tag(run_id, name, value)
    for name in FILES:
        if name == PAGE:  # in MLflow nothing lies beside it
            page = drop_file_links((folder / name).read_text(encoding="utf-8"))
            client.log_text(run_id, page, f"{KIND}/{name}")
        else:
            client.log_artifact(run_id, str(folder / name), KIND)
    client.set_experiment_tag(experiment_id, NOTE, tags[NOTE])
    client.set_experiment_tag(experiment_id, *runs_page.KIND_TAG)
    metrics = {name for run in client.search_runs([experiment_id]) for name in run.data.metrics}
    client.set_experiment_tag(experiment_id, runs_page.TAG, runs_page.build_view(metrics))
    client.set_terminated(run_id)
    return run_id


def _check_answers(uri: str) -> None:
    """Asked before mlflow's client is, whose import alone takes 3 s."""
    try:
        with open_directly(f"{uri.rstrip('/')}/health", ANSWER_S):
            return
    except urllib.error.HTTPError as answer:
        if not 300 <= answer.code < 400:
            return  # it says in its own words what is wrong
        target = find_redirect(uri)
        where = describe_redirect(target) if target else "redirects its callers"
        raise NotLogged(f"{uri} {where} [SL-report-redirect]") from None
    except (OSError, ValueError) as failure:
        if cure := explain_untrusted(failure):
            raise NotLogged(f"{uri}: {cure} [SL-report-untrusted]") from failure
        ended = is_of_this_machine(uri)
        hint = "; that of a rehearsal ends with it, name its store instead: --mlflow FOLDER" if ended else ""
        raise NotLogged(f"{uri} does not answer{hint} [SL-report-server-away]") from failure
