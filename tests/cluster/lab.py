"""What the end-to-end tests do on a cluster, with the programs that users have: helm, kubectl, stratlab."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stratlab.cluster.connection import connect
from stratlab.cluster.pod_template import PodRequest
from stratlab.cluster.pods import node_rank
from stratlab.cluster.volume_pod import run_on_volume
from stratlab.cluster.workloads import sort_by_age

ROOT = Path(__file__).resolve().parents[2]
KUBECTL, HELM, HELM3 = (ROOT / ".tools" / name for name in ("kubectl", "helm", "helm3"))
STRATLAB = Path(sys.executable).with_name("stratlab")
CLAIM, MOUNT = "stratlab-results", "/results"
# Set for a cluster that pulls its images from a registry: "registry.example/team/".
PREFIX = os.environ.get("STRATLAB_IMAGE_PREFIX", "")
IMAGES = {
    "run.image.repository": f"{PREFIX}stratlab-trainer",
    "run.analysis.image.repository": f"{PREFIX}stratlab-lab",
}
LAB_IMAGE = f"{PREFIX}stratlab-lab:0.1.0"
TRAINER_IMAGE = f"{PREFIX}stratlab-trainer:0.1.0"
RESTRICTED = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
USER = {"runAsNonRoot": True, "runAsUser": 10001, "seccompProfile": {"type": "RuntimeDefault"}}
"""Of a container, of a pod: what a namespace that enforces Pod Security `restricted` asks for."""


def run(
    command: list[Any], *, check: bool = True, timeout_s: float = 300, text: str = ""
) -> subprocess.CompletedProcess[str]:
    """Runs a program; one that fails shows what it printed."""
    words = [str(part) for part in command]
    done = subprocess.run(words, input=text or None, capture_output=True, text=True, timeout=timeout_s)
    assert not check or not done.returncode, (
        f"{' '.join(words)}\nended with {done.returncode}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    )
    return done


def wait_until(holds: Callable[[], Any], what: str, timeout_s: float = 120, poll_s: float = 0.5) -> Any:
    deadline = time.monotonic() + timeout_s
    while not (value := holds()):
        assert time.monotonic() < deadline, f"not within {timeout_s:.0f} s: {what}"
        time.sleep(poll_s)
    return value


def build_object(kind: str, name: str, spec: dict[str, Any], **metadata: Any) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": kind, "metadata": {"name": name, **metadata}, "spec": spec}


def build_list(objects: list[dict[str, Any]]) -> str:
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": objects})


def training_of(release: str) -> str:
    return f"app.kubernetes.io/instance={release},app.kubernetes.io/component=training"


@dataclass(frozen=True)
class Lab:
    namespace: str

    def kubectl(self, *arguments: Any, check: bool = True, timeout_s: float = 300, text: str = "") -> str:
        command = [KUBECTL, "-n", self.namespace, *arguments]
        return run(command, check=check, timeout_s=timeout_s, text=text).stdout

    def apply(self, *objects: dict[str, Any]) -> None:
        self.kubectl("apply", "-f", "-", text=build_list(list(objects)))

    def get(self, *what: str) -> dict[str, Any]:
        return dict(json.loads(self.kubectl("get", *what, "-o", "json")))

    def helm(
        self,
        verb: str,
        release: str,
        chart: str,
        values: dict[str, Any],
        *,
        helm: Path = HELM,
        files: tuple[str, ...] = ("digits.yaml", "cpu.yaml"),
    ) -> str:
        """`helm install` or `upgrade` of a strategy chart on the demo's data set, or with other `files`."""
        command: list[Any] = [helm, "-n", self.namespace, verb, release, ROOT / "charts" / chart]
        for file in files:
            command += ["--values", ROOT / "examples" / file]
        for name, value in {"run.config.comparison": "e2e", **IMAGES, **values}.items():
            command += ["--set", f"{name}={value}"]
        return run(command).stdout

    def install(self, release: str, chart: str, values: dict[str, Any] | None = None, **options: Any) -> str:
        return self.helm("install", release, chart, values or {}, **options)

    def uninstall(self, release: str) -> None:
        run([HELM, "-n", self.namespace, "uninstall", release, "--wait"])

    def stratlab(self, *words: Any, check: bool = True) -> subprocess.CompletedProcess[str]:
        return run([STRATLAB, *words, "-n", self.namespace], check=check)

    def watch(self, release: str, code: int = 0, timeout_s: float = 600) -> str:
        """`stratlab watch`: what it has said when the run and its analysis have ended; `code` is the run's."""
        command = [STRATLAB, "watch", release, "-n", self.namespace]
        try:
            done = run(command, check=False, timeout_s=timeout_s)
        except subprocess.TimeoutExpired as late:
            shown = (late.stdout or b"").decode(errors="replace")[-2000:]
            raise AssertionError(f"{release} goes on\n{shown}\n{self.describe(release)}") from None
        said = done.stdout + done.stderr
        assert done.returncode == code, f"{done.returncode}\n{said[-5000:]}\n{self.describe(release)}"
        return said

    def test(self, release: str) -> str:
        """`helm test`: FINISHED in MLflow with every point of metrics.jsonl, the report is there."""
        return run([HELM, "-n", self.namespace, "test", release, "--logs"]).stdout

    def conditions(self, resource: str) -> dict[str, str]:
        status = self.get(*resource.split("/")).get("status", {})
        return {c["type"]: c["status"] for c in status.get("conditions") or []}

    def log(self, pod: str) -> str:
        return self.kubectl("logs", pod, check=False)

    def logs(self, release: str) -> str:
        """All that the training pods of a run have said, as far as they are there."""
        return self.kubectl("logs", "-l", training_of(release), "--tail=-1", check=False)

    def pods(self, release: str) -> list[dict[str, Any]]:
        return list(self.get("pods", "-l", training_of(release))["items"])

    def phases(self, release: str) -> list[str]:
        return sorted(pod["status"]["phase"] for pod in self.pods(release))

    def pod_of(self, release: str, node: int) -> str:
        """The newest pod of a node of a run, whatever has started it; "" before there is one."""
        pods = [pod for pod in sort_by_age(self.pods(release)) if node_rank(pod, has_master=False) == node]
        return str(pods[-1]["metadata"]["name"]) if pods else ""

    def wait_for_step(self, release: str, step: int = 1) -> None:
        """Until the progress lines of rank 0, which is in the first pod, have reached a step."""

        def reached() -> bool:
            failed = self.conditions(f"pytorchjobs.v1.kubeflow.org/{release}").get("Failed")
            assert failed != "True", f"{release} has failed before step {step}"
            lines = [x for x in self.log(f"{release}-worker-0").splitlines() if x.startswith("step ")]
            return bool(lines) and int(lines[-1].split()[1].split("/")[0]) >= step

        self.wait_for(release, reached, f"step {step} of {release}")

    def wait_for(self, release: str, holds: Callable[[], Any], what: str, timeout_s: float = 240) -> Any:
        """As `wait_until`; who waits too long sees the run."""
        try:
            return wait_until(holds, what, timeout_s)
        except AssertionError as late:
            raise AssertionError(f"{late}\n{self.describe(release)}") from None

    def describe(self, release: str) -> str:
        """What a person would look at when pods do not go on: pods, events, the last lines of the logs."""
        logs = ["logs", "-l", training_of(release), "--prefix", "--tail=15"]
        views = (["get", "pods", "-o", "wide"], ["get", "events", "--sort-by=.lastTimestamp"], logs)
        shown = [(" ".join(view), self.kubectl(*view, check=False)) for view in views]
        return "\n".join(f"-- kubectl {command}\n{text[-6000:]}" for command, text in shown)

    def on_volume(self, *command: str, component: str = "volume") -> str:
        """What a command prints in a pod that mounts the results. With component `test` it may talk to MLflow too."""
        done = run_on_volume(
            connect(namespace=self.namespace), PodRequest(CLAIM, MOUNT, LAB_IMAGE, component=component), command,
        )  # fmt: skip
        assert done.exit_code == 0, done
        return done.output.decode()

    def read(self, path: str) -> dict[str, Any]:
        return dict(json.loads(self.on_volume("cat", f"{MOUNT}/{path}")))

    def read_lines(self, path: str) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.on_volume("cat", f"{MOUNT}/{path}").splitlines()]

    def read_starts(self, folder: str) -> list[dict[str, Any]]:
        return [line for line in self.read_lines(f"{folder}/attempts.jsonl") if line["event"] == "started"]
