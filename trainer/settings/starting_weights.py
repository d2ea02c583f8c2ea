"""Which weights a run starts from, in words; adapters on random weights must be asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainer.settings.network_table import FINETUNED_NETWORKS

if TYPE_CHECKING:
    from trainer.settings.fields import Settings

INITIAL_WEIGHTS = "initial_weights"
"""Their place in `resolved` of config.json and in summary.json."""


def adapter_problems(config: Settings) -> list[str]:
    """A sentence if adapters would be trained on random weights because `init` was left out.

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
        "TRAINER_INIT=scratch asks for random ones [SL-lora-without-init]"
    ]


def describe_starting_weights(config: Settings) -> str:
    """What a run's first attempt starts from, as in "starts from random weights"."""
    if config.resume_from:
        return f"a checkpoint of {config.resume_from}"
    if config.init == "scratch":
        return "random weights"
    if config.model_path:
        return f"the weights in {config.model_path}"
    return f"the published weights of {FINETUNED_NETWORKS.get(config.model, config.model)}"
