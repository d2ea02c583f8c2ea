"""A comparison where the runs are: in a pod that mounts the results; the report comes back through its log."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import re
import tarfile
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from stratlab.cluster import ClusterError
from stratlab.cluster.connection import Connection
from stratlab.cluster.volume_pod import run_on_volume
from stratlab.drawing import drop_file_links
from stratlab.run_directory.places import PAGE
from stratlab.user_error import NothingThere, UserError

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
    claim: str,
    mount: str,
    image: str,
    output: Path,
    progress: Callable[[str], None],
    options: Sequence[str] = (),
    certificates: str = "",
) -> dict[str, Any]:
    """Compares the runs in `<mount>/<comparison>` on the claim; the report is there afterwards, and in `output`.

    Args:
        options: of `stratlab compare`, passed on.
        certificates: of MLflow's authority, as the runs name them.

    Returns:
        the content of report.json.

    Raises:
        UserError: there is no such comparison, or `output` holds something else than a report.
        ClusterError: the pod could not do it, or the report did not arrive whole.
    """
    if not NAME.fullmatch(comparison):
        raise UserError(
            f"{comparison}: with --on-cluster give the name of a comparison, not a folder [SL-on-cluster-name]"
        )
    check_output(output)
    folder = f"{mount.rstrip('/')}/{comparison}"
    finished = run_on_volume(
        connection,
        namespace,
        claim=claim,
        mount=mount,
        image=image,
        command=["python", "-c", SCRIPT, folder, str(LARGEST_MIB), *options],
        read_only=False,
        progress=progress,
        certificates=certificates,
        component="comparison",  # the network rules let it reach MLflow
    )
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
    """What the pod has said of MLflow: that the report is there, as this machine reaches it, or why it is not."""
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
    """`--name=value` of each that was given: in one word, so that no value is taken for an option."""
    return [f"--{name.replace('_', '-')}={value}" for name, value in asked.items() if value is not None]


def unpack_payload(payload: bytes) -> dict[str, bytes]:
    """File -> content of the report that came through the log.

    Raises:
        ClusterError: it is not whole, or not a report.
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
            f"what arrived is no report: {', '.join(sorted(files)) or 'no file'} [SL-report-not-one]"
        )
    return files


def write_report_folder(files: dict[str, bytes], output: Path) -> None:
    """Each file whole or not at all; what else is in `output` stays: it may be where somebody works."""
    output.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=output, prefix=".report.") as temporary:
        for number, (name, content) in enumerate(files.items()):
            fresh, target = Path(temporary) / str(number), output / name
            page = name == PAGE  # the runs stay on the volume: here its links would lead nowhere
            fresh.write_bytes(drop_file_links(content.decode()).encode() if page else content)
            target.parent.mkdir(parents=True, exist_ok=True)
            fresh.rename(target)


def check_output(output: Path) -> None:
    """Before a pod is started: only a report may be replaced.

    Raises:
        UserError: `output` is something else.
    """
    if not output.exists():
        return
    is_report = (
        output.is_dir() and (output / "report.json").is_file() and (output / "comparison.csv").is_file()
    )
    if not is_report and not (output.is_dir() and not any(output.iterdir())):
        raise UserError(f"--output {output}: is there, and is no report of a comparison [SL-output-taken]")


def _last_line(text: str) -> str:
    return text.splitlines()[-1].removeprefix("error: ") if text else "no word from the pod"


def _tail(said: str, termination: str) -> str:
    return "\n".join(said.splitlines()[-15:]) or termination
