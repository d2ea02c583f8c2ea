"""`trainer.worker` with two ranks on one device, over gloo: nccl refuses that."""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import torch.distributed as dist

from trainer import worker
from trainer.layout.world import World, read_world


class SharedDevice(World):
    """Every rank has the one device."""

    @property
    def backend(self) -> str:
        return "gloo"


def read_shared_world(env: Mapping[str, str]) -> World:
    """As `read_world`, for ranks that share a device."""
    found = read_world(env)
    return SharedDevice(**{field.name: getattr(found, field.name) for field in dataclasses.fields(found)})


class Exchanged:
    """One message on its way, by the host's memory; what arrived is copied to the device once it is waited for."""

    def __init__(self, message: dist.P2POp) -> None:
        self._device, self._host = message.tensor, message.tensor.detach().cpu()
        self._arrives = message.op is dist.irecv
        self.message = dist.P2POp(message.op, self._host, message.peer, message.group, message.tag)
        self.work: Any = None

    def wait(self) -> None:
        self.work.wait()
        if self._arrives:
            self._device.detach().copy_(self._host)


def exchange_by_host(messages: Sequence[dist.P2POp], send: Any = dist.batch_isend_irecv) -> list[Exchanged]:
    """`batch_isend_irecv` for tensors of a device, which gloo's messages between two ranks do not take."""
    exchanged = [Exchanged(message) for message in messages]
    for each, work in zip(exchanged, send([each.message for each in exchanged]), strict=True):
        each.work = work
    return exchanged


if __name__ == "__main__":
    # the second one sends objects, as the shapes that a pipeline's stages tell each other
    dist.batch_isend_irecv = dist.distributed_c10d.batch_isend_irecv = exchange_by_host  # type: ignore[assignment]
    os.environ["LOCAL_RANK"] = "0"
    worker.read_world = read_shared_world
    sys.exit(worker.main())
