"""Which small counts an operations file is made of: depths, micro-batches, numbers of ranks, and which of them share an
engine.

    rows        between two counted micro-batches and behind the last, what is held grows evenly
    layers      two depths; behind the smaller one every moment that may be the peak is there
    ranks       once more on another number, where all data shares one axis
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import groupby

from trainer.models.token_loss import ROWS_AT_ONCE
from trainer.settings.config import Config
from trainer.settings.knob_table import reduce_bucket_bytes
from trainer.settings.strategy_table import STRATEGIES
from trainer.shapes.decoder_shapes import SHAPES, count_layer_parameters
from trainer.shapes.model_shapes import VIT
from trainer.shapes.sizes import resize_decoder, resize_vit

FEW_LAYERS, FEW_LAYERS_OF_STAGE_3 = 4, 6
"""Of the smaller depth. With four layers the fullest moment of DeepSpeed's stage 3 is another one than with many:
ViT-Huge with two images would be foreseen 5.5 % too high."""
BY_NODES = tuple(name for name, row in STRATEGIES.items() if row.by_nodes)
"""Strategies whose axes follow from how many ranks share a node: their files answer for that number alone."""
BY_RANKS = tuple(name for name, row in STRATEGIES.items() if len(row.axes) == 1 and name not in BY_NODES)
"""Strategies with one axis of data: what is shared out is shared out over all ranks alike, from two on."""
OTHER_RANKS = (8, 2)
FP32 = 4
"""Bytes of a number, as buckets are asked for."""
IMAGES = (2, 16, 32)
"""Micro-batches that are counted of images."""


@dataclass(frozen=True)
class Corner:
    """One count: its numbers of layers (0 = as asked for), rows and ranks, and which rank."""

    layers: int
    rows: int
    ranks: int
    rank: int


def own_layers(config: Config) -> int:
    """Of the model where nobody asks for a depth; 0 where none can be asked for."""
    if config.model_path or config.teacher:
        return 0
    shape = SHAPES.get(config.model) or VIT.get(config.model)
    return shape.layers if shape else 0


def depths_of(config: Config, asked: int, stages: int) -> tuple[int, ...]:
    """Layers that are counted; (0,) is all of those that were asked for."""
    if not asked:
        return (0,)
    step = max(stages, _period(config))
    few = -(-_few_layers(config, asked) // step) * step
    return (few, 2 * few) if asked > 2 * few else (0,)


def _few_layers(config: Config, asked: int) -> int:
    """More than are gathered at once (the block that computes, those ahead of it, one that is given back), and under
    stages 1 and 2 more than fill a bucket of gradients, behind which room for all of them is taken."""
    stage = STRATEGIES[config.strategy].deepspeed_stage
    few = max(FEW_LAYERS_OF_STAGE_3 if stage == 3 else FEW_LAYERS, 2 + config.prefetch_blocks)
    if stage not in (1, 2):
        return few
    filled = -(-reduce_bucket_bytes(config) // (FP32 * _count_block(config)))
    # a bucket that the whole model does not fill is full at no depth
    return max(few, 2 + filled) if filled < asked else few


def _count_block(config: Config) -> int:
    """Parameters of one; of a vision transformer's those of products, which are nearly all."""
    if config.model in SHAPES:
        return count_layer_parameters(resize_decoder(SHAPES[config.model], config))
    shape = resize_vit(VIT[config.model], config)
    return 4 * shape.hidden**2 + 2 * shape.hidden * shape.mlp


def _period(config: Config) -> int:
    """Layers after which a pattern repeats."""
    _, _, every = config.activation_checkpointing.partition("every_")
    return int(every) if every else 1


def rows_of(config: Config) -> tuple[int, ...]:
    """Micro-batches that are counted: up to that of the run, because with more rows another moment may be the fullest.
    Of text one row, those from which the loss holds no more (its probabilities, a chunk of logits), so many that
    several chunks follow each other, and twice that."""
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
    """Counts that share an engine: those that differ in rows alone, unless its stages take one shape."""
    if stages > 1:
        return [[corner] for corner in corners]
    return [list(same) for _, same in groupby(corners, lambda corner: replace(corner, rows=0))]
