"""The shape of a preset with the sizes that are given instead of its own, and the rules that sizes must keep."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, TypeVar

from trainer.settings.size_table import DECODER_SIZES, VIT_SIZES, given_sizes
from trainer.shapes.decoder_shapes import DecoderShape

if TYPE_CHECKING:
    from trainer.settings.fields import Settings

Vit = TypeVar("Vit", bound=Any)
"""Of trainer/shapes/model_shapes.py, which reads this."""


def resize_vit(preset: Vit, config: Settings) -> Vit:
    """The preset with the given sizes; whether they fit each other is not looked at."""
    return dataclasses.replace(preset, **given_sizes(config, VIT_SIZES))


def resize_decoder(preset: DecoderShape, config: Settings) -> DecoderShape:
    """The same of a decoder. A head is hidden / heads wide where the preset's is; of a mixture of experts the
    intermediate size is that of each expert."""
    given: dict[str, Any] = dict(given_sizes(config, DECODER_SIZES))
    if not given:
        return preset
    if preset.experts and "intermediate" in given:
        given["expert_intermediate"] = given.pop("intermediate")
    sized = dataclasses.replace(preset, **given)
    if splits_hidden(preset):
        sized = dataclasses.replace(sized, head_dim=max(1, sized.hidden // sized.heads))
    return sized


def splits_hidden(preset: DecoderShape) -> bool:
    """Whether its heads share the hidden size."""
    return preset.queries == preset.hidden


def vit_size_problems(hidden: int, heads: int, config: Settings) -> Iterator[str]:
    """One sentence per rule that the sizes of a vision transformer break."""
    if given_sizes(config, VIT_SIZES):
        yield from _hidden_problems(hidden, heads, even=False)


def decoder_size_problems(preset: DecoderShape, config: Settings) -> Iterator[str]:
    """One sentence per rule that the sizes of a decoder break."""
    if not given_sizes(config, DECODER_SIZES):
        return
    shape = resize_decoder(preset, config)
    if splits_hidden(preset):
        yield from _hidden_problems(shape.hidden, shape.heads, even=True)
    if shape.heads % shape.kv_heads:
        fit = [n for n in range(1, shape.heads + 1) if shape.heads % n == 0]
        yield (
            f"TRAINER_MODEL_KV_HEADS={shape.kv_heads}: must divide heads={shape.heads}, expected one of "
            f"{', '.join(map(str, fit))} [SL-kv-heads]"
        )


def _hidden_problems(hidden: int, heads: int, even: bool) -> Iterator[str]:
    """`even`: rotary positions turn pairs of numbers of each head."""
    step = heads * (2 if even else 1)
    if hidden % step:
        why = (
            f"2 x heads={heads} (rotary positions need an even width of each head)"
            if even
            else f"heads={heads}"
        )
        near = max(1, round(hidden / step)) * step
        yield (
            f"TRAINER_MODEL_HIDDEN={hidden}: must be a multiple of {why}, for example {near} "
            "[SL-hidden-heads]"
        )
