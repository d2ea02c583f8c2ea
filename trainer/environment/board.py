"""The board exchanges facts between the pods and ranks of a check.

It keeps one value per name, in a store of the first pod's launcher.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, MutableMapping
from datetime import timedelta
from typing import Any

from stratlab_spec.settings.config import ConfigError
from trainer.launch.ledger import read_pod_name
from trainer.launch.rendezvous import read_node_rank, wait_for_host

FOLDER = "_environment"  # on the results volume; names of comparisons never start this way
ADDRESS = "STRATLAB_BOARD"
POLL_S = 0.2
ANSWER_S = 60.0


class Board:
    """Values as JSON in a store of torch.

    Args:
        store: a TCPStore, which lives as long as this object.
    """

    def __init__(self, store: Any) -> None:
        self._store = store

    def post(self, name: str, value: Any) -> None:
        self._store.set(f"environment/{name}", json.dumps(value))

    def read(self, name: str) -> Any:
        """Return the value, or None if it has not been posted."""
        key = f"environment/{name}"
        return json.loads(self._store.get(key)) if self._store.check([key]) else None

    def wait(self, names: Iterable[str], seconds: float, until: str = "") -> list[str]:
        """Wait until all names or `until` are posted; return the missing names then, or after `seconds`."""
        missing, deadline = list(names), time.monotonic() + seconds
        while True:
            missing = [name for name in missing if not self._store.check([f"environment/{name}"])]
            over = time.monotonic() >= deadline or (until and self._store.check([f"environment/{until}"]))
            if not missing or over:
                return missing
            time.sleep(POLL_S)


def find_pod_index(env: MutableMapping[str, str], nodes: int) -> int:
    """Return this pod's index in the run, from 0.

    Raises:
        ConfigError: the environment has no valid index.
    """
    index = read_node_rank(env, read_pod_name(env))
    text = str(index) if index is not None else env.get("PET_NODE_RANK", "0" if nodes == 1 else "")
    if not text.isdigit() or int(text) >= nodes:
        raise ConfigError(
            f"PET_NODE_RANK={text!r}: set the index of this machine, 0 to {nodes - 1}, here or in HOSTNAME "
            "[SL-node-rank]"
        )
    return int(text)


def open_board(env: MutableMapping[str, str], index: int, wait_s: float) -> Board:
    """Open the board in a launcher and set its address for the ranks; the first launcher hosts it.

    The board is at the address where torch's launchers meet.

    Raises:
        PeerLost: the first pod is not reachable within `wait_s`.
    """
    endpoint = env.get("PET_RDZV_ENDPOINT", "")
    if not endpoint and "PET_MASTER_ADDR" in env:
        endpoint = f"{env['PET_MASTER_ADDR']}:{env.get('PET_MASTER_PORT', '29500')}"
    if index:
        wait_for_host(endpoint, wait_s)
    store = _open_store(endpoint or "127.0.0.1:0", is_master=not index, multi_tenant=True)
    env[ADDRESS] = f"{store.host}:{store.port}"
    return Board(store)


def reach_board() -> Board:
    """Connect a rank to its launcher's board."""
    return Board(_open_store(os.environ[ADDRESS], is_master=False))


def _open_store(endpoint: str, **options: bool) -> Any:
    from torch.distributed import TCPStore

    host, _, port = endpoint.rpartition(":")
    return TCPStore(host, int(port), timeout=timedelta(seconds=ANSWER_S), wait_for_workers=False, **options)
