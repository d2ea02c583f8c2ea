"""The namespace: its Pod Security level and the results claim."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from stratlab.check.finding import Finding, ask, unseen
from stratlab.cluster.connection import Connection

ABSENT = "does not exist [SL-namespace-absent]"
ENFORCE = "pod-security.kubernetes.io/enforce"
DEFAULT_CLASS = "storageclass.kubernetes.io/is-default-class"
MANIFESTS = "kubectl apply -k manifests/overlays/cluster"


def check_namespace(connection: Connection, namespace: str) -> Iterator[Finding]:
    """Whether it exists and which Pod Security level it enforces."""
    found = ask(connection, f"/api/v1/namespaces/{namespace}")
    if found is None:
        yield Finding("problem", f"namespace {namespace}", ABSENT, MANIFESTS)
        return
    if isinstance(found, int):
        yield unseen(f"namespace {namespace}", "namespaces, so its Pod Security level is not known")
        return
    level = (found["metadata"].get("labels") or {}).get(ENFORCE)
    if level is None:
        fix = f"kubectl label namespace {namespace} {ENFORCE}=restricted"
        seen = "enforces no Pod Security level of its own [SL-no-pod-security]"
        yield Finding("warning", f"namespace {namespace}", seen, fix)
        return
    note = "; run.workload.api=mpijob-v1 needs baseline" if level == "restricted" else ""
    yield Finding("ok", f"namespace {namespace}", f"enforces Pod Security {level}{note}")


def check_claim(connection: Connection, namespace: str, claim: str) -> Iterator[Finding]:
    """Bound, and for all nodes. Whether it really is shared, two pods find out."""
    found = ask(connection, f"/api/v1/namespaces/{namespace}/persistentvolumeclaims/{claim}")
    subject = f"claim {claim}"
    if found is None:
        seen = f"is not in namespace {namespace} [SL-claim-absent]"
        yield Finding("problem", subject, seen, f"{MANIFESTS}, or name it with --claim")
        return
    if isinstance(found, int):
        yield unseen(subject, "claims")
        return
    modes, phase = found["spec"].get("accessModes") or [], (found.get("status") or {}).get("phase")
    size = ((found.get("status") or {}).get("capacity") or {}).get("storage", "unknown size")
    if phase == "Pending" and (finding := check_storage_class(connection, subject, found)):
        yield finding
    elif phase == "Lost" or (phase == "Pending" and "ReadWriteMany" not in modes):
        seen = f"is {phase} [SL-claim-unusable]"
        yield Finding("problem", subject, seen, f"kubectl -n {namespace} describe pvc {claim}")
    elif phase != "Bound":
        yield Finding(
            "warning",
            subject,
            f"is {phase} until a pod uses it [SL-claim-pending]",
            f"kubectl -n {namespace} describe pvc {claim}",
        )
    elif "ReadWriteMany" not in modes:
        fix = "a StorageClass that offers ReadWriteMany (NFS, CephFS, a parallel file system), for more than one node"
        seen = f"is {', '.join(modes)}: every pod must be on one node [SL-claim-one-node]"
        yield Finding("warning", subject, seen, fix)
    else:
        yield Finding("ok", subject, f"is bound, ReadWriteMany, {size}")


def check_storage_class(connection: Connection, subject: str, claim: Mapping[str, Any]) -> Finding | None:
    """Why nothing will fill the claim: its StorageClass is not there, or it names none and there is no default."""
    wanted = claim["spec"].get("storageClassName")
    listed = ask(connection, "/apis/storage.k8s.io/v1/storageclasses")
    if not isinstance(listed, dict) or wanted == "":  # "": a volume that somebody makes by hand
        return None
    classes = [each["metadata"] for each in listed["items"]]
    names = [str(each["name"]) for each in classes]
    there = f"there is {', '.join(names)}" if names else "there is none at all"
    if wanted:
        if wanted in names:
            return None
        seen = f"is Pending: its StorageClass {wanted} does not exist; {there} [SL-storage-class-absent]"
    elif any((each.get("annotations") or {}).get(DEFAULT_CLASS) == "true" for each in classes):
        return None
    else:
        why = "it names no StorageClass, and no one is the cluster's default"
        seen = f"is Pending: {why}; {there} [SL-no-default-class]"
    fix = (
        "set storageClassName of the claim in your overlay (manifests/overlays), or make one the default: "
        f"kubectl annotate storageclass NAME {DEFAULT_CLASS}=true"
    )
    return Finding("problem", subject, seen, fix)
