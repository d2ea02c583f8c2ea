"""Wait until a run has ended: by the files of its run directory, and by its resource on the cluster.

A thread of `Resource` watches the custom resource while `wait_for_run` reads the files. `start_job` then starts the
suspended Job of the analysis, and returns when it has ended.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import urllib3
from kubernetes.client import BatchV1Api
from kubernetes.client.exceptions import ApiException

from stratlab import UserError
from stratlab.cluster import ClusterError
from stratlab.cluster.connection import Connection, Patience, explain, may_pass
from stratlab.cluster.pods import NO_STATUS_S, explain_no_status
from stratlab.cluster.watching import DELETED, SYNCED, watch
from stratlab.cluster.workloads import APIS, ENDED, NO_STATUS, SUCCEEDED, Api, Workload, read_job_end
from stratlab.run_directory.outcome import Fingerprint, Outcome, fingerprint, look

# After the end: the files must be silent this long, and get at most this long to become complete. A run that
# succeeded has written everything; another node may see it later (NFS caches a folder for 30 s).
SILENCE_S = {SUCCEEDED: 30.0}
OTHER_SILENCE_S = 5.0
GRACE_S = 60.0
QUIET_S = 120.0
QUEUE = "kueue.x-k8s.io/queue-name"
POLL_S = 10.0


def parse_resource(text: str) -> tuple[Api, str]:
    """Parse API/NAME, the value of `--resource`. Raises UserError."""
    api, slash, name = text.partition("/")
    if api not in APIS or not slash or not name:
        raise UserError(
            f"--resource {text}: expected API/NAME, with API one of {', '.join(APIS)} [SL-resource-form]"
        )
    return APIS[api], name


class Resource:
    """Hold the known state of the resource; `update` adds the watch's new changes."""

    def __init__(self, connection: Connection, api: Api, name: str) -> None:
        self.workload: Workload | None = None
        self.gone = False
        """Whether the resource existed and was deleted."""
        self.refused = ""
        """Why the API is unavailable; then only the files decide."""
        self._synced = self._explained = False
        self._seen_s = self._ended_s = 0.0
        self._connection, self._api, self._name = connection, api, name
        self._changes: queue.Queue[Callable[[], str]] = queue.Queue()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="watch the resource", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()

    def update(self) -> list[str]:
        """Process the changes; return sentences to report."""
        sentences = []
        while not self._changes.empty():
            sentences.append(self._changes.get()())
        return [*filter(None, sentences), *self._explain_no_status()]

    @property
    def decides(self) -> bool:
        """Return whether the resource decides when the run is over: it exists, or did."""
        return not self.refused and (self.workload is not None or self.gone)

    @property
    def has_succeeded(self) -> bool:
        return self.workload is not None and self.workload.state == SUCCEEDED

    @property
    def is_absent(self) -> bool:
        """Return whether the API answered and the resource never existed."""
        return self._synced and not self.refused and self.workload is None and not self.gone

    def end(self, quiet_s: float) -> str:
        """Return how the resource ended, once the files were silent for `quiet_s` since; "" before."""
        if not self._ended_s or self.refused:
            return ""
        needed_s = SILENCE_S.get(self.workload.state if self.workload else "", OTHER_SILENCE_S)
        since_s = time.monotonic() - self._ended_s
        return self._describe() if since_s >= GRACE_S or min(quiet_s, since_s) >= needed_s else ""

    def _follow(self) -> None:
        path, query = (
            self._api.path(self._connection.namespace),
            {"fieldSelector": f"metadata.name={self._name}"},
        )
        patience = Patience(stop=self._stop, say=lambda sentence: self._changes.put(lambda: sentence))
        try:
            for kind, changed in watch(self._connection, path, query, patience):
                self._changes.put(partial(self._take, kind, changed))
        except ClusterError as failure:
            self._changes.put(partial(self._refuse, f"{failure}; waiting for the files only"))
        except Exception as bug:  # if a thread died silently, the waiter would wait until its deadline
            self._changes.put(partial(_raise, bug))

    def _take(self, kind: str, changed: Mapping[str, Any]) -> str:
        before = self._describe()
        if kind == SYNCED:
            self._synced = True
        elif kind == DELETED:
            self.gone = True
        else:
            self._seen_s = self._seen_s or time.monotonic()
            self.workload = Workload(self._api, changed)
        if self.gone or (self.workload and self.workload.state in ENDED):
            self._ended_s = self._ended_s or time.monotonic()
        return self._describe() if self._describe() != before else ""

    def _refuse(self, sentence: str) -> str:
        self.refused = sentence
        return sentence

    def _describe(self) -> str:
        if self.workload is None:
            return f"{self._api.kind} {self._name}: does not exist yet" if self._synced else ""
        state = self.workload.state
        if self.gone:
            return f"{self.workload.title} was deleted"
        return f"{self.workload.title}: {state}" + (f", {self.workload.message}" if state in ENDED else "")

    def _explain_no_status(self) -> list[str]:
        if self._explained or self.gone or self.refused or self.workload is None:
            return []
        if self.workload.state != NO_STATUS or time.monotonic() - self._seen_s < NO_STATUS_S:
            return []
        self._explained = True
        return explain_no_status(self._connection, self.workload)


def _raise(bug: Exception) -> str:
    raise bug


def wait_for_run(
    run_dir: Path,
    *,
    resource: Resource | None = None,
    deadline_s: float | None = None,
    poll_s: float = 1.0,
    quiet_s: float = QUIET_S,
    say: Callable[[str], None] = lambda text: None,
) -> Outcome:
    """Return when the run in `run_dir` has ended, or when `deadline_s` have passed.

    By its files a run has ended when its last attempt ended with a code that ends the run (0, or below 128), or when
    its traces and summary are complete. After another code the operator may start it again, until `resource` is
    Succeeded, Failed or deleted. Without a resource, a silence of `quiet_s` is the end. `say` receives a sentence at
    each change.
    """
    started = changed = time.monotonic()
    seen: Fingerprint | None = None
    told = ""
    while True:
        for sentence in resource.update() if resource else []:
            say(sentence)
        now, found = time.monotonic(), fingerprint(run_dir)
        if found != seen:
            changed, seen = now, found
        silence_s = now - changed
        outcome = look(run_dir, quiet=silence_s >= quiet_s and not (resource and resource.decides))
        if outcome.ended:
            return outcome
        if resource and (end := resource.end(silence_s)):
            code = 0 if resource.has_succeeded else outcome.exit_code  # NFS may not show the files yet
            return Outcome(True, f"{end}; {outcome.sentence}", code)
        if resource and resource.is_absent and found and silence_s >= quiet_s:
            silent = "but no file changes and no resource has its name"
            return Outcome(True, f"{outcome.sentence}, {silent}")
        if deadline_s is not None and now - started >= deadline_s:
            return outcome
        if outcome.sentence != told:
            told = outcome.sentence
            say(told)
        time.sleep(poll_s)


def start_job(
    connection: Connection, name: str, queue: str, say: Callable[[str], None], poll_s: float = POLL_S
) -> None:
    """Return when the Job `name` has ended, or is gone.

    A tool that enforces the cluster's manifests may suspend the Job again; it is then started again.

    Args:
        queue: Kueue's LocalQueue. Kueue starts Jobs with a queue; "" = start the Job here.

    Raises:
        UserError: this account may not start Jobs, or the Job does not exist.
    """
    started = False
    while True:
        try:
            job = connection.get(f"{connection.jobs}/{name}")
            if read_job_end(job) is not None:
                return
            labels = job["metadata"].get("labels") or {}
            if labels.get(QUEUE) != queue if queue else job["spec"].get("suspend"):
                _patch(connection, name, queue)
                say(f"Job {name}: {f'put into the queue {queue}' if queue else 'started'}")
            started = True
        except ClusterError as failure:
            if failure.status == 404 and started:
                return
            if not may_pass(failure):
                fix = "; kubectl apply -k manifests/overlays/cluster, which permits this to the analysis' account"
                raise UserError(
                    f"Job {name}: cannot be started: {failure}{fix} [SL-job-not-started]"
                ) from failure
            say(f"{failure}; trying again")
        time.sleep(poll_s)


def _patch(connection: Connection, name: str, queue: str) -> None:
    change = {"metadata": {"labels": {QUEUE: queue}}} if queue else {"spec": {"suspend": False}}
    try:
        BatchV1Api(connection.client).patch_namespaced_job(
            name, connection.namespace, change, _request_timeout=30, _preload_content=False
        )
    except (ApiException, urllib3.exceptions.HTTPError, OSError) as failure:
        raise explain(connection, failure) from failure
