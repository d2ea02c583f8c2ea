"""The last lines of a watch: how it ended, why, and what to type next."""

from __future__ import annotations

import dataclasses
from typing import Any

from stratlab.cluster.pods import node_rank
from stratlab.cluster.workloads import SUCCEEDED
from stratlab.rendering.checking import name_settings
from stratlab.watch.ending import ADVICE
from stratlab.watch.picture import Picture, count_shares

REFUSED = (2, 3)  # of the trainer: settings, data or a model
NO_PROGRESS = 14  # of the trainer; the pods that failed are gone, this one only counted them


def build_farewell(picture: Picture) -> list[str]:
    """Lines to print."""
    workload = picture.workload
    here = f"{workload.release} -n {workload.namespace}"
    if picture.state == SUCCEEDED:
        lines = [f"{workload.release}: succeeded"]
    elif picture.deleted:
        lines = [f"{workload.release}: {workload.title} was deleted before it ended"]
    else:
        lines = _explain_failure(picture)
        earlier = " --previous" if picture.culprit and picture.culprit.exit_code == NO_PROGRESS else ""
        lines.append(f"next: stratlab logs {here}{_rank_option(picture)}{earlier}")
    job = picture.analysis
    state = picture.analysis_state
    directory, claim = workload.facts.run_directory, workload.facts.results_claim or "of the results"
    if _is_refused(picture):
        pass  # what lies in its folder, and any report, is another run's
    elif job and state == "Failed":
        job = picture.failed_waiter or job
        name = job["metadata"]["name"]
        several = f"-l batch.kubernetes.io/job-name={name} --prefix --tail=-1"
        pods = f"job/{name}" if count_shares(job) == 1 else several
        lines.append(f"the analysis failed: kubectl logs {pods} -n {workload.namespace}")
    elif state == "Complete" and directory:
        lines.append(f"report: {directory}/analysis/report.html on the claim {claim}")
    elif directory and not picture.deleted:
        lines.append(f"results: {directory} on the claim {claim}")
    if picture.state == SUCCEEDED and not directory:  # a check, whose table is rank 0's log
        lines.append(f"next: stratlab logs {here}")
    elif picture.state == SUCCEEDED:
        comparison = directory.split("/")[-2]
        lines.append(f"next: stratlab compare {comparison} --on-cluster -n {workload.namespace}")
    return lines


def _is_refused(picture: Picture) -> bool:
    """Whether it has ended before its first step, for its settings, data or model."""
    end = picture.culprit
    return (
        picture.state != SUCCEEDED
        and picture.progress is None
        and end is not None
        and end.exit_code in REFUSED
    )


def describe_left(picture: Picture | None) -> str:
    """What goes on without whoever watched; None = no run has been seen."""
    if picture is None:
        return "no such run has come yet"
    if not picture.has_ended:
        return "the run goes on"
    return (
        f"the run is {picture.state}, its analysis goes on"
        if picture.analysis
        else f"the run is {picture.state}"
    )


def build_ending(picture: Picture, exit_code: int) -> dict[str, Any]:
    """The same for programs. `analysis` is the state of its Job, null without one; `culprit` who made the run fail."""
    workload, end, progress = picture.workload, picture.culprit, picture.progress
    return {
        "release": workload.release,
        "namespace": workload.namespace,
        "state": picture.state,
        "exit_code": exit_code,
        "attempts": picture.attempt,
        "step": progress.step if progress else None,
        "steps": progress.steps if progress else None,
        "culprit": dataclasses.asdict(end) if end and exit_code else None,
        "analysis": picture.analysis_state or None,
        "run_directory": workload.facts.run_directory,
        "results_claim": workload.facts.results_claim,
    }


def _explain_failure(picture: Picture) -> list[str]:
    end = picture.culprit
    if end is None:
        said = picture.workload.message or "and no pod is left to say why"
        return [f"{picture.workload.release}: failed: {said}"]
    lines = [f"{picture.workload.release}: failed: {end.reason} (exit code {end.exit_code}, pod {end.pod})"]
    lines += [f"  {name_settings(line)}" for line in end.message.splitlines()]
    if end.exit_code in ADVICE:
        lines.append(f"what helps: {ADVICE[end.exit_code]}")
    return lines


def _rank_option(picture: Picture) -> str:
    """--rank of the culprit's first rank, unless it is 0 or unknown."""
    workload, end = picture.workload, picture.culprit
    pod = next((p for p in picture.training_pods if end and p["metadata"]["name"] == end.pod), None)
    index = node_rank(pod, workload.has_master) if pod else None
    if not index or not workload.facts.processes:
        return ""
    return f" --rank {index * (workload.facts.processes // workload.nodes)}"
