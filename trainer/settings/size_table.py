"""Sizes that may be given instead of the preset's own, and of which kind of model each is; 0 = the preset's own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trainer.settings.fields import Settings

VIT_SIZES = {
    "model_layers": "layers",
    "model_hidden": "hidden",
    "model_heads": "heads",
    "model_intermediate": "mlp",
    "model_patch": "patch",
}
"""Setting -> its name in VitShape."""
DECODER_SIZES = {
    "model_layers": "layers",
    "model_hidden": "hidden",
    "model_heads": "heads",
    "model_kv_heads": "kv_heads",
    "model_intermediate": "intermediate",
    "model_vocab": "vocab",
}
"""Setting -> its name in DecoderShape."""
SIZES = tuple({**VIT_SIZES, **DECODER_SIZES})


def given_sizes(config: Settings, names: dict[str, str]) -> dict[str, int]:
    """Those of `names` that are given, by their names in the shape."""
    return {field: getattr(config, name) for name, field in names.items() if getattr(config, name)}


def misplaced_sizes(config: Settings, vits: tuple[str, ...], decoders: tuple[str, ...]) -> Iterator[str]:
    """Sizes of a model that has others, or none.

    Args:
        vits, decoders: the presets of each kind.
    """
    given = [name for name in SIZES if getattr(config, name)]
    if not given:
        return
    told = ", ".join(f"TRAINER_{name.upper()}={getattr(config, name)}" for name in given)
    presets = f"the presets with sizes are {', '.join((*vits, *decoders))}"
    if config.model_path:
        yield (
            f"{told}: the model in TRAINER_MODEL_PATH has its own sizes; leave them out; {presets} "
            "[SL-sizes-of-folder]"
        )
        return
    if config.model not in (*vits, *decoders):
        yield f"{told}: {config.model} has sizes of its own; leave them out; {presets} [SL-sizes-of-model]"
        return
    if config.init == "pretrained":
        yield (
            f"{told}, TRAINER_INIT=pretrained: the published weights of {config.model} have its sizes; take scratch "
            "[SL-sizes-pretrained]"
        )
    allowed = VIT_SIZES if config.model in vits else DECODER_SIZES
    if wrong := [f"TRAINER_{name.upper()}" for name in given if name not in allowed]:
        names = ", ".join(f"TRAINER_{name.upper()}" for name in allowed)
        yield (
            f"{', '.join(wrong)}: {config.model} has no such size, expected some of {names} [SL-size-unknown]"
        )
