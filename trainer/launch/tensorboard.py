"""Write metrics.jsonl as TensorBoard's event files, and replay to MLflow what it has not received.

While a run trains (setting `tensorboard`), its launcher follows the file as for MLflow, so that ranks are not
involved. Afterwards `python -m trainer.program tensorboard RUN ...` writes the same files from any run's
metrics.jsonl.

The numbers are those that MLflow gets, under the same names. TensorBoard's event file holds TFRecord records with
protocol buffers, of which a scalar needs six fields. The format is old and stable. TensorBoard can write it too, but
brings eleven packages that this project does not otherwise need. TensorBoard's own reader reads these files in
tests/trainer/launch/test_tensorboard.py. Sources: tensorflow/core/util/event.proto, framework/summary.proto, and
lib/io/record_writer.cc for the record: length, masked CRC-32C of the length, data, masked CRC-32C of the data.

`replay` sends the points that the launcher could not send while MLflow was unreachable. A point that is sent twice is
one point (trainer/launch/mlflow_sender.py). So a replay of a running run, or a second replay, changes nothing.
"""

from __future__ import annotations

import argparse
import logging
import os
import struct
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from stratlab_spec import exit_codes as failures
from stratlab_spec.run_directory import RunDirectory, is_metrics, read_line, write_json
from stratlab_spec.settings.config import ConfigError
from trainer.distributed import trust_given
from trainer.launch.mlflow_rest import Mlflow, MlflowError
from trainer.launch.mlflow_sender import (
    close_run,
    find_run,
    is_behind,
    line_points,
    mlflow_status,
    read_offset,
    send_new_lines,
)

POLYNOMIAL = 0x82F63B78  # of CRC-32C (Castagnoli), reflected
MASK_DELTA = 0xA282EAD8
VERSION = "brain.Event:2"


def _build_table() -> tuple[int, ...]:
    table = []
    for value in range(256):
        for _ in range(8):
            value = (value >> 1) ^ (POLYNOMIAL if value & 1 else 0)
        table.append(value)
    return tuple(table)


TABLE = _build_table()


def build_first_record(wall_time_s: float) -> bytes:
    """Return the first record of every file."""
    return _record(_double(1, wall_time_s) + _bytes(3, VERSION.encode()))


def build_record(wall_time_s: float, step: int, scalars: Mapping[str, float]) -> bytes:
    """Return all scalars of one step as one event. TensorBoard keeps 32 bits of each."""
    values = b"".join(
        _bytes(1, _bytes(1, tag.encode()) + b"\x15" + struct.pack("<f", _to_float32(value)))
        for tag, value in scalars.items()
    )
    return _record(_double(1, wall_time_s) + b"\x10" + _varint(step) + _bytes(5, values))


def _to_float32(value: float) -> float:
    """Replace values beyond float32's range by infinity; metrics files do not contain them."""
    return value if abs(value) < 3.4e38 else float("inf") * (1 if value > 0 else -1)


def _record(data: bytes) -> bytes:
    length = struct.pack("<Q", len(data))
    return length + _masked_crc(length) + data + _masked_crc(data)


def _masked_crc(data: bytes) -> bytes:
    crc = 0xFFFFFFFF
    for byte in data:
        crc = TABLE[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    crc ^= 0xFFFFFFFF
    return struct.pack("<I", (((crc >> 15) | (crc << 17)) + MASK_DELTA) & 0xFFFFFFFF)


def _varint(value: int) -> bytes:
    parts = bytearray()
    while value > 0x7F:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    parts.append(value)
    return bytes(parts)


def _bytes(field: int, data: bytes) -> bytes:
    return bytes([field << 3 | 2]) + _varint(len(data)) + data


def _double(field: int, value: float) -> bytes:
    return bytes([field << 3 | 1]) + struct.pack("<d", value)


POLL_S = 1.0
FILE = "events.out.tfevents.{second}.stratlab"
"""TensorBoard looks for the word in the middle."""
REFUSED = (NotADirectoryError, IsADirectoryError, FileExistsError, PermissionError)  # another --output helps

log = logging.getLogger("trainer")


class EventWriter(threading.Thread):
    """Follow metrics.jsonl of this launcher's run, into <run>/tensorboard."""

    def __init__(self, folder: RunDirectory, launcher: str) -> None:
        super().__init__(name="tensorboard", daemon=True)
        self._folder, self._launcher = folder, launcher
        self._stop_asked = threading.Event()
        self._file: Path | None = None
        self._offset = 0
        self._failed = ""

    def run(self) -> None:
        while not self._stop_asked.wait(POLL_S):
            self._write()

    def finish(self) -> None:
        """Write the rest; write everything again if a later attempt has repeated steps of an earlier one."""
        self._stop_asked.set()
        self.join()
        self._write(anew=len({line["attempt"] for line in self._folder.read_attempts()}) > 1)

    def _write(self, anew: bool = False) -> None:
        if self._failed or not self._folder.is_written_by(self._launcher):
            return
        try:
            if self._file is None or anew:
                self._file, self._offset, _ = write_events(self._folder, self._folder.tensorboard)
            else:
                records, self._offset, _ = build_records(self._folder.metrics, self._offset)
                with open(self._file, "ab") as file:
                    file.write(records)
        except OSError as failure:  # an error of the copy must not end the run
            self._failed = str(failure)
            log.warning(
                "TensorBoard's file: %s; python -m trainer.program tensorboard makes it later", failure
            )


def build_records(metrics: Path, offset: int) -> tuple[bytes, int, int]:
    """Return the events of every whole line after `offset`, the next offset, and the number of skipped lines.

    If several attempts wrote one number for one step, the last one stays, as in reports.
    """
    if not metrics.exists():
        return b"", offset, 0
    left_out = 0
    events: list[tuple[float, int, str, dict[str, float]]] = []
    last: dict[tuple[str, str, int], int] = {}
    with open(metrics, "rb") as file:
        file.seek(offset)
        for line in file:
            if not line.endswith(b"\n"):
                break
            offset += len(line)
            found = read_line(line)
            if not is_metrics(found):
                left_out += 1
            elif points := line_points(found):
                kind, step = str(found.get("kind")), points[0]["step"]
                last |= {(kind, point["key"], step): len(events) for point in points}
                scalars = {point["key"]: float(point["value"]) for point in points}
                events.append((points[0]["timestamp"] / 1000, step, kind, scalars))
    records = []
    for number, (time_s, step, kind, scalars) in enumerate(events):
        kept = {key: value for key, value in scalars.items() if last[kind, key, step] == number}
        if kept:
            records.append(build_record(time_s, step, kept))
    return b"".join(records), offset, left_out


def write_events(folder: RunDirectory, place: Path) -> tuple[Path, int, int]:
    """Write one file in `place` with everything in metrics.jsonl, and remove our older ones."""
    place.mkdir(parents=True, exist_ok=True)
    records, offset, left_out = build_records(folder.metrics, 0)
    file = place / FILE.format(second=f"{int(time.time()):010d}")
    aside = place / ".events.new"
    aside.write_bytes(build_first_record(time.time()) + records)
    for old in place.glob(FILE.format(second="*")):
        old.unlink()
    os.replace(aside, file)
    return file, offset, left_out


def find_runs(paths: list[Path]) -> Iterator[RunDirectory]:
    """Yield the runs among `paths` and directly in them."""
    for path in paths:
        inside = [path] if (path / "config.json").is_file() else sorted(path.glob("*/"))
        for each in (each.absolute() for each in inside):
            folder = RunDirectory(each.parent.parent, each.parent.name, each.name)
            if folder.config.is_file() and folder.metrics.is_file():
                yield folder


def main(arguments: list[str]) -> int:
    """Write the files of all runs; return 3 for a path without runs, 13 for a full volume, 2 for a rejected place."""
    parser = argparse.ArgumentParser(
        "python -m trainer.program tensorboard",
        description="Write TensorBoard's event files from metrics.jsonl.",
        epilog="example: python -m trainer.program tensorboard results/runs/demo --output boards",
    )
    parser.add_argument(
        "runs", nargs="+", type=Path, help="run directories, or a comparison with all of its runs"
    )
    parser.add_argument(
        "--output", type=Path, help="OUTPUT/COMPARISON/RUN; tensorboard/ of each run if left out"
    )
    options = parser.parse_args(arguments)
    empty = [str(path) for path in options.runs if not any(find_runs([path]))]
    if empty:
        print(f"error: {', '.join(empty)}: has no run with metrics [SL-no-metrics]", file=sys.stderr)
        return failures.DATA_MISSING
    places: dict[Path, RunDirectory] = {}
    for folder in find_runs(options.runs):
        name = Path(folder.path.parent.name, folder.path.name)
        place = options.output / name if options.output else folder.tensorboard
        other = places.setdefault(place, folder)
        if other.path.resolve() != folder.path.resolve():
            clash = f"{other.path}, {folder.path}: both would be {place} [SL-boards-clash]"
            print(f"error: {clash}", file=sys.stderr)
            return failures.BAD_CONFIG
    for place, folder in places.items():
        try:
            file, _, left_out = write_events(folder, place)
        except OSError as failure:
            named = f"{failure.filename or place}: {failure.strerror}"
            print(f"error: {named} [SL-board-unwritable]", file=sys.stderr)
            refused = failures.BAD_CONFIG if isinstance(failure, REFUSED) else failures.CRASHED
            return failures.STORAGE_FULL if failures.is_storage_full(failure) else refused
        print(file)
        if left_out:
            print(f"{folder.metrics}: {left_out} lines without metrics are left out", file=sys.stderr)
    return failures.DONE


URI = "MLFLOW_TRACKING_URI"


class Replayed(NamedTuple):
    """The result of a replay."""

    run_id: str
    lines: int
    """That MLflow did not have."""
    waiting_bytes: int
    """Size of a half-written last line."""
    closed: str
    """The new status of the MLflow run, if it was still RUNNING; "" = unchanged."""


def replay(folder: RunDirectory, uri: str, env: Mapping[str, str]) -> Replayed:
    """Send the lines after the confirmed offset, and close the MLflow run if the run has ended.

    Args:
        uri: of the server; a new server, or one whose store was lost or restored from an older copy, gets everything.
        env: with the login, as the launcher has it.

    Raises:
        MlflowError, OSError: the server is still unreachable; lines that it has confirmed stay confirmed.
    """
    mlflow = Mlflow(uri, env)
    before = _read_record(folder)
    record, is_known = find_run(folder, mlflow, uri)
    run_id = record["run_id"]
    start = read_offset(folder) if is_known or before.get("run_id") == run_id else 0
    if is_behind(folder, start, mlflow.read_latest(run_id)):
        start = 0
    end = send_new_lines(folder, mlflow, run_id, start)
    if not is_known:
        write_json(folder.mlflow, record)
    metrics = folder.metrics.read_bytes() if folder.metrics.exists() else b""
    sent = metrics[start:end].count(b"\n")
    return Replayed(run_id, sent, len(metrics) - end, _close(folder, mlflow, run_id))


def _close(folder: RunDirectory, mlflow: Mlflow, run_id: str) -> str:
    attempts = folder.read_attempts()
    if not attempts or attempts[-1]["event"] != "ended" or mlflow.read_status(run_id) != "RUNNING":
        return ""
    status = mlflow_status(attempts[-1]["exit_code"])
    close_run(folder, mlflow, run_id, status)
    return status


def main_of_replay(arguments: list[str]) -> int:
    """Replay one run; return 1 if the server could not be reached or refused, 2 if the folder is not a run's."""
    parser = argparse.ArgumentParser(
        "python -m trainer.program replay",
        description="Send a run's missing metrics to MLflow.",
        epilog="example: python -m trainer.program replay results/runs/demo/ddp --tracking-uri http://mlflow:5000",
    )
    parser.add_argument("run", help="its folder: RESULTS/COMPARISON/RUN")
    parser.add_argument(
        "--tracking-uri", default=os.environ.get(URI, ""), help=f"{URI}, or the server that the run had"
    )
    options = parser.parse_args(arguments)
    path = Path(options.run).absolute()
    folder = RunDirectory(path.parent.parent, path.parent.name, path.name)
    if not folder.config.is_file():
        problem = f"is not a run that has started: {folder.config.name} is missing [SL-replay-no-run]"
        return _say(f"{options.run}: {problem}", 2)
    try:
        trust_given(os.environ)
    except ConfigError as wrong:
        return _say(str(wrong), 2)
    uri = options.tracking_uri.rstrip("/") or str(_read_record(folder).get("tracking_uri", ""))
    if not uri:
        return _say(
            f"{options.run}: has had no server; name one with --tracking-uri [SL-replay-no-server]", 2
        )
    try:
        done = replay(folder, uri, os.environ)
    except (MlflowError, OSError) as failure:
        left = folder.metrics.stat().st_size - read_offset(folder) if folder.metrics.exists() else 0
        return _say(f"{uri}: {failure}; {left} bytes of {folder.metrics} wait on [SL-replay-unsent]", 1)
    print(f"{options.run}: {done.lines} lines sent to {uri}, run {done.run_id}", end="")
    print(f"; it is {done.closed} now" if done.closed else "")
    if done.waiting_bytes:
        print(f"{folder.metrics}: its last line is half written and waits")
    return failures.DONE


def _read_record(folder: RunDirectory) -> dict[str, Any]:
    return read_line(folder.mlflow.read_bytes()) if folder.mlflow.exists() else {}


def _say(sentence: str, code: int) -> int:
    print(f"error: {sentence}", file=sys.stderr)
    return code
