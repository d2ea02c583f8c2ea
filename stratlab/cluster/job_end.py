"""How a Job ended, and what became of an analysis, which is two Jobs: the one that waits starts the other."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

COMPONENT = "app.kubernetes.io/component"
ANALYSIS, WAITER = "analysis", "waiter"


def read_job_end(job: Mapping[str, Any]) -> str | None:
    """ "" = complete, text = why it failed, None = not ended."""
    for condition in (job.get("status") or {}).get("conditions") or []:
        if condition["status"] == "True" and condition["type"] == "Complete":
            return ""
        if condition["status"] == "True" and condition["type"] == "Failed":
            return (
                f"{condition.get('reason', '')} {condition.get('message', '')}".strip() or "no reason given"
            )
    return None


def pick_jobs(jobs: Iterable[Mapping[str, Any]], component: str) -> list[Mapping[str, Any]]:
    """Those of a component, the newest last."""
    found = [job for job in jobs if (job["metadata"].get("labels") or {}).get(COMPONENT) == component]
    return sorted(found, key=lambda job: str(job["metadata"].get("creationTimestamp") or ""))


def find_failed_waiter(
    analysis: Mapping[str, Any], jobs: Iterable[Mapping[str, Any]]
) -> Mapping[str, Any] | None:
    """The Job that should have started `analysis` and has failed: nothing will. None as long as something may."""
    waiters = pick_jobs(jobs, WAITER)[-1:]
    if not (analysis.get("spec") or {}).get("suspend") or read_job_end(analysis) is not None:
        return None
    return next((waiter for waiter in waiters if read_job_end(waiter)), None)
