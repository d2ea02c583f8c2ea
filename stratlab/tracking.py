"""Use MLflow from all commands: check the server's address, explain failures, close and delete runs, build views.

MLflow's client follows redirects unless MLFLOW_ALLOW_HTTP_REDIRECTS is false, and then turns a POST into a GET
(requests, 301 and 302): no data would be written, and the error would be misleading. So a redirect is never followed;
the error names the address to set.

The trainer's launcher closes a run in MLflow. If it was killed, or its server was unreachable, the run stays RUNNING.
Then the waiter closes it after a failure, or the analysis at its own end.

MLflow's page of runs shows a view of a comparison with the numbers that decide. MLflow stores it as a tag of the
experiment, in JSON with the names of its page (MLflow 3.17; a version without these names shows its own view).
"""

from __future__ import annotations

import json
import os
import re
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from stratlab import UserError
from stratlab.machine import explain_untrusted
from stratlab.run_directory.files import read_object
from stratlab.run_directory.outcome import STOPPED_FROM_OUTSIDE, has_ended, look, read_attempts
from stratlab_spec.run_directory import (
    DETAIL,
    LONGEST_TAG,
    NOTE,
    build_note,
    describe_run,
    find_stored_name,
    may_describe,
)


def check_tracking_uri(uri: str) -> str:
    """Return the address, "" for none; a callback of typer.

    Raises:
        UserError: it is not the address of a server, or holds a login, which reports and logs would reveal.
    """
    try:
        parts = urllib.parse.urlsplit(uri)
        login, host = "@" in parts.netloc, parts.hostname
    except ValueError:
        login, host = "@" in uri, None
    if login:
        raise UserError(
            "--tracking-uri (or MLFLOW_TRACKING_URI): holds a login, which would appear in reports and logs; "
            "set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or MLFLOW_TRACKING_TOKEN, instead "
            "[SL-tracking-uri-login]"
        )
    if uri and (not host or parts.scheme not in ("http", "https")):
        raise UserError(
            f"--tracking-uri (or MLFLOW_TRACKING_URI) {uri!r}: expected the address of a server, http://host:port "
            "[SL-tracking-address]"
        )
    return uri


def find_run_page(uri: str | None, experiment_id: str | None, run_id: str | None) -> str:
    """Return the address of a run's page on a tracking server, for a link; "" if other machines cannot reach it.

    The address has no login and no text after its path, which may be a secret. A server on this machine belongs to a
    rehearsal and ends with it.
    """
    if not (uri and experiment_id and run_id) or is_of_this_machine(uri):
        return ""
    try:
        parts = urllib.parse.urlsplit(uri)
    except ValueError:
        return ""
    host = parts.netloc.rpartition("@")[2]
    if parts.scheme not in ("http", "https") or not host:
        return ""
    place = f"#/experiments/{urllib.parse.quote(str(experiment_id))}/runs/{urllib.parse.quote(str(run_id))}"
    return f"{parts.scheme}://{host}{parts.path.rstrip('/')}/{place}"


def is_of_this_machine(uri: str) -> bool:
    """Return whether only this machine reaches the server, such as a rehearsal's, which ends with it."""
    try:
        return urllib.parse.urlsplit(uri).hostname in ("127.0.0.1", "localhost", "::1")
    except ValueError:  # not an address
        return False


REFUSED = {"MLFLOW_ALLOW_HTTP_REDIRECTS": "false"}
"""Environment of MLflow's client without redirects."""

API = "/api/2.0/mlflow/"
TIMEOUT_S = 10.0
OF_MLFLOW = re.compile(r"failed with error code 3\d\d")


class _RefusedRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *redirect: Any) -> None:
        return None


def open_directly(url: str, timeout_s: float) -> Any:
    """Open like urllib.request.urlopen, but raise HTTPError for a redirect."""
    return urllib.request.build_opener(_RefusedRedirects).open(url, timeout=timeout_s)


def does_answer(tracking_uri: str, timeout_s: float = 3.0) -> bool:
    """Return whether a server answers, with any status."""
    try:
        with open_directly(f"{tracking_uri.rstrip('/')}/health", timeout_s):
            return True
    except urllib.error.HTTPError:
        return True
    except (OSError, ValueError):
        return False


def explain_failure(tracking_uri: str, failure: str) -> str:
    """Return MLflow's own message, or the setting to change if the server redirects or is not trusted."""
    if cure := explain_untrusted(failure):
        return cure
    if not OF_MLFLOW.search(failure):
        return failure
    target = find_redirect(tracking_uri)
    return describe_redirect(target) if target else failure


def find_redirect(tracking_uri: str) -> str | None:
    """Return the target of an API call's redirect, without a login; None = no redirect, or no answer."""
    url = f"{tracking_uri.rstrip('/')}{API}experiments/search?max_results=1"
    try:
        with open_directly(url, TIMEOUT_S):
            return None
    except urllib.error.HTTPError as answer:
        location = answer.headers.get("Location")
        return urllib.parse.urljoin(url, location) if location and 300 <= answer.code < 400 else None
    except (OSError, ValueError):
        return None


def describe_redirect(target: str) -> str:
    """Describe the solution, without a login or the tokens of a login page."""
    parts = urllib.parse.urlsplit(target)
    server, api, _ = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}".partition(API)
    if api:
        return f"redirects to {server}: set run.mlflow.trackingUri to {server}"
    return f"redirects to {server}, which is not an MLflow server: set run.mlflow.trackingUri to the address behind it"


IMPATIENT = {
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",  # else 246 s per call
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",  # it would cross stratlab's own lines
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",  # the server may end with the command
    "MLFLOW_DISABLE_TELEMETRY": "true",  # its thread changes os.environ in the middle of a request (3.17.2)
    **REFUSED,
}


def close_run(run_dir: Path, tracking_uri: str, *, exit_code: int | None) -> str:
    """End the MLflow run if it is still RUNNING; return the result in one sentence, "" = no change.

    Args:
        exit_code: of the run; 0 makes it FINISHED, the code of a stopped run KILLED, other codes and None = unknown
        FAILED.
    """
    run_id = read_run_id(run_dir / "mlflow.json")
    if not run_id:
        return ""
    status = {0: "FINISHED", STOPPED_FROM_OUTSIDE: "KILLED"}.get(
        -1 if exit_code is None else exit_code, "FAILED"
    )
    with impatient():
        from mlflow.exceptions import (
            MlflowException,
        )  # the import takes 3 s: only users of a server pay for it
        from mlflow.tracking import MlflowClient

        try:
            client = MlflowClient(tracking_uri)
            run = client.get_run(run_id)
            if run.info.status != "RUNNING":
                return ""
            if may_describe(run.data.tags.get(NOTE)):
                last = read_attempts(run_dir)[-1:]
                ended = last[0] if has_ended(last) else {"reason": "the launcher has not recorded its end"}
                summary = read_object(run_dir / "summary.json", [])
                note = build_note(describe_run({**ended, "exit_code": exit_code}, summary))
                client.set_tag(run_id, NOTE, note)
            client.set_terminated(run_id, status)
        except (MlflowException, OSError) as failure:
            reason = explain_failure(tracking_uri, str(failure))
            return f"warning: the MLflow run {run_id} could not be closed: {tracking_uri}: {reason[:300]}"
    return f"the MLflow run {run_id} was still RUNNING, it is {status} now"


def delete_run(run_dir: Path, tracking_uri: str = "") -> str:
    """Delete the MLflow run of the folder; return the result in one sentence, "" = the folder names no run.

    MLflow keeps deleted runs until `mlflow gc`.

    Args:
        tracking_uri: "" = the run's own server.

    Raises:
        UserError: the server is unreachable or refuses; no change was made.
    """
    run_id = read_run_id(run_dir / "mlflow.json")
    if not run_id:
        return ""
    uri = tracking_uri or str(read_object(run_dir / "mlflow.json", []).get("tracking_uri", ""))
    with impatient():
        from mlflow.exceptions import (
            MlflowException,
        )  # the import takes 3 s: only users of a server pay for it
        from mlflow.tracking import MlflowClient

        try:
            MlflowClient(uri).delete_run(run_id)
        except (MlflowException, OSError) as failure:
            if getattr(failure, "error_code", "") == "RESOURCE_DOES_NOT_EXIST":
                return f"the MLflow run {run_id} does not exist any more"
            reason = explain_failure(uri, str(failure))
            raise UserError(
                f"{run_dir}: was not removed: MLflow run {run_id} could not be deleted: {uri}: {reason[:300]} "
                "[SL-mlflow-run-stays]"
            ) from failure
    return f"the MLflow run {run_id} is deleted"


def close_ended_run(run_dir: Path, tracking_uri: str) -> str:
    """Close the run as `close_run` does, if its files record its end."""
    outcome = look(run_dir, quiet=True)
    return close_run(run_dir, tracking_uri, exit_code=outcome.exit_code) if outcome.ended else ""


def read_run_id(path: Path) -> str | None:
    """Return the run that mlflow.json names."""
    run_id: str | None = read_object(path, [], {"run_id": str}).get("run_id")
    return run_id


@contextmanager
def impatient() -> Iterator[None]:
    """Set short waits for an unreachable server, unless the user has set others."""
    with environment({name: value for name, value in IMPATIENT.items() if name not in os.environ}):
        yield


@contextmanager
def environment(values: Mapping[str, str]) -> Iterator[None]:
    """Set these variables temporarily."""
    before = {name: os.environ[name] for name in values if name in os.environ}
    os.environ.update(values)
    try:
        yield
    finally:
        for name in values:
            os.environ.pop(name, None)
        os.environ.update(before)


NAME = "stratlab"
TAG = f"mlflow.sharedViewState.{NAME}"
KIND_TAG = ("mlflow.experimentKind", "custom_model_development")
"""Without this tag MLflow opens an experiment with its pages for language model applications."""
ONLY_RUNS = "tags.strategy LIKE '%'"
"""The report itself is a run of the experiment too, without a strategy."""

TRACE = f"{DETAIL}trace/"
"""Prefix of metrics that an analysis adds."""
SECTIONS: dict[str, tuple[tuple[str, ...], ...]] = {
    "What decides": (
        ("samples_per_s",),
        ("tokens_per_s",),
        ("state_memory_gib",),
        ("peak_memory_gib",),
        ("state_memory_gib", "samples_per_s"),
        ("peak_memory_gib", "samples_per_s"),
        ("test_accuracy_pct",),
        ("test_perplexity",),
        ("test_loss",),
        ("step_time_ms_p50",),
        ("comm_exposed_pct",),
        ("mfu_pct",),
    ),
    "Learning": (("loss",), ("validation_loss",), ("validation_accuracy_pct",), ("validation_perplexity",)),
    "Where the recorded steps go": (
        (f"{TRACE}compute_pct",),
        (f"{TRACE}comm_exposed_pct",),
        (f"{TRACE}straggler_pct",),
        (f"{TRACE}bubble_pct",),
        (f"{TRACE}idle_pct",),
        ("step_time_ms",),
        ("wire_bytes_per_step",),
    ),
    "Cost": (("train_time_s",), ("time_to_target_s",), ("train_energy_wh",), ("peak_host_memory_gib",)),
}
"""Charts: one metric as bars, or as a line if it has steps; two metrics as a plot of the second against the first."""
LINES = {"loss", "validation_loss", "validation_accuracy_pct", "validation_perplexity", "step_time_ms"}
COLUMNS = (
    "params.`strategy`",
    *(f"metrics.`{name}`" for name in (
        "samples_per_s", "tokens_per_s", "step_time_ms_p50", "state_memory_gib", "peak_memory_gib", "mfu_pct",
        "comm_exposed_pct", "test_accuracy_pct", "test_perplexity",
    )),
    "tags.`trace_main_loss`",
)  # fmt: skip


def build_view(metrics: Collection[str]) -> str:
    """Return the tag's value for runs with these metrics; leave out charts without a number.

    If a metric exists only under an older name, the chart uses that name.
    """
    charts = [
        {"metricSectionId": str(section), **_build_chart(stored)}
        for section, wanted in enumerate(SECTIONS.values())
        for names in wanted
        if set(stored := tuple(find_stored_name(name, metrics) for name in names)) <= set(metrics)
    ]
    state = {
        "searchFilter": ONLY_RUNS,
        "orderByKey": "attributes.start_time",
        "orderByAsc": False,
        "selectedColumns": [one for one in COLUMNS if _is_there(one, metrics)],
        "compareRunSections": [
            {"uuid": str(section), "name": title, "display": True, "isReordered": True}
            for section, title in enumerate(SECTIONS)
        ],
        "compareRunCharts": [{"uuid": str(number), **chart} for number, chart in enumerate(charts)],
        "isAccordionReordered": True,
    }
    view = json.dumps(state, separators=(",", ":"))
    assert len(view) <= LONGEST_TAG, len(view)
    return view


def has_older_names(metrics: Collection[str]) -> bool:
    """Return whether a run has a number of the charts only under a name of an older version."""
    return any(
        find_stored_name(name, metrics) != name for charts in SECTIONS.values() for (name, *_) in charts
    )


def build_place(experiment_id: str) -> str:
    """Return the path of the page with this view, after the server's address."""
    return f"#/experiments/{experiment_id}/runs?compareRunsMode=CHART&viewStateShareKey={NAME}"


def build_artifact_place(experiment_id: str, run_id: str, path: str) -> str:
    """Return the path of an artifact's page, after the server's address."""
    return f"#/experiments/{experiment_id}/runs/{run_id}/artifacts/{path}"


def find_places(uri: str) -> list[tuple[str, str]]:
    """Return (experiment, page) of the experiments with this view, by name."""
    with impatient():
        from mlflow.tracking import MlflowClient  # the import takes 3 s: only users of a server pay for it

        found = MlflowClient(uri).search_experiments(filter_string=f"tags.`{TAG}` LIKE '%'")
    return sorted((one.name, build_place(one.experiment_id)) for one in found)


def _build_chart(names: tuple[str, ...]) -> dict[str, Any]:
    if len(names) == 2:
        axes = ({"key": name, "type": "METRIC"} for name in names)
        placed = dict(zip(("xaxis", "yaxis"), axes, strict=True))
        return {"type": "SCATTER", "runsCountToCompare": 100, **placed}
    if names[0] in LINES:
        return {
            "type": "LINE", "runsCountToCompare": 20, "metricKey": names[0], "selectedMetricKeys": list(names),
            "xAxisKey": "step", "xAxisScaleType": "linear", "scaleType": "linear", "lineSmoothness": 0,
            "range": {}, "yAxisKey": "metric", "yAxisExpressions": [], "useGlobalXaxisKey": True,
            "useGlobalLineSmoothing": True,
        }  # fmt: skip
    return {"type": "BAR", "runsCountToCompare": 20, "metricKey": names[0]}


def _is_there(column: str, metrics: Collection[str]) -> bool:
    kind, _, name = column.partition(".")
    return kind != "metrics" or name.strip("`") in metrics
