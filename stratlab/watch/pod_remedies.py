"""What helps a pod that does not start, by the words in which Kubernetes says why."""

from __future__ import annotations

import re

NO_CLAIM = re.compile(r'persistentvolumeclaim "[^"]+" not found')
NO_IMAGE = re.compile(r"ErrImagePull|ImagePullBackOff|InvalidImageName|ErrImageNeverPull")
NO_LABEL = re.compile(r"didn't match Pod's node affinity/selector")
TAINTED = re.compile(r"untolerated taint")
TOO_LITTLE = re.compile(r"Insufficient (cpu|memory)\b")
NO_DEVICE = re.compile(r"Insufficient [\w.-]+/[\w.-]+")


def find_remedy(note: str, namespace: str, *, is_analysis: bool = False) -> str:
    """One sentence for what keeps a pod from running; "" where nothing is known to help.

    Args:
        note: of the pod's row.
    """
    if NO_CLAIM.search(note):
        return (
            f"namespace {namespace} lacks what runs need: was -n left out of helm install? "
            f"`stratlab check -n {namespace}` says what is missing"
        )
    if NO_IMAGE.search(note):
        if is_analysis:
            return "helm upgrade with --reuse-values and run.analysis.image as the nodes can pull it"
        return "run.image (repository, tag, pullSecrets) as the nodes can pull it; helm uninstall, and install again"
    if NO_LABEL.search(note):
        return "run.scheduling.nodeSelector as nodes are labelled: kubectl get nodes --show-labels"
    if TAINTED.search(note):
        return "run.scheduling.tolerations for the taint that is named"
    if found := TOO_LITTLE.search(note):
        return f"a smaller run.resources.requests.{found[1]}, or fewer pods at a time"
    if NO_DEVICE.search(note):
        return (
            "fewer of them (run.nodes x run.processesPerNode), or wait until others have ended: `stratlab check` "
            "counts the free ones; on CPUs run.accelerator="
        )
    return ""
