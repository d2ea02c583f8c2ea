"""Who may do what in the namespace: the analysis Job's account, and whoever runs this."""

from __future__ import annotations

from collections.abc import Iterator

from kubernetes.client import AuthorizationV1Api
from kubernetes.client.exceptions import ApiException

from stratlab.check.finding import Finding, ask, unseen
from stratlab.check.namespace import MANIFESTS
from stratlab.cluster.connection import Connection, explain
from stratlab.cluster.workloads import APIS

ACCOUNT = "stratlab-analysis"
MINE = (
    *((("", "pods", verb)) for verb in ("get", "list", "watch", "create", "delete")),
    ("", "pods/log", "get"),
    *((("", "secrets", verb)) for verb in ("list", "create", "update", "delete")),
    ("batch", "jobs", "create"),
    ("batch", "jobs", "watch"),
)


def check_account(connection: Connection, namespace: str, served: list[str]) -> Iterator[Finding]:
    """The ServiceAccount of the analysis Job, and whether it may watch runs."""
    subject = f"account {ACCOUNT}"
    found = ask(connection, f"/api/v1/namespaces/{namespace}/serviceaccounts/{ACCOUNT}")
    if found is None:
        yield Finding("problem", subject, f"is not in namespace {namespace} [SL-account-absent]", MANIFESTS)
        return
    if isinstance(found, int):
        yield unseen(subject, "ServiceAccounts")
    user = f"system:serviceaccount:{namespace}:{ACCOUNT}"
    wanted = [
        (APIS[name].group, APIS[name].plural, verb) for name in served for verb in ("get", "list", "watch")
    ]
    wanted += [("batch", "jobs", verb) for verb in ("get", "patch")]
    missing = _denied(connection, namespace, wanted, user)
    if missing is None:
        yield unseen(subject, "the rights of others")
    elif missing:
        yield Finding("problem", subject, f"may not {', '.join(missing)} [SL-account-rights]", MANIFESTS)
    else:
        yield Finding(
            "ok",
            subject,
            "may watch the runs of " + (", ".join(served) or "no API") + ", and start their analysis",
        )


def check_rights(connection: Connection, namespace: str, served: list[str]) -> Iterator[Finding]:
    """Whether this user may install a chart and follow its run."""
    wanted = [
        (APIS[name].group, APIS[name].plural, verb)
        for name in served
        for verb in ("create", "watch", "delete")
    ]
    missing = _denied(connection, namespace, [*MINE, *wanted], None)
    if missing:
        fix = f"kubectl -n {namespace} create rolebinding NAME --role=stratlab-user --user=USER"
        yield Finding("problem", "your rights", f"you may not {', '.join(missing)} [SL-user-rights]", fix)
    elif missing is not None:
        yield Finding("ok", "your rights", "you may install charts and follow runs")


def _denied(
    connection: Connection, namespace: str, wanted: list[tuple[str, str, str]], user: str | None
) -> list[str] | None:
    """What is not allowed, as `verb resource`; None = may not ask. `user` None = oneself."""
    api = AuthorizationV1Api(connection.client)
    denied = []
    for group, resource, verb in wanted:
        resource, _, subresource = resource.partition("/")
        attributes = {"namespace": namespace, "group": group, "resource": resource, "verb": verb}
        attributes |= {"subresource": subresource} if subresource else {}
        try:
            if user:
                body = {
                    "metadata": {"namespace": namespace},
                    "spec": {"user": user, "resourceAttributes": attributes},
                }
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
