"""What a run has to show after a fault."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from stratlab.cluster.job_end import ANALYSIS, pick_jobs
from tests.cluster.lab import KUBECTL, MOUNT, Lab, run, wait_until


def check_steps(starts: list[dict[str, Any]], lines: list[dict[str, Any]], steps: int) -> None:
    """Every step was made, and each attempt made its own once, from where it began; the last one to the end.

    Args:
        starts: the lines `started` of attempts.jsonl.
        lines: of metrics.jsonl.

    Raises:
        AssertionError: not so.
    """
    reached = 0
    for start in starts:
        first = start["from_step"]
        assert first <= reached, (
            f"attempt {start['attempt']} began behind step {first}, reached was {reached}"
        )
        made = [
            line["step"] for line in lines if line["kind"] == "train" and line["attempt"] == start["attempt"]
        ]
        assert made == list(range(first + 1, first + 1 + len(made))), (
            f"attempt {start['attempt']} made {made}"
        )
        reached = max(reached, first + len(made))
    assert starts[-1]["from_step"] + len(made) == steps, f"the last attempt ended behind step {reached}"


def check_complete(lab: Lab, release: str, attempts: int | None = None, comparison: str = "e2e") -> int:
    """Succeeded, nothing lost: every step was made, MLflow has what the file has. How many attempts there were."""
    done = lab.watch(release)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    folder = f"{comparison}/{release}"
    starts = [line for line in lab.read_lines(f"{folder}/attempts.jsonl") if line["event"] == "started"]
    summary = json.loads(lab.on_volume("cat", f"{MOUNT}/{folder}/summary.json"))
    check_steps(starts, lab.read_lines(f"{folder}/metrics.jsonl"), summary["steps"])
    if attempts is not None:
        assert len(starts) == attempts
    lab.test(release)  # counts every point in MLflow against metrics.jsonl
    return len(starts)


def restarts(lab: Lab, release: str, comparison: str = "e2e") -> dict[str, int]:
    """{pod: how often it was started}, from the ledgers on the volume."""
    listing = lab.on_volume("grep", "-c", '"started"', "-r", f"{MOUNT}/{comparison}/{release}/pods")
    return {line.rsplit("/", 1)[1].split(".")[0]: int(line.rsplit(":", 1)[1]) for line in listing.split()}


def analysis_state(lab: Lab, release: str) -> str:
    """Complete, Failed, or nothing yet."""
    jobs = lab.get("jobs", "-l", f"app.kubernetes.io/instance={release}")["items"]
    jobs = pick_jobs(jobs, ANALYSIS)
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
