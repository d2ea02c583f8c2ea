"""Build an operations file: a few small counts of one strategy predict every depth, batch and number of ranks.

    settings ─▶ corners: depths x micro-batches, ranks ─▶ engines in parallel ─▶ samples ─▶ content

The memory of a window of the step (timeline.py) grows linearly with the layers. Between two counted micro-batches,
and above the largest, it also grows linearly with their rows. Sharded memory is divided by the number of ranks. So
two depths are counted with three micro-batches, and once more on another number of ranks, where all data shares one
axis. The smaller depth already has every moment that may be the peak. A model with few layers, or with a depth that
is not a setting, is counted whole.

Each engine counts in a process that is forked after torch and DeepSpeed are loaded. Loading them takes
seconds and most of the memory, and forked processes share both.
"""

from __future__ import annotations

import ctypes
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace
from importlib.metadata import version
from itertools import groupby
from multiprocessing import get_context
from typing import Any, TypeVar

from stratlab_spec.exit_codes import DataMissing
from stratlab_spec.layout.mesh_rules import resolve_axes
from stratlab_spec.layout.nd_layout import count_stages
from stratlab_spec.memory.profiles import CPU, CUDA, SCHEMA
from stratlab_spec.models.decoder import count_layer_parameters
from stratlab_spec.models.decoder_config import SHAPES
from stratlab_spec.models.decoder_json import resize_decoder, resize_vit
from stratlab_spec.models.model_specs import VIT
from stratlab_spec.models.pictures import Pictures, find_pictures
from stratlab_spec.schedule import count_micro_batches
from stratlab_spec.settings.config import PREFIX, Config
from stratlab_spec.settings.library_rules import reduce_bucket_bytes
from stratlab_spec.strategies import STRATEGIES
from trainer.memory_estimation.rules import build_key, defaults_of, read_countable, settings_that_matter
from trainer.memory_estimation.steps import BLOCK_BYTES, as_counted, count_batches
from trainer.memory_estimation.timeline import AT_ONCE, LIBRARIES, Count, Moment
from trainer.models.chunked_cross_entropy import ROWS_AT_ONCE

Task = TypeVar("Task")
Result = TypeVar("Result")
PR_SET_PDEATHSIG = 1
MOST = 2
"""At once: each engine takes room of its own."""


def count_side_by_side(
    count: Callable[[Task], Result],
    tasks: Sequence[Task],
    order: Sequence[int],
    begins: Callable[[Task], None],
) -> Iterator[Result]:
    """Yield `count(task)` of each task in order; in this process if there is only one processor or task.

    Args:
        count: a function of a module.
        order: places of the tasks, the longest first.
        begins: called with a task when it is due.

    Raises:
        DataMissing: a process was killed, usually for memory.
        Exception: any error of `count`.
    """
    processes = min(MOST, len(tasks), len(os.sched_getaffinity(0)))
    if processes < 2:
        for task in tasks:
            begins(task)
            yield count(task)
        return
    with ProcessPoolExecutor(processes, get_context("fork"), initializer=_end_with_parent) as pool:
        try:
            futures = {place: pool.submit(count, tasks[place]) for place in order}
            for place, task in enumerate(tasks):
                begins(task)
                yield futures[place].result()
        except BrokenProcessPool as failure:
            raise DataMissing(
                "a process that counted was killed, for memory as a rule [SL-count-killed]"
            ) from failure
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def _end_with_parent() -> None:
    """End this process silently on Ctrl-C, unless that is ignored, and when its parent ends."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


FEW_LAYERS, FEW_LAYERS_OF_STAGE_3 = 4, 6
"""Layers of the smaller depth. With four layers DeepSpeed's stage 3 has its fullest moment elsewhere than with many:
the forecast for ViT-Huge with two images would be 5.5 % too high."""
BY_NODES = tuple(name for name, row in STRATEGIES.items() if row.by_nodes)
"""Strategies whose axes follow from the number of ranks per node: their files answer only for that number."""
BY_RANKS = tuple(name for name, row in STRATEGIES.items() if len(row.axes) == 1 and name not in BY_NODES)
"""Strategies with one axis of data: sharded parts are divided over all ranks alike, from two on."""
OTHER_RANKS = (8, 2)
FP32 = 4
"""Bytes of a number, in sizes of buckets."""
IMAGES = (2, 16, 32)
"""Micro-batches that are counted of images."""


@dataclass(frozen=True)
class Corner:
    """One count: its numbers of layers (0 = the setting's), rows and ranks, and which rank."""

    layers: int
    rows: int
    ranks: int
    rank: int


def own_layers(config: Config) -> int:
    """Return the model's own number of layers; 0 if its depth is not a setting."""
    if config.model_path or config.teacher:
        return 0
    shape = SHAPES.get(config.model) or VIT.get(config.model)
    return shape.layers if shape else 0


def depths_of(config: Config, asked: int, stages: int) -> tuple[int, ...]:
    """Return the numbers of layers to count; (0,) counts the model whole."""
    if not asked:
        return (0,)
    step = max(stages, _period(config))
    few = -(-_few_layers(config, asked) // step) * step
    return (few, 2 * few) if asked > 2 * few else (0,)


def _few_layers(config: Config, asked: int) -> int:
    """Return a depth that exceeds the layers gathered at once and, under stages 1 and 2, one bucket of gradients.

    Gathered at once are the computing block, the blocks prefetched, and one that is being freed. After the first full
    bucket, stages 1 and 2 allocate room for all gradients.
    """
    stage = STRATEGIES[config.strategy].deepspeed_stage
    few = max(FEW_LAYERS_OF_STAGE_3 if stage == 3 else FEW_LAYERS, 2 + config.prefetch_blocks)
    if stage not in (1, 2):
        return few
    filled = -(-reduce_bucket_bytes(config) // (FP32 * _count_block(config)))
    # a bucket that the whole model does not fill is never full
    return max(few, 2 + filled) if filled < asked else few


def _count_block(config: Config) -> int:
    """Return the parameters of one block; for a vision transformer only its matrices, which are nearly all."""
    if config.model in SHAPES:
        return count_layer_parameters(resize_decoder(SHAPES[config.model], config))
    shape = resize_vit(VIT[config.model], config)
    return 4 * shape.hidden**2 + 2 * shape.hidden * shape.mlp


def _period(config: Config) -> int:
    """Return the number of layers after which a pattern repeats."""
    _, _, every = config.activation_checkpointing.partition("every_")
    return int(every) if every else 1


def rows_of(config: Config) -> tuple[int, ...]:
    """Return the micro-batches to count, up to the run's: with more rows another moment may be the fullest.

    For text: one row, the rows from which the loss stops growing (its probabilities, a chunk of logits), enough rows
    for several consecutive chunks, and twice that.
    """
    asked = config.micro_batch_size
    if not config.is_text:
        return tuple(sorted({*IMAGES, max(asked, *IMAGES)}))
    length, chunk = config.seq_len, config.loss_chunk_tokens
    many = max(2, -(-2 * chunk // length))
    fixed = {1, -(-min(chunk, ROWS_AT_ONCE) // length), -(-chunk // length), many, 2 * many}
    return tuple(sorted({*fixed, max(asked, *fixed)}))


def list_corners(config: Config, ranks: int, depths: tuple[int, ...], stages: int) -> Iterator[Corner]:
    looked_at = (0,) if stages == 1 else (0, ranks - 1)  # the first and the last stage
    rows = rows_of(config)
    for rank in looked_at:
        for layers in depths:
            for number in rows:
                yield Corner(layers, number, ranks, rank)
    if config.strategy in BY_RANKS and ranks > 1:
        other = next(number for number in OTHER_RANKS if number != ranks)
        for layers in depths:
            yield Corner(layers, rows[-1], other, 0)


def group_by_engine(corners: list[Corner], stages: int) -> list[list[Corner]]:
    """Group counts that share an engine: they differ only in rows, unless its stages take one shape."""
    if stages > 1:
        return [[corner] for corner in corners]
    return [list(same) for _, same in groupby(corners, lambda corner: replace(corner, rows=0))]


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
        """Return layers times steps; the duration is proportional to it."""
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
    """Return the content of the file for these settings; call `say` before each count begins.

    Args:
        env: TRAINER_* variables.
        per_node: ranks that share a node.
        labels, channels: of an image data set; 0 = as known.
        cuda: with CUDA's autocast and attention; else a CPU's, for runs on one.

    Raises:
        ConfigError, DataMissing: as for a count.
    """
    began = time.monotonic()
    config = as_counted(read_countable(env, ranks, 0, per_node))
    pictures = find_pictures(config, labels, channels)
    axes = resolve_axes(config, ranks, per_node)
    dp, stages = axes.dp, count_stages(config, axes.pp)
    micro_batches = count_micro_batches(config.global_batch_size, config.micro_batch_size, dp)
    own = own_layers(config)
    asked = (config.model_layers or own) if own else 0
    depths = depths_of(config, asked, stages)
    corners = list(list_corners(config, ranks, depths, stages))
    several = min(
        micro_batches, 2 * stages if stages > 1 else 2
    )  # a third one without a pipeline adds nothing
    tasks = []
    for engine in group_by_engine(corners, stages):
        count, rank = engine[0].ranks, engine[0].rank
        nodes, share = (per_node, dp) if count == ranks else (count, count)
        asked_of = [_settings_of(env, corner, share, several) for corner in engine]
        configs = [read_countable(each, count, rank, nodes) for each in asked_of]
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
    # an unseen window cannot be scaled
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
        **({} if cuda else {"rules": CPU}),
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
        "rules": CUDA if cuda else CPU,
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
