"""Which exported weights are judged, and on what; without torch, for the checks before the ranks."""

from __future__ import annotations

from pathlib import Path

from trainer.data.images import ImageData
from trainer.record.run_directory import RunDirectory
from trainer.settings.config import Config, ConfigError
from trainer.settings.size_table import SIZES
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
    """Whether the weights to be judged tell as many classes apart as the data set has.

    Raises:
        ConfigError: they do not.
    """
    known = read_model_json(config)
    names = known.get("class_names") or list((known.get("id2label") or {}).values())
    if names and len(names) != len(data.class_names):
        raise ConfigError(
            [
                f"TRAINER_MODEL_PATH={config.model_path!r}: tells {len(names)} classes apart, "
                f"the data set {config.dataset_name} has {len(data.class_names)}"
            ]
        )
