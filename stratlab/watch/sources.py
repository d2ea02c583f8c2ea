"""What a run is watched by: one thread for each kind of object, and one for the log of rank 0; all fill one queue."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator, Mapping
from typing import Any

from stratlab.cluster import ClusterError
from stratlab.cluster.connection import Connection
from stratlab.cluster.patience import Patience
from stratlab.cluster.pod_log import follow_log
from stratlab.cluster.pods import training_container
from stratlab.cluster.watching import ADDED, Change, watch
from stratlab.cluster.workloads import Workload
from stratlab.watch.picture import EVENTS, JOBS, LOG, PODS, REFUSED, TROUBLE, WORKLOAD

Update = tuple[str, str, Any]
DIED = "DIED"


class Sources:
    """`take` gives the next (source, kind, object), in the order of arrival."""

    def __init__(self, connection: Connection, workload: Workload) -> None:
        self._connection, self._workload = connection, workload
        self._updates: queue.Queue[Update] = queue.Queue()
        self._stop = threading.Event()
        self._followed: set[str] = set()

    def start(self) -> None:
        namespace, release = self._workload.namespace, self._workload.release
        instance = f"app.kubernetes.io/instance={release}"
        name = {"fieldSelector": f"metadata.name={self._workload.name}"}
        core = f"/api/v1/namespaces/{namespace}"
        self._run(WORKLOAD, self._watch(self._workload.api.path(namespace), name))
        self._run(PODS, self._watch(f"{core}/pods", {"labelSelector": instance}))
        self._run(EVENTS, self._watch(f"{core}/events", {"fieldSelector": "type=Warning"}))
        self._run(
            JOBS, self._watch(f"/apis/batch/v1/namespaces/{namespace}/jobs", {"labelSelector": instance})
        )

    def follow(self, pod: Mapping[str, Any] | None) -> None:
        """Reads the log of this pod, too, from its first line."""
        if pod is None or pod["metadata"]["uid"] in self._followed:
            return
        self._followed.add(pod["metadata"]["uid"])
        lines = follow_log(self._connection, pod, training_container(pod), self._patience())
        self._run(LOG, ((ADDED, line) for line in lines))

    def take(self, timeout_s: float) -> Update | None:
        """None if nothing happened in `timeout_s`. Raises what a thread has died of."""
        try:
            update = self._updates.get(timeout=max(0.0, timeout_s))
        except queue.Empty:
            return None
        if update[1] == DIED:
            raise update[2]
        return update

    def stop(self) -> None:
        self._stop.set()

    def _watch(self, path: str, query: Mapping[str, str]) -> Iterator[Change]:
        return watch(self._connection, path, query, self._patience())

    def _patience(self) -> Patience:
        return Patience(stop=self._stop, say=lambda sentence: self._updates.put((TROUBLE, "", sentence)))

    def _run(self, source: str, changes: Iterator[tuple[str, Any]]) -> None:
        def drain() -> None:
            try:
                for kind, changed in changes:
                    self._updates.put((source, kind, changed))
            except ClusterError as failure:
                self._updates.put((REFUSED, source, str(failure)))
            except Exception as bug:  # else it would be waited for, for ever
                self._updates.put((source, DIED, bug))

        threading.Thread(target=drain, name=f"watch {source}", daemon=True).start()
