"""What a run has to show after a fault."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager

from tests.cluster.lab import KUBECTL, MOUNT, Lab, run, wait_until


def train_steps(lab: Lab, release: str, comparison: str = "e2e") -> dict[int, list[int]]:
    """{attempt: its steps} of metrics.jsonl."""
    found: dict[int, list[int]] = {}
    for line in lab.read_lines(f"{comparison}/{release}/metrics.jsonl"):
        if line["kind"] == "train":
            found.setdefault(line["attempt"], []).append(line["step"])
    return found


def check_complete(lab: Lab, release: str, attempts: int | None = None, comparison: str = "e2e") -> int:
    """Succeeded, nothing lost: the last attempt has every step once, MLflow has what the file has. Its attempts."""
    done = lab.watch(release)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    steps = train_steps(lab, release, comparison)
    last = steps[max(steps)]
    summary = json.loads(lab.on_volume("cat", f"{MOUNT}/{comparison}/{release}/summary.json"))
    assert last == list(range(1, summary["steps"] + 1))
    if attempts is not None:
        assert max(steps) == attempts
    lab.test(release)  # counts every point in MLflow against metrics.jsonl
    return max(steps)


def restarts(lab: Lab, release: str, comparison: str = "e2e") -> dict[str, int]:
    """{pod: how often it was started}, from the ledgers on the volume."""
    listing = lab.on_volume("grep", "-c", '"started"', "-r", f"{MOUNT}/{comparison}/{release}/pods")
    return {line.rsplit("/", 1)[1].split(".")[0]: int(line.rsplit(":", 1)[1]) for line in listing.split()}


def analysis_state(lab: Lab, release: str) -> str:
    """Complete, Failed, or nothing yet."""
    jobs = lab.get("jobs", "-l", f"app.kubernetes.io/instance={release}")["items"]
    assert len(jobs) == 1
    held = [c["type"] for c in jobs[0]["status"].get("conditions") or [] if c["status"] == "True"]
    return next((state for state in ("Complete", "Failed") if state in held), "")


@contextmanager
def offer(resource: str, count: int) -> Iterator[None]:
    """One node says that it has `count` of an extended resource, as a device plugin makes it; it has none."""
    node = run([KUBECTL, "get", "nodes", "-o", "jsonpath={.items[0].metadata.name}"]).stdout
    path = "/status/capacity/" + resource.replace("/", "~1")

    def patch(change: dict[str, str], check: bool = True) -> None:
        text = json.dumps([{"path": path} | change])
        run([KUBECTL, "patch", "node", node, "--subresource=status", "--type=json", "-p", text], check=check)

    def is_offered() -> bool:
        status = json.loads(run([KUBECTL, "get", "node", node, "-o", "json"]).stdout)["status"]
        return bool(status["allocatable"].get(resource) == str(count))

    patch({"op": "add", "value": str(count)})
    try:
        wait_until(is_offered, f"{count} {resource} on {node}")
        yield
    finally:
        patch({"op": "remove"}, check=False)  # an inner one may have removed it
