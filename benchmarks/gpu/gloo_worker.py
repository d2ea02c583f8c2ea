"""`trainer.worker` with two ranks on one device, over gloo: nccl refuses that."""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Mapping

from trainer import worker
from trainer.distributed.world import World, read_world


class SharedDevice(World):
    """Every rank has the one device."""

    @property
    def backend(self) -> str:
        return "gloo"


def read_shared_world(env: Mapping[str, str]) -> World:
    """Do the same as `read_world`, for ranks that share a device."""
    found = read_world(env)
    return SharedDevice(**{field.name: getattr(found, field.name) for field in dataclasses.fields(found)})


if __name__ == "__main__":
    os.environ["LOCAL_RANK"] = "0"
    worker.read_world = read_shared_world
    sys.exit(worker.main())
