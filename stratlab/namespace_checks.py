"""Check a cluster and one namespace through the API server: GPUs, claim, quotas, rights. Used by `stratlab check`.

Each check yields findings. Objects that the user may not read give a warning without a verdict.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from kubernetes.client import AuthorizationV1Api
from kubernetes.client.exceptions import ApiException
from kubernetes.utils.quantity import parse_quantity

from stratlab.cluster import ClusterError
from stratlab.cluster.connection import Connection, explain
from stratlab.cluster.pod_phase import PodRefused
from stratlab.cluster.pod_template import GPU
from stratlab.cluster.workloads import APIS
from stratlab_spec.findings import Finding

ABSENT = "does not exist [SL-namespace-absent]"
ENFORCE = "pod-security.kubernetes.io/enforce"
DEFAULT_CLASS = "storageclass.kubernetes.io/is-default-class"
MANIFESTS = "kubectl apply -k manifests/overlays/cluster"
OF_CONTAINERS = ("limits.cpu", "limits.memory", "requests.cpu", "requests.memory", "limits.ephemeral-storage")
SET_BY_CHARTS = ("requests.cpu", "requests.memory")
"""Amounts that the charts set for every pod."""
SET_UNLESS_TRAINING = "limits.memory"
ACCOUNT = "stratlab-analysis"
MINE = (
    *(("", "pods", verb) for verb in ("get", "list", "watch", "create", "delete")),
    ("", "pods/log", "get"),
    *(("", "secrets", verb) for verb in ("list", "create", "update", "delete")),
    *(("batch", "jobs", verb) for verb in ("create", "watch")),
)


def ask(
    connection: Connection, path: str, query: dict[str, str] | None = None
) -> dict[str, Any] | int | None:
    """Return the object at `path`; None = it does not exist; 403 = not permitted.

    Raises:
        ClusterError: any other failure, so that the cluster cannot be checked.
    """
    try:
        return connection.get(path, query)
    except ClusterError as failure:
        if failure.status == 404:
            return None
        if failure.status == 403:
            return 403
        raise


def unseen(subject: str, what: str) -> Finding:
    """Build the finding for an object that the user may not read: no verdict."""
    return Finding(
        "warning",
        subject,
        f"you may not read {what} [SL-may-not-look]",
        "ask the cluster's administrator, or check as an administrator",
    )


def say_refused(subject: str, refused: PodRefused) -> Finding:
    """Build the finding for a pod that a quota or a LimitRange refused: a warning if it may start later."""
    return Finding("warning" if refused.passes else "problem", subject, refused.seen, refused.fix)


def guarded(subject: str, look: Callable[[], Iterator[Finding]]) -> Iterator[Finding]:
    """Yield the findings of `look`; if an API fails, end with a problem so that the other checks continue."""
    try:
        yield from look()
    except ClusterError as failure:
        yield Finding("problem", subject, str(failure))


def check_gpus(connection: Connection) -> Iterator[Finding]:
    """Check the allocatable GPUs on nodes that accept pods, and the number already requested."""
    nodes = ask(connection, "/api/v1/nodes")
    if not isinstance(nodes, dict):
        yield unseen("GPUs", "nodes")
        return
    per_node = count_offered(nodes["items"])
    total = sum(per_node.values())
    where = f"on {sum(count > 0 for count in per_node.values())} of {len(per_node)} nodes"
    unended = {"fieldSelector": "status.phase!=Succeeded,status.phase!=Failed"}
    if not total:
        fix = 'train on CPUs with --set run.accelerator="", or install the GPU device plugin'
        seen = f"none of {len(per_node)} nodes offers {GPU}: a run that requests it waits until one does [SL-no-gpus]"
        yield Finding("warning", "GPUs", seen, fix)
    elif not isinstance(pods := ask(connection, "/api/v1/pods", unended), dict):
        yield Finding("ok", "GPUs", f"{total} {where}; the number of free ones is not readable")
    else:
        used = sum(count_gpus(pod) for pod in pods["items"] if pod["spec"].get("nodeName") in per_node)
        yield Finding(
            "ok" if used < total else "warning", "GPUs", f"{total - used} of {total} are free, {where}"
        )


def offers_gpus(connection: Connection) -> bool:
    """Return whether a node that accepts pods offers GPUs, if nodes are readable."""
    nodes = ask(connection, "/api/v1/nodes")
    return isinstance(nodes, dict) and any(count_offered(nodes["items"]).values())


def count_offered(nodes: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    """Return GPUs by the name of each node that accepts pods."""
    return {
        node["metadata"]["name"]: int(node["status"].get("allocatable", {}).get(GPU, 0))
        for node in nodes
        if not node["spec"].get("unschedulable")
    }


def count_gpus(pod: Mapping[str, Any]) -> int:
    """Count GPUs as the scheduler does: a limit requests a device."""
    containers = pod["spec"].get("containers") or []
    return sum(int(((each.get("resources") or {}).get("limits") or {}).get(GPU, 0)) for each in containers)


def check_namespace(connection: Connection) -> Iterator[Finding]:
    """Check whether the namespace exists and which Pod Security level it enforces."""
    found, subject = ask(connection, connection.core), f"namespace {connection.namespace}"
    if found is None:
        yield Finding("problem", subject, ABSENT, MANIFESTS)
    elif isinstance(found, int):
        yield unseen(subject, "namespaces, so its Pod Security level is not known")
    elif level := (found["metadata"].get("labels") or {}).get(ENFORCE):
        note = "; run.workload.api=mpijob-v1 needs baseline" if level == "restricted" else ""
        yield Finding("ok", subject, f"enforces Pod Security {level}{note}")
    else:
        fix = f"kubectl label namespace {connection.namespace} {ENFORCE}=restricted"
        yield Finding("warning", subject, "does not enforce a Pod Security level [SL-no-pod-security]", fix)


def check_claim(connection: Connection, claim: str) -> Iterator[Finding]:
    """Check that the claim is bound, and for all nodes. Two pods check whether it really is shared."""
    found, subject = ask(connection, f"{connection.core}/persistentvolumeclaims/{claim}"), f"claim {claim}"
    describe = f"kubectl -n {connection.namespace} describe pvc {claim}"
    if found is None:
        seen = f"is not in namespace {connection.namespace} [SL-claim-absent]"
        yield Finding("problem", subject, seen, f"{MANIFESTS}, or set it with --claim")
        return
    if isinstance(found, int):
        yield unseen(subject, "claims")
        return
    modes, status = found["spec"].get("accessModes") or [], found.get("status") or {}
    phase, size = status.get("phase"), (status.get("capacity") or {}).get("storage", "unknown size")
    if phase == "Pending" and (finding := check_storage_class(connection, subject, found)):
        yield finding
    elif phase == "Lost" or (phase == "Pending" and "ReadWriteMany" not in modes):
        yield Finding("problem", subject, f"is {phase} [SL-claim-unusable]", describe)
    elif phase != "Bound":
        yield Finding("warning", subject, f"is {phase} until a pod uses it [SL-claim-pending]", describe)
    elif "ReadWriteMany" not in modes:
        fix = "a StorageClass that offers ReadWriteMany (NFS, CephFS, a parallel file system), for more than one node"
        seen = f"is {', '.join(modes)}: every pod must be on one node [SL-claim-one-node]"
        yield Finding("warning", subject, seen, fix)
    else:
        yield Finding("ok", subject, f"is bound, ReadWriteMany, {size}")


def check_storage_class(connection: Connection, subject: str, claim: Mapping[str, Any]) -> Finding | None:
    """Explain why the claim stays unbound: its StorageClass does not exist, or there is no default."""
    wanted = claim["spec"].get("storageClassName")
    listed = ask(connection, "/apis/storage.k8s.io/v1/storageclasses")
    if not isinstance(listed, dict) or wanted == "":  # "": a volume that is created by hand
        return None
    classes = [each["metadata"] for each in listed["items"]]
    names = [str(each["name"]) for each in classes]
    there = f"there is {', '.join(names)}" if names else "there is no StorageClass"
    if wanted:
        if wanted in names:
            return None
        seen = f"is Pending: its StorageClass {wanted} does not exist; {there} [SL-storage-class-absent]"
    elif any((each.get("annotations") or {}).get(DEFAULT_CLASS) == "true" for each in classes):
        return None
    else:
        why = "it names no StorageClass, and the cluster has no default"
        seen = f"is Pending: {why}; {there} [SL-no-default-class]"
    fix = (
        "set storageClassName of the claim in your overlay (manifests/overlays), or make one the default: "
        f"kubectl annotate storageclass NAME {DEFAULT_CLASS}=true"
    )
    return Finding("problem", subject, seen, fix)


def check_quotas(connection: Connection) -> Iterator[Finding]:
    """Yield one finding per quota, and one for amounts without a default in the namespace; none without a quota."""
    quotas, ranges = (
        ask(connection, f"{connection.core}/{kind}") for kind in ("resourcequotas", "limitranges")
    )
    if not isinstance(quotas, dict):
        if quotas == 403:
            yield unseen("quotas", "ResourceQuotas")
        return
    wanted: set[str] = set()
    for quota in quotas["items"]:
        yield judge_quota(quota)
        wanted |= (quota["spec"].get("hard") or {}).keys() & {*OF_CONTAINERS}
    given = find_defaults(ranges) if isinstance(ranges, dict) else set()
    missing = sorted(wanted - given - {*SET_BY_CHARTS})
    if missing:
        settings = [f"run.resources.{name}" for name in missing]
        settings += [f"run.analysis.resources.{name}" for name in missing if name != SET_UNLESS_TRAINING]
        names = " and ".join(settings)
        seen = f"every container must set {', '.join(missing)}, and no LimitRange sets a default [SL-quota-no-default]"
        yield Finding("warning", "quotas", seen, f"set {names} of every run")


def judge_quota(quota: Mapping[str, Any]) -> Finding:
    """Compare each amount with its limit; a warning if one is used up."""
    hard = quota["spec"].get("hard") or {}
    used = (quota.get("status") or {}).get("used") or {}
    full = [name for name in hard if name in used and _is_used_up(used[name], hard[name])]
    text = ", ".join(f"{name} {used.get(name, '?')} of {amount}" for name, amount in sorted(hard.items()))
    subject = f"quota {quota['metadata']['name']}"
    if full:
        fix = "no pod that requests it starts until others have ended"
        return Finding("warning", subject, f"{', '.join(full)} used up; {text} used [SL-quota-used-up]", fix)
    return Finding("ok", subject, f"{text} used")


def find_defaults(ranges: Mapping[str, Any]) -> set[str]:
    """Return the amounts that a LimitRange sets for containers without: limits.cpu, requests.memory, ..."""
    found = set()
    for item in (each for one in ranges["items"] for each in one["spec"].get("limits") or []):
        if item.get("type") != "Container":
            continue
        limits = (item.get("default") or item.get("max") or {}).keys()
        found |= {f"limits.{name}" for name in limits}
        found |= {f"requests.{name}" for name in limits | (item.get("defaultRequest") or {}).keys()}
    return found


def _is_used_up(used: str, hard: str) -> bool:
    try:
        return bool(parse_quantity(used) >= parse_quantity(hard) > 0)
    except ValueError:
        return False


def check_account(connection: Connection, served: list[str]) -> Iterator[Finding]:
    """Check the ServiceAccount of the analysis Job, and whether it may watch runs."""
    subject, namespace = f"account {ACCOUNT}", connection.namespace
    found = ask(connection, f"{connection.core}/serviceaccounts/{ACCOUNT}")
    if found is None:
        yield Finding("problem", subject, f"is not in namespace {namespace} [SL-account-absent]", MANIFESTS)
        return
    if isinstance(found, int):
        yield unseen(subject, "ServiceAccounts")
    user = f"system:serviceaccount:{namespace}:{ACCOUNT}"
    wanted = [
        *_rights_on(served, "get", "list", "watch"),
        *(("batch", "jobs", verb) for verb in ("get", "patch")),
    ]
    missing = _denied(connection, wanted, user)
    if missing is None:
        yield unseen(subject, "the rights of others")
    elif missing:
        yield Finding("problem", subject, f"may not {', '.join(missing)} [SL-account-rights]", MANIFESTS)
    else:
        seen = f"may watch the runs of {', '.join(served) or 'no API'}, and start their analysis"
        yield Finding("ok", subject, seen)


def check_rights(connection: Connection, served: list[str]) -> Iterator[Finding]:
    """Check whether this user may install a chart and follow its run."""
    missing = _denied(connection, [*MINE, *_rights_on(served, "create", "watch", "delete")], None)
    if missing:
        fix = f"kubectl -n {connection.namespace} create rolebinding NAME --role=stratlab-user --user=USER"
        yield Finding("problem", "your rights", f"you may not {', '.join(missing)} [SL-user-rights]", fix)
    elif missing is not None:
        yield Finding("ok", "your rights", "you may install charts and follow runs")


def _rights_on(served: list[str], *verbs: str) -> list[tuple[str, str, str]]:
    """Return (API group, resource, verb) of the runs of these APIs."""
    return [(APIS[name].group, APIS[name].plural, verb) for name in served for verb in verbs]


def _denied(connection: Connection, wanted: list[tuple[str, str, str]], user: str | None) -> list[str] | None:
    """Return the denied rights, as `verb resource`; None = not permitted to ask. `user` None = the current user."""
    api, namespace = AuthorizationV1Api(connection.client), connection.namespace
    denied = []
    for group, resource, verb in wanted:
        resource, _, subresource = resource.partition("/")
        attributes = {"namespace": namespace, "group": group, "resource": resource, "verb": verb}
        attributes |= {"subresource": subresource} if subresource else {}
        try:
            if user:
                spec = {"user": user, "resourceAttributes": attributes}
                body = {"metadata": {"namespace": namespace}, "spec": spec}
                review = api.create_namespaced_local_subject_access_review(namespace, body)
            else:
                review = api.create_self_subject_access_review({"spec": {"resourceAttributes": attributes}})
        except ApiException as failure:
            if failure.status == 403:
                return None
            raise explain(connection, failure) from failure
        if not review.status.allowed:
            denied.append(f"{verb} {resource}{'/' * bool(subresource)}{subresource}")
    return denied
