"""Which exported weights are judged, and on what; without torch, for the checks before the ranks."""

from __future__ import annotations

from pathlib import Path

from trainer.config import Config, ConfigError
from trainer.data import open_data
from trainer.data.images import ImageData
from trainer.model_shapes import default_image_size, read_model_json
from trainer.run_directory import RunDirectory


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
            "lora_rank": 0,  # exported weights hold the adapters
            "grad_checkpointing": False,
            "profile_steps": 0,
        }
    )


def open_split(config: Config) -> tuple[ImageData, int]:
    """The data and the size of its images.

    Raises:
        ConfigError: the weights tell other classes apart than the data set has.
        DataMissing: no data.
    """
    image_size = config.image_size or default_image_size(config)
    data = open_data(config, image_size)
    known = read_model_json(config)
    names = known.get("class_names") or list((known.get("id2label") or {}).values())
    if names and len(names) != len(data.class_names):
        raise ConfigError(
            [
                f"TRAINER_MODEL_PATH={config.model_path!r}: tells {len(names)} classes apart, "
                f"the data set {config.dataset_name} has {len(data.class_names)}"
            ]
        )
    return data, image_size
