"""Whether a run's folder is taken by a run that has finished: seen before data, tokenizers or devices are looked at."""

from __future__ import annotations

from collections.abc import Mapping

from trainer.record.run_directory import RunDirectory
from trainer.settings.config import Config, ConfigError
from trainer.settings.spelling import name_removal


def refuse_finished(config: Config, folder: RunDirectory, env: Mapping[str, str]) -> None:
    """Lets an evaluation and a check of the environment pass.

    Raises:
        ConfigError: this run has finished already.
    """
    if config.mode == "train" and folder.summary.exists():
        raise ConfigError(
            [
                f"{folder.path}: this run has finished already; choose another name (TRAINER_RUN) or comparison "
                f"(TRAINER_COMPARISON), or remove the folder [SL-run-finished]: {name_removal(folder.path, env)}"
            ]
        )
