"""The MLflow run of a run directory: which one it is, and that it does not stay open when nobody is left to close it.

The trainer's launcher closes it. One that was killed, or whose server was away, leaves it RUNNING for ever: then
whoever comes last does it, the waiter after a failure, and the analysis at its own end.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from stratlab.run_directory.files import read_object
from stratlab.run_directory.outcome import look
from stratlab.run_directory.record import STOPPED_FROM_OUTSIDE
from stratlab.tracking import redirect
from stratlab.user_error import UserError

IMPATIENT = {
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",  # else 246 s per call
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",  # it would cross our own lines
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",  # of a server that ends with the command, maybe
    "MLFLOW_DISABLE_TELEMETRY": "true",  # its thread changes os.environ in the middle of a request (3.17.2)
    **redirect.REFUSED,
}


def close_run(run_dir: Path, tracking_uri: str, *, exit_code: int | None) -> str:
    """Ends the MLflow run if it is still RUNNING; what was done, or why not, in one sentence, "" = nothing to do.

    Args:
        exit_code: of the run; 0 makes it FINISHED, that of a run that was told to stop KILLED, anything else, and
            None = not known, FAILED.
    """
    run_id = read_run_id(run_dir / "mlflow.json")
    if not run_id:
        return ""
    statuses: dict[int | None, str] = {0: "FINISHED", STOPPED_FROM_OUTSIDE: "KILLED"}
    status = statuses.get(exit_code, "FAILED")
    with impatient():
        from mlflow.exceptions import MlflowException  # 3 s: only who has a server pays
        from mlflow.tracking import MlflowClient

        try:
            client = MlflowClient(tracking_uri)
            if client.get_run(run_id).info.status != "RUNNING":
                return ""
            client.set_terminated(run_id, status)
        except (MlflowException, OSError) as failure:
            reason = redirect.explain_failure(tracking_uri, str(failure))
            return f"warning: the MLflow run {run_id} could not be closed: {tracking_uri}: {reason[:300]}"
    return f"the MLflow run {run_id} was still RUNNING, it is {status} now"


def delete_run(run_dir: Path, tracking_uri: str = "") -> str:
    """Deletes the MLflow run that belongs to the folder; what was done in one sentence, "" = it has none.

    MLflow keeps what is deleted until `mlflow gc`.

    Args:
        tracking_uri: "" = the server that the run had.

    Raises:
        UserError: the server is away or refuses; nothing was done.
    """
    run_id = read_run_id(run_dir / "mlflow.json")
    if not run_id:
        return ""
    uri = tracking_uri or str(read_object(run_dir / "mlflow.json", []).get("tracking_uri", ""))
    with impatient():
        from mlflow.exceptions import MlflowException  # 3 s: only who has a server pays
        from mlflow.tracking import MlflowClient

        try:
            MlflowClient(uri).delete_run(run_id)
        except (MlflowException, OSError) as failure:
            if getattr(failure, "error_code", "") == "RESOURCE_DOES_NOT_EXIST":
                return f"the MLflow run {run_id} is not there any more"
            reason = redirect.explain_failure(uri, str(failure))
            raise UserError(
                f"{run_dir}: stays, because its MLflow run {run_id} could not be deleted: {uri}: {reason[:300]} "
                "[SL-mlflow-run-stays]"
            ) from failure
    return f"the MLflow run {run_id} is deleted"


def close_ended_run(run_dir: Path, tracking_uri: str) -> str:
    """As `close_run`, where the files of the run say that it has ended, and how."""
    outcome = look(run_dir, quiet=True)
    return close_run(run_dir, tracking_uri, exit_code=outcome.exit_code) if outcome.ended else ""


def read_run_id(path: Path) -> str | None:
    """The run that mlflow.json names."""
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
    run_id = content.get("run_id") if isinstance(content, dict) else None
    return run_id if isinstance(run_id, str) else None


@contextmanager
def impatient() -> Iterator[None]:
    """Short waits for a server that is away, unless the user has chosen others."""
    with environment({name: value for name, value in IMPATIENT.items() if name not in os.environ}):
        yield


@contextmanager
def environment(values: Mapping[str, str]) -> Iterator[None]:
    """These variables for a while."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
