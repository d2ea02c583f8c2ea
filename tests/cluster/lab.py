"""What the end-to-end tests do on a cluster, with the programs that users have: helm, kubectl, stratlab."""

from __future__ import annotations

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
from stratlab.cluster.pods import newest_last, node_rank
from stratlab.cluster.volume_pod import run_on_volume

ROOT = Path(__file__).resolve().parents[2]
KUBECTL = ROOT / ".tools" / "kubectl"
HELM = ROOT / ".tools" / "helm"
HELM3 = ROOT / ".tools" / "helm3"
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


def run(
    command: list[Any], *, check: bool = True, timeout_s: float = 300, text: str = ""
) -> subprocess.CompletedProcess[str]:
    """Runs a program; one that fails shows what it printed."""
    done = subprocess.run(
        [str(part) for part in command], input=text or None, capture_output=True, text=True, timeout=timeout_s
    )
    if check and done.returncode:
        shown = " ".join(map(str, command))
        raise AssertionError(
            f"{shown}\nended with {done.returncode}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
        )
    return done


def wait_until(holds: Callable[[], Any], what: str, timeout_s: float = 120, poll_s: float = 0.5) -> Any:
    """The first true value of `holds`."""
    deadline = time.monotonic() + timeout_s
    while not (value := holds()):
        assert time.monotonic() < deadline, f"not within {timeout_s:.0f} s: {what}"
        time.sleep(poll_s)
    return value


@dataclass(frozen=True)
class Lab:
    """One namespace with MLflow and a results volume."""

    namespace: str

    def kubectl(self, *arguments: Any, check: bool = True, timeout_s: float = 300, text: str = "") -> str:
        return run(
            [KUBECTL, "-n", self.namespace, *arguments], check=check, timeout_s=timeout_s, text=text
        ).stdout

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
        """`helm install` or `upgrade` of a strategy chart on the small data set of the demo, or of other `files`."""
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

    def watch(self, release: str, *options: str, timeout_s: float = 600) -> subprocess.CompletedProcess[str]:
        """`stratlab watch`: returns when the run and its analysis have ended; the exit code is the run's."""
        command = [STRATLAB, "watch", release, "-n", self.namespace, *options]
        try:
            return run(command, check=False, timeout_s=timeout_s)
        except subprocess.TimeoutExpired as late:
            shown = (late.stdout or b"").decode(errors="replace")[-2000:]
            raise AssertionError(
                f"{release} has not ended within {timeout_s:.0f} s\n{shown}\n{self.describe(release)}"
            ) from None

    def test(self, release: str) -> str:
        """`helm test`: FINISHED in MLflow with every metric, the report is there."""
        return run([HELM, "-n", self.namespace, "test", release, "--logs"], timeout_s=300).stdout

    def conditions(self, resource: str) -> dict[str, str]:
        """{type: status} of a custom resource or Job."""
        status = self.get(*resource.split("/")).get("status", {})
        return {c["type"]: c["status"] for c in status.get("conditions") or []}

    def log(self, pod: str) -> str:
        return self.kubectl("logs", pod, check=False)

    def logs(self, release: str) -> str:
        """All that the training pods of a run have said, as far as they are there."""
        selector = f"app.kubernetes.io/instance={release},app.kubernetes.io/component=training"
        return self.kubectl("logs", "-l", selector, "--tail=-1", check=False)

    def wait_for_step(self, release: str, step: int = 1) -> None:
        """Until the progress lines of rank 0, which is in the first pod, have reached a step."""

        def reached() -> bool:
            failed = self.conditions(f"pytorchjobs.v1.kubeflow.org/{release}").get("Failed")
            assert failed != "True", f"{release} has failed before step {step}"
            lines = [x for x in self.log(f"{release}-worker-0").splitlines() if x.startswith("step ")]
            return bool(lines) and int(lines[-1].split()[1].split("/")[0]) >= step

        try:
            wait_until(reached, f"step {step} in the log of {release}-worker-0", timeout_s=240)
        except AssertionError as late:
            raise AssertionError(f"{late}\n{self.describe(release)}") from None

    def pod_of(self, release: str, node: int) -> str:
        """The newest pod of a node of a run, whatever has started it; "" before there is one."""
        pods = self.get(
            "pods", "-l", f"app.kubernetes.io/instance={release},app.kubernetes.io/component=training"
        )
        names = [
            pod["metadata"]["name"]
            for pod in newest_last(pods["items"])
            if node_rank(pod, has_master=False) == node
        ]
        return str(names[-1]) if names else ""

    def describe(self, release: str) -> str:
        """What a person would look at when pods do not go on: pods, events, the last lines of the logs."""
        logs = ["logs", "-l", f"app.kubernetes.io/instance={release},app.kubernetes.io/component=training"]
        views = (
            ["get", "pods", "-o", "wide"],
            ["get", "events", "--sort-by=.lastTimestamp"],
            [*logs, "--prefix", "--tail=15"],
        )
        shown = [(" ".join(view), self.kubectl(*view, check=False)) for view in views]
        return "\n".join(f"-- kubectl {command}\n{text[-6000:]}" for command, text in shown)

    def on_volume(self, *command: str, component: str = "volume", claim: str = CLAIM) -> str:
        """What a command prints in a pod that mounts the results. With component `test` it may talk to MLflow too."""
        done = run_on_volume(
            connect(namespace=self.namespace), self.namespace,
            claim=claim, mount=MOUNT, image=LAB_IMAGE, command=command, component=component,
        )  # fmt: skip
        assert done.exit_code == 0, done
        return done.output.decode()

    def read_lines(self, path: str) -> list[dict[str, Any]]:
        """A .jsonl file below the results."""
        return [json.loads(line) for line in self.on_volume("cat", f"{MOUNT}/{path}").splitlines()]
