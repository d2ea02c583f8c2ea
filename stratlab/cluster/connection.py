"""Find the API server and the credentials as kubectl does, then read JSON and streams.

Inside a pod, each request reads the mounted token again, because the kubelet replaces it. `Patience` repeats a request
until the server answers, refuses permanently, or the caller stops it.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import requests.utils
import tenacity
import urllib3
import yaml
from kubernetes.client import ApiClient, Configuration
from kubernetes.client.exceptions import ApiException
from kubernetes.config import kube_config
from kubernetes.config.config_exception import ConfigException

from stratlab import UserError
from stratlab.cluster import ClusterError
from stratlab.cluster.pod_template import PodResources, parse_pod_resources
from stratlab.wording import name_allowed

PASSING = (429, 500, 502, 503, 504)
DENIED = (
    401,
    403,
    404,
)  # final, unless an earlier request succeeded: a token, role or definition is being replaced
DENIED_TRIES = 5
LONGEST_PAUSE_S = 30.0
SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
CONNECT_S, READ_S = 5.0, 30.0
ALIVE_S = 6.0
AS = "Impersonate-User"
RETRIES = urllib3.Retry(total=0)  # `Patience` and `get` repeat requests, so that every retry is visible here

Answer = TypeVar("Answer")


def may_pass(failure: BaseException | None) -> bool:
    """Return whether the same request may succeed a little later."""
    return isinstance(failure, ClusterError) and (failure.status is None or failure.status in PASSING)


def wait_as_asked(backoff: tenacity.wait.wait_base) -> Callable[[tenacity.RetryCallState], float]:
    """Return `backoff`, raised to the server's Retry-After."""

    def wait(state: tenacity.RetryCallState) -> float:
        failure = _failure(state)
        asked = failure.retry_after_s if isinstance(failure, ClusterError) else 0.0
        return max(asked, backoff(state))

    return wait


@dataclass(frozen=True)
class Patience:
    """Limit how long requests are repeated: to `deadline` (time.monotonic()), or until `stop` is set.

    `pause_s` is the shortest pause between two tries; pauses grow to 30 s. `say` receives a sentence about an outage.
    """

    deadline: float | None = None
    stop: threading.Event = field(default_factory=threading.Event)
    say: Callable[[str], None] = lambda sentence: None
    pause_s: float = 0.5

    def is_over(self) -> bool:
        return self.stop.is_set() or (self.deadline is not None and time.monotonic() >= self.deadline)

    def left_s(self, longest: float) -> float:
        """Return the seconds until the deadline, at most `longest` and at least 0.1."""
        return longest if self.deadline is None else min(longest, max(0.1, self.deadline - time.monotonic()))

    def sleep(self, seconds: float) -> None:
        """Sleep, but not beyond the deadline."""
        self.stop.wait(self.left_s(seconds))

    def persist(self, request: Callable[[], Answer], *, answered_before: bool) -> Answer | None:
        """Repeat `request` until it returns; return None if the deadline or `stop` ends this first.

        Raises:
            ClusterError: a final answer. With `answered_before`, a denial is tried again up to 5 times.
        """

        def is_worth_it(state: tenacity.RetryCallState) -> bool:
            failure = _failure(state)
            patient = answered_before and state.attempt_number < DENIED_TRIES
            denied = isinstance(failure, ClusterError) and failure.status in DENIED
            return may_pass(failure) or (patient and denied)

        def tell(state: tenacity.RetryCallState) -> None:
            if state.attempt_number == 2:
                self.say(f"{_failure(state)}; trying again")

        retrying = tenacity.Retrying(
            retry=is_worth_it,
            wait=wait_as_asked(
                tenacity.wait_random_exponential(multiplier=self.pause_s, max=LONGEST_PAUSE_S)
            ),
            stop=lambda state: self.is_over(),
            sleep=self.sleep,
            before_sleep=tell,
        )
        try:
            return retrying(request)
        except tenacity.RetryError:
            return None


def _failure(state: tenacity.RetryCallState) -> BaseException | None:
    return state.outcome.exception() if state.outcome else None


@dataclass(frozen=True)
class Connection:
    """Hold a client for one API server and one namespace; `origin` names the source of the configuration."""

    client: ApiClient
    namespace: str
    origin: str
    pod_resources: PodResources = field(default_factory=PodResources)
    """Resources of the pods that this connection starts."""

    @property
    def server(self) -> str:
        """Return the address of the API server."""
        return str(self.client.configuration.host)

    @property
    def core(self) -> str:
        """Return the path of the namespace in the core API: pods, events, claims."""
        return f"/api/v1/namespaces/{self.namespace}"

    @property
    def jobs(self) -> str:
        """Return the path of the namespace's Jobs."""
        return f"/apis/batch/v1/namespaces/{self.namespace}/jobs"

    def get(self, path: str, query: Mapping[str, str] | None = None) -> dict[str, Any]:
        """Return the object at `path` as JSON; try temporary failures (429, 5xx, no answer) four times.

        Raises:
            ClusterError: with the server's own sentence.
        """
        for attempt in tenacity.Retrying(
            retry=tenacity.retry_if_exception(may_pass),
            wait=wait_as_asked(tenacity.wait_random_exponential(multiplier=0.3, max=3)),
            stop=tenacity.stop_after_attempt(4),
            reraise=True,
        ):
            with attempt:
                response = self.stream(path, query)
                try:
                    return dict(json.loads(response.data))
                except (urllib3.exceptions.HTTPError, ValueError, TypeError, RecursionError) as failure:
                    raise ClusterError(
                        f"{self.server}: the answer ended early ({failure}) [SL-answer-broke-off]"
                    ) from failure
        raise AssertionError("tenacity returns or raises")

    def check_alive(self, silence_s: float = ALIVE_S) -> None:
        """Send one request that every server answers to every user, before a request that may wait for minutes.

        Raises:
            ClusterError: the server was silent for `silence_s`.
        """
        began = time.monotonic()
        try:
            self.stream("/version", silence_s=silence_s).close()
        except ClusterError as failure:
            waited_s = time.monotonic() - began
            if failure.status is None and waited_s >= 0.9 * min(CONNECT_S, silence_s):
                raise ClusterError(
                    f"{self.server}: the API server of {self.origin} did not answer within {waited_s:.0f} s; "
                    "check that the control plane runs and that this machine reaches it [SL-server-silent]"
                ) from failure

    def stream(
        self, path: str, query: Mapping[str, str] | None = None, *, silence_s: float = READ_S
    ) -> urllib3.HTTPResponse:
        """Return the open answer to a GET request; the caller reads it in pieces and closes it.

        Raises:
            ClusterError: the server is unreachable, silent for `silence_s`, or answers with a status other than 2xx.
        """
        try:
            return self.client.call_api(
                path,
                "GET",
                query_params=list((query or {}).items()),
                header_params={"Accept": "application/json, */*"},
                auth_settings=["BearerToken"],
                _preload_content=False,
                _return_http_data_only=True,
                _request_timeout=(min(CONNECT_S, silence_s), silence_s),
            )
        except (ApiException, urllib3.exceptions.HTTPError, OSError) as failure:
            raise explain(self, failure) from failure


def connect(
    *,
    context: str | None = None,
    namespace: str | None = None,
    pod_resources: str = "",
    environ: Mapping[str, str] = os.environ,
) -> Connection:
    """Find a cluster as `find_cluster` does, and check that it answers.

    Raises:
        UserError: no cluster is configured, or the context is unknown.
        ClusterError: the API server does not answer.
    """
    connection = find_cluster(
        context=context, namespace=namespace, pod_resources=pod_resources, environ=environ
    )
    connection.check_alive()
    return connection


def find_cluster(
    *,
    context: str | None = None,
    namespace: str | None = None,
    pod_resources: str = "",
    environ: Mapping[str, str] = os.environ,
) -> Connection:
    """Return the cluster that kubectl would use: $KUBECONFIG or ~/.kube/config, else the pod's own token.

    Args:
        pod_resources: value of the option `--pod-resources`.

    Raises:
        UserError: no cluster is configured, or the context is unknown.
    """
    resources = parse_pod_resources(pod_resources)
    listed = environ.get("KUBECONFIG", "")
    paths = [Path(path).expanduser() for path in (listed or "~/.kube/config").split(os.pathsep) if path]
    found = [path for path in paths if path.is_file()]
    if not found:
        inside = connect_in_cluster(environ) if not (listed or context) else None
        if inside:
            return replace(inside, namespace=namespace or inside.namespace, pod_resources=resources)
        where = (
            f"KUBECONFIG={listed} {'is a folder, not a file' if any(map(Path.is_dir, paths)) else 'does not exist'}"
            if listed
            else "~/.kube/config does not exist, and KUBECONFIG is not set"
        )
        raise UserError(f"no cluster is configured: {where} [SL-no-cluster]")
    return replace(_read_kubeconfig(found, context, namespace), pod_resources=resources)


def _read_kubeconfig(found: list[Path], context: str | None, namespace: str | None) -> Connection:
    configuration = Configuration()
    try:
        merged = kube_config.KubeConfigMerger(os.pathsep.join(str(path) for path in found)).config
        names = [each["name"] for each in merged.safe_get("contexts") or []]
        chosen = context or merged.safe_get("current-context")
        if chosen not in names:
            wanted = f"no context {chosen!r}" if chosen else "no current context"
            there = name_allowed(chosen or "", names, "there is", "that `kubectl config get-contexts` lists")
            told = there if names else "there is none"
            raise UserError(f"{_list(found)}: {wanted}; {told} [SL-context-unknown]")
        loader = kube_config.KubeConfigLoader(
            config_dict=merged, active_context=chosen, config_base_path=None
        )
        loader.load_and_set(configuration)
        headers = _impersonate(merged, loader.current_context["context"].get("user"))
    except UnicodeDecodeError as failure:
        raise UserError(
            f"{_list(found)}: not a kubeconfig, byte {failure.start} is not UTF-8 [SL-kubeconfig-not-utf8]"
        ) from None
    except (ConfigException, KeyError, TypeError, yaml.YAMLError) as failure:
        raise UserError(f"{_list(found)}: {failure} [SL-kubeconfig-invalid]") from failure
    default = loader.current_context["context"].get("namespace") or "default"
    client = _build_client(configuration)
    for header, value in headers.items():
        client.set_default_header(header, value)
    asks = f" as {headers[AS]}" if AS in headers else ""
    return Connection(client, namespace or default, f"context {chosen}{asks}")


def _impersonate(merged: Any, user: str | None) -> dict[str, str]:
    """Return header -> value for a user entry that impersonates another user.

    The Kubernetes client ignores these keys, so that every answer would describe the rights of the impersonating user.

    Raises:
        ConfigException: a key that one header cannot hold.
    """
    entries = {each["name"]: each.value.get("user") or {} for each in merged.safe_get("users") or []}
    found = entries.get(user) or {}
    entry = getattr(found, "value", found)
    held = {name: entry[name] for name in ("as", "as-uid", "as-groups", "as-user-extra") if name in entry}
    groups = list(held.get("as-groups") or [])
    if len(groups) > 1 or held.get("as-user-extra"):
        raise ConfigException(
            f"user {user}: stratlab cannot impersonate a user with several groups or with as-user-extra; "
            "use a token of that account (kubectl create token), or one group at a time "
            "[SL-impersonation-partial]"
        )
    headers = {
        AS: held.get("as"),
        "Impersonate-Uid": held.get("as-uid"),
        "Impersonate-Group": next(iter(groups), None),
    }
    return {header: str(value) for header, value in headers.items() if value}


def connect_in_cluster(
    environ: Mapping[str, str] = os.environ, folder: Path | None = None
) -> Connection | None:
    """Return the cluster of this pod, as its ServiceAccount; None outside a pod, or without a token."""
    folder = folder or SERVICE_ACCOUNT
    host, token = environ.get("KUBERNETES_SERVICE_HOST"), folder / "token"
    if not host or not token.is_file():
        return None
    configuration = Configuration()
    scheme = "https" if (folder / "ca.crt").is_file() else "http"
    host = f"[{host}]" if ":" in host else host
    configuration.host = f"{scheme}://{host}:{environ.get('KUBERNETES_SERVICE_PORT') or 443}"
    configuration.ssl_ca_cert = str(folder / "ca.crt") if scheme == "https" else None

    def read_token(changed: Configuration) -> None:
        changed.api_key["authorization"] = f"Bearer {token.read_text().strip()}"

    read_token(configuration)
    configuration.refresh_api_key_hook = read_token
    namespace = folder / "namespace"
    name = namespace.read_text().strip() if namespace.is_file() else "default"
    return Connection(_build_client(configuration), name, "the pod's ServiceAccount")


def explain(connection: Connection, failure: Exception) -> ClusterError:
    """Return a ClusterError with one sentence for a failed request."""
    if isinstance(failure, ApiException) and failure.status:
        message = _message(failure)
        if failure.status == 401:
            whose = f"{connection.server} does not accept the credentials of {connection.origin}"
            message = f"{whose}: {message} [SL-credentials-refused]"
        asked = (failure.headers or {}).get("Retry-After", "")
        return ClusterError(message, int(failure.status), float(asked) if asked.isdigit() else 0.0)
    cause = failure
    while isinstance(cause, urllib3.exceptions.MaxRetryError) and cause.reason:
        cause = cause.reason
    return ClusterError(
        f"{connection.server}: the API server is unreachable ({_short(cause)}) [SL-server-unreachable]"
    )


def _message(failure: ApiException) -> str:
    try:
        return str(json.loads(failure.body)["message"])
    except (ValueError, KeyError, TypeError):
        body = failure.body.decode(errors="replace") if isinstance(failure.body, bytes) else failure.body
        return f"{failure.status} {failure.reason or ''}: {(body or '').strip()[:200]}"


def _short(cause: BaseException) -> str:
    """Return the cause without the name of the connection that urllib3 puts in front."""
    return str(cause).partition("): ")[2] or str(cause)


def _build_client(configuration: Configuration) -> ApiClient:
    configuration.retries = RETRIES
    # The client itself uses any *_proxy for any address, and ignores no_proxy.
    scheme = configuration.host.partition(":")[0]
    configuration.proxy = requests.utils.get_environ_proxies(configuration.host).get(scheme)
    return ApiClient(configuration)


def _list(paths: list[Path]) -> str:
    return ", ".join(map(str, paths))
