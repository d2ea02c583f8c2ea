"""How a run ended: the trainer's own words from the pods' termination messages, and what to do next."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from stratlab.cluster.pods import container_status, place_of, training_container

FAILED = 1
SURVIVORS = (134, 143)  # lost a peer, or were told to stop: somebody else is the culprit

# By exit code of the trainer (trainer/failures.py), what helps.
ADVICE = {
    2: "mend what is named above, helm uninstall, and install again",
    3: "data and model as the sentence above says; what run.config.dataset_path or model_path names lies on the "
    "results volume, for no pod sees a folder of yours (docs/cluster.md, Data of your own)",
    4: 'the node, its driver and device plugin, an image with VARIANT=cuda; on CPUs: run.accelerator=""',
    10: "a smaller run.config.micro_batch_size, or a strategy that shards more (zero2, fsdp)",
    12: "a smaller run.config.lr or run.config.clip_norm",
    13: "free space on the results claim, then install again: the run goes on where it was",
    14: "what fails every time; the log on the results volume has all attempts, those of pods that are gone too",
    15: "a larger run.config.deadline_s",
    137: "most often the memory of the pod: run.resources.limits.memory, run.sharedMemory.sizeLimit",
}


@dataclass(frozen=True)
class Termination:
    """The end of a pod's training container."""

    pod: str
    role: str
    exit_code: int
    reason: str
    message: str
    finished: str


def read_termination(pod: Mapping[str, Any]) -> Termination | None:
    """The last end of the training container, if it has ended. The trainer writes one line of JSON."""
    status = container_status(pod, training_container(pod))
    states = (status.get("state") or {}, status.get("lastState") or {})
    ended = next((state["terminated"] for state in states if state.get("terminated")), None)
    if ended is None:
        return None
    said = _parse(ended.get("message", ""))
    return Termination(
        pod=str(pod["metadata"]["name"]),
        role=place_of(pod)[0],
        exit_code=int(said.get("exit_code", ended.get("exitCode", FAILED))),
        reason=str(said.get("reason") or ended.get("reason") or "ended"),
        message=str(said.get("message") or "").strip(),
        finished=str(ended.get("finishedAt") or ""),
    )


def find_culprit(terminations: Iterable[Termination]) -> Termination | None:
    """Whose end made the run fail: a launcher's, else a permanent code before another, else the first."""
    failed = [each for each in terminations if each.exit_code]

    def rank(each: Termination) -> tuple[bool, bool, bool, str]:
        return (each.role != "launcher", each.exit_code >= 128, each.exit_code in SURVIVORS, each.finished)

    return min(failed, key=rank, default=None)


def _parse(message: str) -> dict[str, Any]:
    try:
        said = json.loads(message.strip().splitlines()[-1])
    except (ValueError, IndexError):
        return {}
    return said if isinstance(said, dict) else {}
