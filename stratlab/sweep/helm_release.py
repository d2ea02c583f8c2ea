"""One helm release in the cluster: looked at, installed, removed, with the real helm."""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from stratlab.sweep.decision import Seen
from stratlab.sweep.planned_release import Planned, hash_asked

LOOK_S, INSTALL_S, UNINSTALL_S = 60, 300, 330


class HelmFailed(Exception):
    """Helm's own words."""


def look_at(helm: Path, namespace: str, name: str, context: str | None = None) -> Seen:
    """The release as helm knows it, without its custom resource. `context`: of the kubeconfig; None = the current one.

    Raises:
        HelmFailed: the cluster does not answer, or forbids it.
    """
    try:
        status = json.loads(_run(helm, ["status", name, "-n", namespace, "-o", "json"], LOOK_S, context))
    except HelmFailed as failure:
        if "not found" in str(failure):
            return Seen()
        raise
    asked = ["get", "metadata", name, "-n", namespace, "-o", "json"]
    metadata = json.loads(_run(helm, asked, LOOK_S, context))
    return Seen(status["info"]["status"], hash_asked(metadata["chart"], status.get("config") or {}))


def install(helm: Path, namespace: str, planned: Planned, context: str | None = None) -> None:
    """`helm install`, which returns when the objects are created; it does not wait for the run.

    Raises:
        HelmFailed: the cluster refused.
    """
    with tempfile.TemporaryDirectory() as folder:
        values = Path(folder) / "values.json"  # JSON is YAML, and leaves no room for how YAML reads a text
        values.write_text(json.dumps(planned.values))
        arguments = ["install", planned.release.name, str(planned.chart), "-n", namespace, "-f", str(values)]
        _run(helm, arguments, INSTALL_S, context)


def uninstall(helm: Path, namespace: str, name: str, context: str | None = None) -> None:
    """Removes the release and waits until its objects and pods are gone: the same name may come again.

    Raises:
        HelmFailed: it did not go.
    """
    arguments = [
        "uninstall",
        name,
        "-n",
        namespace,
        "--ignore-not-found",
        "--cascade",
        "foreground",
        "--wait",
    ]
    _run(helm, arguments, UNINSTALL_S, context)


def _run(helm: Path, arguments: Sequence[str], timeout_s: float, context: str | None) -> str:
    """Not in the terminal's process group: Ctrl-C ends the sweep, not an installation half way."""
    try:
        done = subprocess.run(
            [str(helm), *arguments, *(["--kube-context", context] if context else [])],
            capture_output=True,
            text=True,
            timeout=timeout_s,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
    except subprocess.TimeoutExpired:
        raise HelmFailed(
            f"helm {arguments[0]} {arguments[1]}: no end after {timeout_s:.0f} s [SL-helm-no-end]"
        ) from None
    if done.returncode:
        words = [line for line in done.stderr.strip().splitlines() if not _is_remark(line)]
        said = " ".join(words).removeprefix("Error: ")
        raise HelmFailed(f"helm {arguments[0]}: {said} [SL-sweep-helm-failed]")
    return done.stdout


def _is_remark(line: str) -> bool:
    return line.startswith(("level=INFO", "level=WARN", "walk.go", "WARNING"))
