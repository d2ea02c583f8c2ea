"""What a run has to show after a fault."""

from __future__ import annotations

import json

from tests.cluster.lab import MOUNT, Lab


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
