"""Replay metrics.jsonl to MLflow from the launcher's process, so that no rank ever waits for a server.

MLflow keeps one row per (key, value, timestamp, step): a line that is sent twice with its own timestamp is one point.
So "at least once" becomes exactly once, and after a failure the sender resumes from the last offset that the server
confirmed. mlflow's own client is not used (mlflow 3.17.2): one call blocks 246 s while the server is unreachable, its
asynchronous mode drops points silently, and importing it takes 3 s and 240 MB per process.
"""

from __future__ import annotations

import json
import logging
import os
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, BinaryIO

from stratlab_spec.exit_codes import DONE, TERMINATED, is_storage_full
from stratlab_spec.run_directory import (
    NOT_POINTS,
    NOTE,
    RunDirectory,
    build_note,
    describe_run,
    is_metrics,
    may_describe,
    name_metric,
    read_line,
    write_json,
)
from trainer.launch.mlflow_rest import Mlflow, MlflowError

BATCH = 1000  # MLflow's limit of metrics per request
POLL_S = 0.5
LONGEST_PAUSE_S = 5.0
LAST_TRY_S = 30.0
TEXT_RESULTS = ("forecast_memory_deviates", "forecast_step_deviates")
"""Of summary.json."""
TAIL_BYTES, TAIL_LINES = 65_536, 20

log = logging.getLogger("trainer")


class Sender(threading.Thread):
    """Wait until rank 0 has opened the run directory under this launcher's name, then follow metrics.jsonl."""

    def __init__(self, folder: RunDirectory, launcher: str, env: Mapping[str, str]) -> None:
        super().__init__(name="mlflow-sender", daemon=True)
        self._folder = folder
        self._launcher = launcher
        self._uri = env["MLFLOW_TRACKING_URI"].rstrip("/")
        self._mlflow = Mlflow(self._uri, env)
        self._run_id = ""
        self._record: dict[str, str] = {}
        self._offset: int | None = None
        self._metrics: BinaryIO | None = None
        """Kept open, so that removing the folder during the run does not lose points."""
        self._stop_asked = threading.Event()
        self._warned = ""

    def run(self) -> None:
        pause = POLL_S
        while not self._stop_asked.wait(pause):
            pause = POLL_S if self._try_send() else min(2 * pause, LONGEST_PAUSE_S)

    def finish(self, exit_code: int, seconds: float = LAST_TRY_S) -> None:
        """Send the rest and close the MLflow run; give up after 30 s and leave the file for a later replay.

        Args:
            seconds: remaining grace period, if that is less.

        If the server can be reached after giving up, the run is still closed: it must not appear to be running.
        """
        self._stop_asked.set()
        self.join()
        deadline = time.monotonic() + min(LAST_TRY_S, seconds)
        while not (self._try_send() and self._try_close(exit_code)):
            if time.monotonic() > deadline:
                closed = self._try_close(exit_code)
                log.warning("metrics not sent to %s: they wait in %s", self._uri, self._folder.metrics)
                if not closed:
                    log.warning("the MLflow run stays open until the analysis closes it")
                return
            time.sleep(POLL_S)

    def _try_send(self) -> bool:
        """Return True if nothing complete is left to send."""
        try:
            if not self._metrics:
                if not self._folder.is_written_by(self._launcher):
                    return True
                with suppress(FileNotFoundError):
                    self._metrics = open(self._folder.metrics, "rb")  # noqa: SIM115
            if not self._run_id:
                self._run_id = self._open_run()
            self._write_record()
            if self._metrics:
                self._offset = send_new_lines(
                    self._folder, self._mlflow, self._run_id, self._offset, self._metrics
                )
        except Exception as failure:  # a thread that ends would leave the run open
            if repr(failure) != self._warned:
                self._warned = repr(failure)
                text = "MLflow at %s: %s; training continues, metrics wait on disk"
                log.warning(text, self._uri, failure, exc_info=not isinstance(failure, MlflowError | OSError))
            return False
        self._warned = ""
        return True

    def _try_close(self, exit_code: int) -> bool:
        """Return True if this launcher has no open run in MLflow any more."""
        if not self._run_id:
            return not self._folder.is_written_by(self._launcher)
        try:
            close_run(self._folder, self._mlflow, self._run_id, mlflow_status(exit_code))
        except (MlflowError, OSError):
            return False
        return True

    def _open_run(self) -> str:
        """Return the MLflow run of this run directory, at work again."""
        record, is_known = find_run(self._folder, self._mlflow, self._uri)
        if is_known:
            self._mlflow.reopen_run(record["run_id"])
            offset = read_offset(self._folder)
            if offset and is_behind(self._folder, offset, self._mlflow.read_latest(record["run_id"])):
                self._offset = 0
        else:
            self._record = record
            self._offset = 0  # this store has no points of it, even if another store has confirmed some
        return record["run_id"]

    def _write_record(self) -> None:
        """Write the MLflow record later if the volume is full: its metrics can be sent without it."""
        if self._record:
            with suppress_full():
                write_json(self._folder.mlflow, self._record)
                self._record = {}


def mlflow_status(exit_code: int) -> str:
    """Return MLflow's status for an exit code; KILLED: the run was stopped from outside and may resume."""
    return {DONE: "FINISHED", TERMINATED: "KILLED"}.get(exit_code, "FAILED")


def find_run(folder: RunDirectory, mlflow: Mlflow, uri: str) -> tuple[dict[str, str], bool]:
    """Return the record of this run directory's MLflow run, and whether mlflow.json already has it.

    A run that is missing on this server is created there.
    """
    if folder.mlflow.exists():
        known: dict[str, str] = json.loads(folder.mlflow.read_text())
        if known["tracking_uri"] == uri and mlflow.has_run(known["run_id"]):
            return known, True
    config = json.loads(folder.config.read_text())
    experiment = mlflow.open_experiment(config["comparison"])
    params = {**config["config"], **_flat(config["resolved"])}
    if params.get("model_path"):  # `model` is a default there
        params["model"] = os.path.basename(os.path.normpath(params["model_path"]))
    run_id = mlflow.open_run(experiment, config["run"], config["run_uid"], params, _tags(config))
    return {"tracking_uri": uri, "experiment_id": experiment, "run_id": run_id}, False


def close_run(folder: RunDirectory, mlflow: Mlflow, run_id: str, status: str) -> None:
    """End the MLflow run with its description and the results that are texts: numbers are in metrics.jsonl.

    Args:
        status: FINISHED, KILLED or FAILED.

    Raises:
        MlflowError, OSError: it is still open, and may be closed again.
    """
    summary = read_line(folder.summary.read_bytes()) if folder.summary.is_file() else {}
    ended = [event for event in folder.read_attempts()[-1:] if event["event"] == "ended"]
    # `none` if the memory is inside its band; no tag if that is unknown
    tags = {name: str(summary[name] or "none") for name in TEXT_RESULTS if name in summary}
    if ended and may_describe(mlflow.read_note(run_id)):
        tags[NOTE] = build_note(describe_run(ended[0], summary))
    if tags:
        mlflow.set_tags(run_id, tags)
    mlflow.end_run(run_id, status)


@contextmanager
def suppress_full() -> Iterator[None]:
    """Leave the block silently if the volume is full or the folder was removed."""
    try:
        yield
    except OSError as failure:
        if not (is_storage_full(failure) or isinstance(failure, FileNotFoundError)):
            raise


def send_new_lines(
    folder: RunDirectory,
    mlflow: Mlflow,
    run_id: str,
    offset: int | None = None,
    metrics: BinaryIO | None = None,
) -> int:
    """Send every complete line after the confirmed offset; a half-written line waits. Return the new offset.

    Args:
        offset: the last call's result, which a full volume may not have stored; None = read metrics.sent.
        metrics: metrics.jsonl, if it is already open.

    Raises:
        MlflowError, OSError: the stored offset is the end of the last confirmed batch.
    """
    if offset is None:
        offset = read_offset(folder)
    if metrics is None:
        if not folder.metrics.exists():
            return offset
        with open(folder.metrics, "rb") as file:
            return send_new_lines(folder, mlflow, run_id, offset, file)
    metrics.seek(offset)
    points: list[dict[str, Any]] = []
    for line in metrics:
        if not line.endswith(b"\n"):
            break
        new = line_points(read_line(line))
        if len(points) + len(new) > BATCH:
            _send(folder, mlflow, run_id, points, offset)
            points = []
        points += new
        offset += len(line)
    if points or offset:
        _send(folder, mlflow, run_id, points, offset)
    return offset


def read_offset(folder: RunDirectory) -> int:
    """Return the bytes of metrics.jsonl that MLflow has confirmed, or 0: sending a point twice is harmless."""
    try:
        return int(folder.sent.read_text())
    except (FileNotFoundError, ValueError):
        return 0


def is_behind(folder: RunDirectory, offset: int, latest: Mapping[str, int]) -> bool:
    """Return whether the store has less than it had confirmed: it was restored from an older copy, or has the names of
    an older version.

    Args:
        offset: confirmed bytes of metrics.jsonl.
        latest: the last step of each metric in the store.
    """
    if not offset:
        return False
    with open(folder.metrics, "rb") as file:
        file.seek(max(0, offset - TAIL_BYTES))
        lines = file.read(offset - file.tell()).splitlines()
    points = [point for line in lines[-TAIL_LINES:] for point in line_points(read_line(line))]
    return any(latest.get(point["key"], -1) < point["step"] for point in points)


def _send(folder: RunDirectory, mlflow: Mlflow, run_id: str, points: list[Any], offset: int) -> None:
    for start in range(0, len(points), BATCH):  # one line of a thousand ranks is more than a batch
        mlflow.log_batch(run_id, points[start : start + BATCH])
    temporary = folder.sent.with_name(".metrics.sent.tmp")
    with suppress_full():
        temporary.write_text(str(offset))
        os.replace(temporary, folder.sent)


def line_points(line: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the MLflow points of one line of metrics.jsonl: every number in it, with the line's own timestamp in
    ms.
    """
    if not is_metrics(line):  # cut by a full volume, or not ours
        return []
    timestamp, step = int(line["t"] * 1000), line["step"]
    return [
        {"key": name_metric(key, line.get("kind")), "value": value, "timestamp": timestamp, "step": step}
        for key, value in line.items()
        if key not in NOT_POINTS and isinstance(value, int | float) and not isinstance(value, bool)
    ]


def _flat(resolved: Mapping[str, Any]) -> dict[str, Any]:
    """Flatten `resolved`: axes and layout replace the settings that they resolve (0, auto)."""
    flat = {k: v for k, v in resolved.items() if k not in ("axes", "layout")} | dict(resolved["axes"])
    if layout := resolved.get("layout"):
        flat |= {"layout": layout["name"], "layout_reason": layout["reason"]}
        flat |= {name: layout[name] for name in ("dimensions", "degenerate", "sequence_parallel")}
        flat["missing_dimensions"] = ",".join(layout["missing"]) or "none"
    return flat


def _tags(config: Mapping[str, Any]) -> dict[str, str]:
    provenance, layout = config["provenance"], config["resolved"].get("layout")
    return {
        "strategy": config["config"]["strategy"],
        **({"degenerate": str(layout["degenerate"]).lower()} if layout else {}),
        "git_sha": provenance["git_sha"] or "",
        "image": provenance["image"],
        "hosts": ",".join(provenance["hosts"]),
        "nodes": ",".join(provenance.get("nodes") or []),
        **{f"version.{name}": version for name, version in provenance["versions"].items()},
    }
