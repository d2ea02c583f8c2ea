"""The sweep on a cluster: it is killed, a release is half installed, a run fails; it goes on and reports."""

import base64
import gzip
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from stratlab.helm import find_helm
from stratlab.sweep.helm_release import look_at, uninstall
from tests.cluster.lab import IMAGES, ROOT, Lab, wait_until

pytestmark = pytest.mark.cluster

SETTINGS: dict[str, Any] = {
    "run.nodes": 1, "run.processesPerNode": 1, "run.config.max_attempts": 1, "run.config.epochs": 20,
}  # fmt: skip
SETTINGS |= {"run.resources.requests.memory": "100Mi"}


def write_sweep(folder: Path, lab: Lab, comparison: str, **content: Any) -> Path:
    """Two releases of one process each, of the demo's data set."""
    file = folder / "sweep.yaml"
    common = {"comparison": comparison, "namespace": lab.namespace, "charts": str(ROOT / "charts")}
    files = [str(ROOT / "examples" / name) for name in ("digits.yaml", "cpu.yaml")]
    file.write_text(json.dumps(common | {"values": files, "set": SETTINGS | IMAGES, **content}))
    return file


def start(file: Path, *options: str) -> subprocess.Popen[str]:
    command: list[Any] = [
        sys.executable, "-m", "stratlab", "sweep", file, "--output", file.parent / "report", *options,
    ]  # fmt: skip
    with open(file.parent / "log", "a") as log:
        return subprocess.Popen(
            command, stdout=log, stderr=subprocess.STDOUT, text=True, start_new_session=True
        )


def end(file: Path, code: int, *options: str) -> None:
    assert start(file, *options).wait(timeout=900) == code, (file.parent / "log").read_text()


def stages(file: Path) -> dict[str, str]:
    state = file.with_name("sweep.yaml.state.json")
    content = json.loads(state.read_text()) if state.exists() else {"releases": {}}
    return {name: entry["stage"] for name, entry in content["releases"].items()}


def mark_half_installed(lab: Lab, name: str) -> None:
    """What a helm that was killed leaves behind: helm keeps a release as JSON, packed and twice in base64."""
    secret = f"sh.helm.release.v1.{name}.v1"
    found = lab.get("secret", secret)["data"]["release"]
    release = json.loads(gzip.decompress(base64.b64decode(base64.b64decode(found))))
    release["info"]["status"] = "pending-install"
    packed = base64.b64encode(base64.b64encode(gzip.compress(json.dumps(release).encode()))).decode()
    lab.kubectl("patch", "secret", secret, "-p", json.dumps({"data": {"release": packed}}))


def test_a_sweep_that_is_killed_goes_on_and_ends_with_a_report(lab: Lab, tmp_path: Path) -> None:
    file = write_sweep(tmp_path, lab, "killed", matrix={"strategy": ["ddp", "fsdp"]})
    first = start(file)
    try:
        wait_until(lambda: stages(file).get("killed-fsdp") == "running", "the second one to run", 400)
    finally:
        os.kill(first.pid, signal.SIGKILL)
        first.wait()
    assert stages(file)["killed-ddp"] == "succeeded"
    mark_half_installed(lab, "killed-fsdp")
    lab.kubectl("delete", "pytorchjob", "killed-fsdp")
    wait_until(lambda: not lab.pods("killed-fsdp"), "its pods are gone")
    assert look_at(find_helm(), lab.namespace, "killed-fsdp").status == "pending-install"
    before = lab.get("pytorchjob", "killed-ddp")["metadata"]["uid"]
    end(file, 0)
    assert stages(file) == {"killed-ddp": "succeeded", "killed-fsdp": "succeeded"}
    assert lab.get("pytorchjob", "killed-ddp")["metadata"]["uid"] == before, "it had succeeded already"
    report = json.loads((tmp_path / "report" / "report.json").read_text())
    assert [row["run"] for row in report["runs"]] == sorted(stages(file))

    end(file, 0, "--uninstall")
    assert [look_at(find_helm(), lab.namespace, name).status for name in stages(file)] == ["", ""]
    again = time.monotonic()
    end(file, 0)
    assert time.monotonic() - again < 120, "the results stayed"


def test_a_run_that_fails_does_not_stop_the_rest_and_may_be_tried_again(lab: Lab, tmp_path: Path) -> None:
    """Torch alone needs more memory than the first one has."""
    limits = {"run.resources.limits.memory": ["300Mi", "2Gi"]}
    file = write_sweep(tmp_path, lab, "failing", matrix={"strategy": ["ddp"], **limits})
    end(file, 1)
    assert list(stages(file).values()) == ["failed", "succeeded"]
    bad, good = stages(file)
    before, kept = (lab.get("pytorchjob", name)["metadata"]["uid"] for name in (bad, good))
    assert (tmp_path / "report" / "report.html").is_file()
    end(file, 1, "--retry-failed", "--stop-on-failure")
    assert lab.get("pytorchjob", bad)["metadata"]["uid"] != before
    assert lab.get("pytorchjob", good)["metadata"]["uid"] == kept
    for name in stages(file):
        uninstall(find_helm(), lab.namespace, name)
