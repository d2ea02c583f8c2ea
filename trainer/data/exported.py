"""Which exported weights are judged, and on what; without torch, for the checks before the ranks."""

from __future__ import annotations

from pathlib import Path

from trainer.data.images import ImageData
from trainer.record.run_directory import RunDirectory
from trainer.settings.config import Config, ConfigError
from trainer.settings.size_table import SIZES
from trainer.shapes.class_names import describe_other, match_names, read_names
from trainer.shapes.model_shapes import read_model_json


def evaluated(config: Config, weights: Path | None = None) -> Config:
    """The settings under which exported weights are judged: they are loaded, and nothing is trained or profiled.

    Args:
        weights: the folder; None = `model_path`, or what the run of this name has exported.
    """
    own = RunDirectory(config.results, config.comparison, config.run).model
    return config.model_copy(
        update={
            "model_path": str(weights or config.model_path or own),
            "init": "pretrained",
            **dict.fromkeys(SIZES, 0),  # the folder says them
            "teacher": "",
            "lora_rank": 0,  # exported weights hold the adapters
            "activation_checkpointing": "none",
            "compile": False,
            "profile_steps": 0,
        }
    )


def check_classes(config: Config, data: ImageData) -> None:
    """Whether the weights to be judged know the classes of the data set, in whatever order.

    Raises:
        ConfigError: they know other ones.
    """
    known = read_names(read_model_json(config))
    if match_names(known, data.class_names) is None:
        said = describe_other(known, data.class_names, config.dataset_name)
        raise ConfigError([f"TRAINER_MODEL_PATH={config.model_path!r}: {said} [SL-exported-classes]"])


def describe_head(config: Config, class_names: list[str]) -> str:
    """What becomes of the outputs of the weights that a run starts from; "" where they are the data set's own."""
    if config.init != "pretrained" or not config.model_path:
        return ""
    known = read_names(read_model_json(config))
    order = match_names(known, class_names)
    named = f"TRAINER_MODEL_PATH={config.model_path!r}"
    if order is None:
        return f"{named}: {describe_other(known, class_names, config.dataset_name)}; a new head is trained"
    if order != list(range(len(order))):
        return f"{named}: knows the classes of {config.dataset_name} in another order; its outputs are put into that"
    return ""
