"""Run one rank of the check, `python -m trainer.environment.rank`, started by torch's launcher.

It measures and posts facts, including failed measurements. Its exit code is 0 for every result.
"""

from __future__ import annotations

from trainer.launch.stop import end_with_launcher

if __name__ == "__main__":
    end_with_launcher()  # before the slow imports

import logging
import os
import re
import socket
import sys
from collections.abc import Callable
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch.distributed as dist

from stratlab_spec.settings.config import Config
from trainer.distributed import read_node
from trainer.distributed.nccl_transport import NcclLog, hide_log
from trainer.environment.board import FOLDER, reach_board
from trainer.environment.probes import (
    compare_clocks,
    describe_device,
    describe_network,
    describe_shared_memory,
    describe_versions,
    describe_volume,
    exchange_files,
    measure_all_reduce,
    prove_sum,
)
from trainer.launch.ledger import read_pod_name
from trainer.launch.rendezvous import read_rank
from trainer.measuring.links import read_own_transport

GROUP_SHARE = 0.8
"""Share of the limit: waiting ranks give up before the launcher ends them, and can still report it."""

log = logging.getLogger("trainer")


class Facts:
    """A rank's facts; the board gets all of them, and the rank's current stage."""

    def __init__(self, rank: int) -> None:
        self.found: dict[str, Any] = {}
        self._rank = rank
        self._board = reach_board()
        self.token = str(self._board.read("token"))

    def add(self, name: str, look: Callable[[], Any]) -> bool:
        """Post the result of `look`, or its error; return whether it succeeded."""
        self._board.post(f"stage/{self._rank}", name)
        log.info("%s ...", name)
        try:
            self.found[name] = look()
        except Exception as failure:
            self.found[name] = {"error": _explain(failure)}
        self._board.post(f"rank/{self._rank}", self.found)
        return not (isinstance(self.found[name], dict) and self.found[name].get("error"))

    def finish(self) -> None:
        self._board.post(f"stage/{self._rank}", "done")


def _explain(failure: Exception) -> str:
    """Return the first sentence, without gloo's prefix of a source line."""
    text = re.sub(r"^\[\S+:\d+\] ", "", str(failure)).split("\n")[0].split(". ")[0]
    return f"{type(failure).__name__}: {text[:300]}"


def main() -> None:
    """Measure separately, then with the others."""
    config = Config.from_env(os.environ)
    seconds = config.collective_timeout_s * GROUP_SHARE
    rank = read_rank(os.environ, read_pod_name(os.environ))
    os.environ["RANK"] = str(rank)
    local_rank, per_node = int(os.environ["LOCAL_RANK"]), int(os.environ["LOCAL_WORLD_SIZE"])
    level = logging.INFO if rank == 0 else logging.WARNING
    logging.basicConfig(level=level, format="%(message)s", stream=sys.stderr, force=True)
    nccl_log = hide_log(os.environ)
    facts = Facts(rank)
    pod = {"pod": read_pod_name(os.environ), "node": read_node(os.environ), "host": socket.gethostname()}
    facts.found |= {"rank": rank, "local_rank": local_rank, "pod_index": rank // per_node, **pod}
    folder = Path(config.results) / FOLDER
    facts.add("versions", describe_versions)
    facts.add("device", lambda: describe_device(local_rank))
    if local_rank == 0:
        facts.add("shared memory", describe_shared_memory)
        facts.add("results volume", lambda: describe_volume(folder))
        facts.add("network", lambda: describe_network(os.environ, os.environ["MASTER_ADDR"]))
    if facts.add("meeting", lambda: _meet(seconds, facts.found["device"])):
        facts.add("clock", compare_clocks)
        facts.add("files of the others", lambda: exchange_files(folder / f".{facts.token}"))
        backend = facts.found["meeting"]["backend"]
        facts.add("all-reduce", lambda: _measure(seconds, backend, local_rank, per_node))
        if backend == "nccl":
            facts.add("transport", lambda: _describe_transport(local_rank, nccl_log))
    facts.finish()


def _describe_transport(local_rank: int, nccl_log: NcclLog) -> dict[str, Any]:
    found, present = read_own_transport(local_rank, nccl_log)
    return {"found": asdict(found) if found else None, "present": asdict(present)}


def _meet(seconds: float, device: dict[str, Any]) -> dict[str, str]:
    """Connect all ranks through their hosts; `backend` is nccl if each rank has a device, else gloo."""
    dist.init_process_group("gloo", timeout=timedelta(seconds=seconds))
    kinds: list[str] = [""] * dist.get_world_size()
    dist.all_gather_object(kinds, device.get("type", "none"))
    return {"backend": "nccl" if {*kinds} == {"cuda"} else "gloo"}


def _measure(seconds: float, backend: str, local_rank: int, per_node: int) -> dict[str, Any]:
    """Measure all ranks together, and the ranks of each pod if there are several pods with several ranks."""
    size, device = dist.get_world_size(), f"cuda:{local_rank}" if backend == "nccl" else "cpu"
    limit = timedelta(seconds=seconds)
    everybody = dist.new_group(backend="nccl", timeout=limit) if backend == "nccl" else dist.group.WORLD
    prove_sum(device, everybody)
    found = {"all": measure_all_reduce(device, everybody)}
    if 1 < per_node < size:
        pods = [[*range(first, first + per_node)] for first in range(0, size, per_node)]
        groups = [dist.new_group(ranks, backend=backend, timeout=limit) for ranks in pods]
        found["pod"] = measure_all_reduce(device, groups[dist.get_rank() // per_node])
    return found


if __name__ == "__main__":
    main()
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # all work is done, and failed groups would delay the exit
