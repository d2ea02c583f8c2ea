"""Snapshots of a state of plain and sharded tensors, in the format of torch.distributed.checkpoint.

Its planner says which rank writes what, so that a tensor that several ranks hold is copied and written once; the plan
is made again only when the state has other tensors. Its writer writes. Its collectives are not used: no rank waits
for another one's disk.
"""

from __future__ import annotations

import copy
import io
from pathlib import Path
from typing import Any, cast

import torch
import torch.distributed as dist
from torch.distributed.checkpoint import FileSystemWriter, Metadata
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.metadata import MetadataIndex
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner, WriteItem, WriteItemType

from trainer.checkpoint.staging import Staging
from trainer.engine import Written

METADATA = ".metadata"


class ShardedStaging:
    """What one engine keeps between its snapshots: the plan, and the memory of the copies."""

    def __init__(self) -> None:
        self._staging = Staging()
        self._seen: SavePlan | None = None
        self._plan: SavePlan | None = None
        self._metadata: Metadata | None = None

    def take(self, state: dict[str, Any]) -> ShardedSnapshot:
        """Copies this rank's part of `state`; collective."""
        planner = DefaultSavePlanner()
        planner.set_up_planner(state, is_coordinator=dist.get_rank() == 0)
        local = planner.create_local_plan()
        if any(_gather(local != self._seen)):
            plans, self._metadata = planner.create_global_plan(_gather(local))
            self._plan = _writer(Path()).prepare_global_plan(plans)[dist.get_rank()]
            self._seen = local
        assert self._plan is not None and self._metadata is not None
        found = {item.index: planner.lookup_object(item.index) for item in self._plan.items}
        tensors = [item.index for item in self._plan.items if item.type != WriteItemType.BYTE_IO]
        copies = self._staging.copy([found[index] for index in tensors])
        held = dict(zip(tensors, copies, strict=True))
        values = {index: copy.deepcopy(value) for index, value in found.items() if index not in held}
        return ShardedSnapshot(self._plan, self._metadata, held | values, self._staging.held_bytes)


class ShardedSnapshot:
    """One rank's part of a state. Stands for a planner where torch's writer asks for the data."""

    def __init__(
        self, plan: SavePlan, metadata: Metadata, held: dict[MetadataIndex, Any], held_bytes: int
    ) -> None:
        self._plan = plan
        self._metadata = metadata
        self._held = held
        self.held_bytes = held_bytes

    def write(self, folder: Path) -> Written:
        if not self._plan.items:
            return Written([], [])
        results = _writer(folder).write_data(self._plan, cast(SavePlanner, self)).wait()
        return Written(sorted({result.storage_data.relative_path for result in results}), results)

    def finish(self, folder: Path, parts: list[Any]) -> list[str]:
        """`.metadata`: where each piece of each tensor lies."""
        _writer(folder).finish(copy.copy(self._metadata), parts)
        return [METADATA]

    def resolve_data(self, item: WriteItem) -> torch.Tensor | io.BytesIO:
        held = self._held[item.index]
        if item.type != WriteItemType.BYTE_IO:
            return held
        content = io.BytesIO()
        torch.save(held, content)
        return content


def _writer(folder: Path) -> FileSystemWriter:
    return FileSystemWriter(folder, per_thread_copy_ahead=0)  # it is in host memory already


def _gather(value: Any) -> list[Any]:
    answers: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(answers, value)
    return answers
