"""The release to watch, also when its resource comes a moment later than the command."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable

from stratlab.cluster import ClusterError
from stratlab.cluster.connection import Connection
from stratlab.cluster.given_namespace import check_namespace
from stratlab.cluster.patience import Patience
from stratlab.cluster.watching import DELETED, SYNCED, watch
from stratlab.cluster.workloads import APIS, Api, Workload, find_workload, list_workloads
from stratlab.nearest import FEW, name_allowed
from stratlab.user_error import UserError

APPEAR_S = 20.0


def await_workload(
    connection: Connection,
    namespace: str,
    release: str,
    say: Callable[[str], None],
    appear_s: float = APPEAR_S,
) -> Workload:
    """The workload of `release`, waited for up to `appear_s` seconds.

    Raises:
        UserError: there is none, and names those that are there; or no such namespace.
        ClusterError: the cluster cannot be asked.
    """
    found = find_workload(connection, namespace, release)
    if found is None:
        check_namespace(connection, namespace)
        say(f"no run {release} in namespace {namespace} yet, waiting {appear_s:.0f} s for it")
        found = _watch_for(connection, namespace, release, appear_s)
    if found is None:
        others = _say_others(connection, namespace, release)
        raise UserError(f"no run {release} in namespace {namespace}; {others} [SL-release-not-found]")
    return found


def _say_others(connection: Connection, namespace: str, release: str) -> str:
    states = {
        each.release: f"{each.release} ({each.state})" for each in list_workloads(connection, namespace)
    }
    if len(states) <= FEW:
        return f"there is {', '.join(states.values()) or 'none at all'}"
    return name_allowed(
        release, list(states), "there are", f"that `stratlab list --on-cluster -n {namespace}` lists"
    )


def _watch_for(connection: Connection, namespace: str, release: str, appear_s: float) -> Workload | None:
    """Whichever API it comes by."""
    arrived: queue.Queue[Workload | Exception] = queue.Queue()
    stop = threading.Event()
    patience = Patience(deadline=time.monotonic() + appear_s, stop=stop)

    def follow(api: Api) -> None:
        try:
            for kind, changed in watch(connection, api.path(namespace), None, patience):
                if kind in (SYNCED, DELETED):
                    continue
                workload = Workload(api, changed)
                if release in (workload.name, workload.release):
                    arrived.put(workload)
                    return
        except ClusterError:
            return  # this API is not served, or may not be read
        except Exception as bug:
            arrived.put(bug)

    for api in APIS.values():
        threading.Thread(target=follow, args=(api,), name=f"await {api.plural}", daemon=True).start()
    try:
        found = arrived.get(timeout=appear_s)
        if isinstance(found, Exception):
            raise found
        return found
    except queue.Empty:
        return None
    finally:
        stop.set()
