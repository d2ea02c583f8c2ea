"""An operations file: a few small counts of one strategy, from which every depth, batch and number of ranks follows.

What a window of the step holds (timeline.py) grows evenly with the layers and, between two counted micro-batches and
behind the last one, with their rows; what is sharded is shared out by 1 / ranks. So counted are two depths with three
micro-batches, and once more on another number of ranks. A model with few layers, or whose depth is no setting, is
counted whole.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

from trainer.counting.corners import BY_NODES, Corner, depths_of, group_by_engine, list_corners, own_layers
from trainer.counting.inputs import Pictures, find_pictures
from trainer.counting.operations_key import build_key, defaults_of, settings_that_matter
from trainer.counting.result import LIBRARIES, Count
from trainer.counting.rules import read_countable
from trainer.counting.side_by_side import count_side_by_side
from trainer.counting.steps import BLOCK_BYTES, as_counted, count_batches
from trainer.counting.timeline import AT_ONCE, Moment
from trainer.layout.mesh import resolve_axes
from trainer.layout.resolve import count_stages
from trainer.settings.config import PREFIX, Config

SCHEMA = 1
WHY_WHOLE = "the model has no depth that can be set, or few layers: it is counted whole"
Say = Callable[[str], None]


@dataclass(frozen=True)
class _Task:
    """The counts of one engine, for a process of its own. `asked`: layers of the run."""

    corners: list[Corner]
    configs: list[Config]
    pictures: Pictures
    per_node: int
    cuda: bool
    asked: int

    @property
    def work(self) -> int:
        """What its seconds are a multiple of: layers times steps."""
        return (self.corners[0].layers or self.asked or 1) * (len(self.corners) + 1)


def build_operations(
    env: Mapping[str, str],
    ranks: int,
    per_node: int,
    labels: int = 0,
    channels: int = 0,
    say: Say = print,
    cuda: bool = True,
) -> dict[str, Any]:
    """The content of the file for these settings.

    Args:
        env: TRAINER_* variables.
        per_node: ranks that share a node.
        labels, channels: of an image data set; 0 = as known.
        say: hears of each count before it begins.
        cuda: with CUDA's autocast and attention; else a CPU's, for runs on one.

    Raises:
        ConfigError, DataMissing: as for a count.
    """
    began = time.monotonic()
    config = as_counted(read_countable(env, ranks, 0, per_node))
    pictures = find_pictures(config, labels, channels)
    dp, stages = _parts(config, ranks, per_node)
    micro_batches = config.global_batch_size // (config.micro_batch_size * dp)
    own = own_layers(config)
    asked = (config.model_layers or own) if own else 0
    depths = depths_of(config, asked, stages)
    corners = list(list_corners(config, ranks, depths, stages))
    tasks = []
    for engine in group_by_engine(corners, stages):
        first = engine[0]
        same = first.ranks == ranks
        nodes = per_node if same else first.ranks
        several = _several(micro_batches, stages)
        configs = [
            read_countable(
                _settings_of(env, corner, dp if same else first.ranks, several),
                first.ranks,
                first.rank,
                nodes,
            )
            for corner in engine
        ]
        tasks.append(_Task(engine, configs, pictures, nodes, cuda, asked))
    samples: list[dict[str, Any]] = []

    def begins(task: _Task) -> None:
        corner = task.corners[0]
        say(
            f"{len(samples)} of {len(corners)} counted; next: {corner.layers or 'all'} layers, "
            f"{', '.join(str(each.rows) for each in task.corners)} rows, rank {corner.rank} of {corner.ranks}"
        )

    order = sorted(range(len(tasks)), key=lambda place: -tasks[place].work)
    for found in count_side_by_side(_count, tasks, order, begins):
        samples += found
    # what is scaled would be nothing where a window was not seen
    if not all(AT_ONCE in sample["windows"] for sample in samples):
        for sample in samples:
            sample["windows"].pop(AT_ONCE, None)
    scaled = ("model_layers",) if len(depths) > 1 else ()
    settings = settings_that_matter(config, scaled)
    matters: dict[str, Any] = {
        "schema_version": SCHEMA,
        "settings": settings,
        "ranks": sorted({corner.ranks for corner in corners}),
        "accumulates": micro_batches > 1,
        **({"per_node": per_node} if config.strategy in BY_NODES else {}),
        "labels": 0 if config.is_text else pictures.labels,
        "channels": 0 if config.is_text else pictures.channels,
        "versions": {name: version(name) for name in LIBRARIES},
        **({} if cuda else {"rules": "cpu"}),
    }
    return {
        **matters,
        "key": build_key(matters),
        "what": "bytes that one rank holds, by window of a step and cause; counted on fake tensors, on no device",
        "defaults": defaults_of(settings),
        "known": sorted(type(config).model_fields),
        "layers": own,
        "scales_depth": len(depths) > 1,
        "scales_ranks": len(matters["ranks"]) > 1,
        "why_not_scaled": "" if len(depths) > 1 else WHY_WHOLE,
        "rules": "cuda" if cuda else "cpu",
        "block_bytes": BLOCK_BYTES,
        "samples": samples,
        "seconds": round(time.monotonic() - began, 1),
    }


def _count(task: _Task) -> list[dict[str, Any]]:
    first = task.corners[0]
    found = count_batches(
        task.configs, first.ranks, first.rank, task.pictures, per_node=task.per_node, cuda=task.cuda
    )
    return [_sample(corner, task.asked, each) for corner, each in zip(task.corners, found, strict=True)]


def _parts(config: Config, ranks: int, per_node: int) -> tuple[int, int]:
    """(ranks that see different samples, stages of the pipeline)."""
    axes = resolve_axes(config, ranks, per_node)
    return axes.dp, count_stages(config, axes.pp)


def _several(micro_batches: int, stages: int) -> int:
    """Micro-batches that are counted: a third one without a pipeline adds nothing."""
    return min(micro_batches, 2 * stages) if stages > 1 else min(micro_batches, 2)


def _settings_of(env: Mapping[str, str], corner: Corner, dp: int, micro_batches: int) -> dict[str, str]:
    given = {
        "init": "scratch",
        "micro_batch_size": corner.rows,
        "global_batch_size": micro_batches * corner.rows * dp,
    }
    if corner.layers:
        given["model_layers"] = corner.layers
    return {**env, **{f"{PREFIX}{name.upper()}": str(value) for name, value in given.items()}}


def _sample(corner: Corner, asked: int, found: Count) -> dict[str, Any]:
    windows = {name: _held(moment) for name, moment in sorted(found.windows.items())}
    return {
        "layers": corner.layers or asked,
        "rows": corner.rows,
        "ranks": corner.ranks,
        "rank": corner.rank,
        "micro_batches": found.micro_batches,
        "axes": found.axes.as_dict(),
        "peak_bytes": found.peak.total,
        "between_steps_bytes": found.between.total,
        "collective_bytes": sum(found.collectives.values()),
        "windows": windows,
        **({"host": _held(found.host)} if found.host.total else {}),
    }


def _held(moment: Moment) -> dict[str, int]:
    return {cause: size for cause, size in moment.by_cause().items() if size}
