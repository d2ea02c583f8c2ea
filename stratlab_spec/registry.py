"""The choices of a run other than its strategy: optimizers, image networks, sizes and weights, one row each.

OPTIMIZERS lists each optimizer's options other than rate and decay, and its state. NETWORKS has every image network
that is not a vision transformer; vision transformers have their shapes in models/model_specs.py. A new network takes
a file in trainer/models with its row as NETWORK: `make schema` collects it and writes its line of docs/models.md.
Columns lack defaults, so that a forgotten value is an error at import. Sizes may be given instead of a preset's own,
and 0 is the preset's own. PUBLISHED_FILES are weights that torchvision publishes, by torchvision's names. Adapters on
random weights need an explicit setting.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from stratlab_spec.settings.fields import Settings


@dataclass(frozen=True, kw_only=True)
class OptimizerRow:
    """One optimizer."""

    arguments: Mapping[str, tuple[str, ...]]
    """Its argument in torch.optim -> the settings that form it."""
    moments: int
    """Tensors of the size of the trained parameters, in fp32, that it always keeps."""
    moments_with: Mapping[str, int]
    """Setting -> how many more it keeps if the setting is not zero or false."""
    counts_steps: bool
    """Whether it also keeps a number of its steps for each parameter."""


OPTIMIZERS: dict[str, OptimizerRow] = {
    "sgd": OptimizerRow(
        arguments={"momentum": ("momentum",), "nesterov": ("nesterov",)},
        moments=0,
        moments_with={"momentum": 1},
        counts_steps=False,
    ),
    "adamw": OptimizerRow(
        arguments={"betas": ("beta1", "beta2"), "eps": ("eps",)},
        moments=2,
        moments_with={},
        counts_steps=True,
    ),
}
SHARED = ("lr", "weight_decay")
ARGUMENTS = (*SHARED, *(name for row in OPTIMIZERS.values() for name in row.arguments))
"""The arguments of all optimizers."""


def list_own_settings(optimizer: str) -> tuple[str, ...]:
    """Return settings that this optimizer has and the other ones have not."""
    return tuple(setting for settings in OPTIMIZERS[optimizer].arguments.values() for setting in settings)


def counts_steps(config: Settings) -> bool:
    """Return whether the run's optimizer keeps a number of its steps for each parameter."""
    return OPTIMIZERS[config.optimizer].counts_steps


def count_moments(config: Settings) -> int:
    """Return tensors of the size of the trained parameters that the run's optimizer keeps."""
    row = OPTIMIZERS[config.optimizer]
    return row.moments + sum(more for name, more in row.moments_with.items() if getattr(config, name))


@dataclass(frozen=True, kw_only=True)
class NetworkRow:
    """One network."""

    builder: str
    """`module:function` in trainer/models: (config, image_size, channels, num_labels) -> ImageClassifier. "" =
    torchvision's (models/torchvision_networks.py)."""
    image: int
    """Pixels of an edge, by default."""
    step: int
    """The edge must be a multiple of it."""
    smallest: int
    """Fewest pixels of an edge."""
    what: str
    """Its description in docs/models.md."""


def _of_torchvision(what: str) -> NetworkRow:
    """Build the row of a network of torchvision's; all four halve an image five times."""
    return NetworkRow(builder="", image=224, step=1, smallest=32, what=f"{what}, torchvision's")


def _read_ours() -> dict[str, NetworkRow]:
    """Read the networks that `make schema` collects from the NETWORK rows in trainer/models."""
    rows = json.loads(Path(__file__).with_name("networks.json").read_text())
    return {name: NetworkRow(builder=f"{name}:build", **row) for name, row in rows.items()}


NETWORKS: dict[str, NetworkRow] = {
    **_read_ours(),
    "mobilenet": _of_torchvision("MobileNet v3 large"),
    "efficientnet": _of_torchvision("EfficientNet b0"),
    "vgg": _of_torchvision("VGG 16"),
    "resnet": _of_torchvision("ResNet 50"),
}
FINETUNED = "_finetuned"
"""End of a name: the network of the row before it with its published weights and a new head."""
FINETUNED_NETWORKS = {f"{name}{FINETUNED}": name for name, row in NETWORKS.items() if not row.builder}
"""Only networks published by torchvision can be fine-tuned by name."""


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
    """Return the sizes of `names` that are set, by their names in the shape."""
    return {field: getattr(config, name) for name, field in names.items() if getattr(config, name)}


def misplaced_sizes(config: Settings, vits: tuple[str, ...], decoders: tuple[str, ...]) -> Iterator[str]:
    """Yield sizes of a model that has others, or none.

    Args:
        vits, decoders: the presets of each kind.
    """
    given = [name for name in SIZES if getattr(config, name)]
    if not given:
        return
    sizes = ", ".join(f"TRAINER_{name.upper()}={getattr(config, name)}" for name in given)
    presets = f"the presets with sizes are {', '.join((*vits, *decoders))}"
    if config.model_path:
        yield (
            f"{sizes}: the model in TRAINER_MODEL_PATH has its own sizes; leave them out; {presets} "
            "[SL-sizes-of-folder]"
        )
        return
    if config.model not in (*vits, *decoders):
        yield f"{sizes}: {config.model} has sizes of its own; leave them out; {presets} [SL-sizes-of-model]"
        return
    if config.init == "pretrained":
        yield (
            f"{sizes}, TRAINER_INIT=pretrained: the published weights of {config.model} have its sizes; take scratch "
            "[SL-sizes-pretrained]"
        )
    allowed = VIT_SIZES if config.model in vits else DECODER_SIZES
    if wrong := [f"TRAINER_{name.upper()}" for name in given if name not in allowed]:
        names = ", ".join(f"TRAINER_{name.upper()}" for name in allowed)
        yield (
            f"{', '.join(wrong)}: {config.model} has no such size, expected some of {names} [SL-size-unknown]"
        )


SERVER = "https://download.pytorch.org/models"
PUBLISHED_FILES: Mapping[str, str] = {
    "mobilenet": "mobilenet_v3_large-5c1a4163.pth",
    "efficientnet": "efficientnet_b0_rwightman-7f5810bc.pth",
    "vgg": "vgg16-397923af.pth",
    "resnet": "resnet50-11ad3fa6.pth",
}
"""Network -> file: its best weights for ImageNet, which `<network>_finetuned` starts from."""


INITIAL_WEIGHTS = "initial_weights"
"""Their place in `resolved` of config.json and in summary.json."""


def adapter_problems(config: Settings) -> list[str]:
    """Return a sentence if adapters would be trained on random weights because `init` was left out.

    Only for a run that trains: memory and layouts do not depend on the values of the weights.
    """
    if not config.lora_rank or config.resume_from or "init" in config.model_fields_set:
        return []
    given = f"those of {config.model_path}"
    if not config.model_path:
        given = "published ones, where the model has some, or those of a folder in TRAINER_MODEL_PATH"
    return [
        f"TRAINER_LORA_RANK={config.lora_rank}, TRAINER_INIT is not set: the base model would be random weights, "
        f"which stay frozen under the adapters; TRAINER_INIT=pretrained takes {given}; "
        "TRAINER_INIT=scratch keeps random ones [SL-lora-without-init]"
    ]


def describe_starting_weights(config: Settings) -> str:
    """Return a description of a run's starting weights, as in "starts from random weights"."""
    if config.resume_from:
        return f"a checkpoint of {config.resume_from}"
    if config.init == "scratch":
        return "random weights"
    if config.model_path:
        return f"the weights in {config.model_path}"
    return f"the published weights of {FINETUNED_NETWORKS.get(config.model, config.model)}"
