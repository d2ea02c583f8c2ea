"""The trainer's commands from Python, for scripts and notebooks.

    from trainer.api import deepspeed_config, load_data, load_model, run_experiment

    folder = run_experiment(strategy="ddp", model="cnn", image_size=16, epochs=2, processes=2)
    model = load_model(folder)

Settings have the same names as for `--set`. `load_model` imports torch; this module does not.

`load_data` and `load_model`: the data and the model of a run, as a rank has them, in this process.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from stratlab_spec.exit_codes import DataMissing
from stratlab_spec.settings.config import Config, ConfigError
from trainer.api.experiment import (
    ExperimentFailed,
    Scalar,
    build_options,
    deepspeed_config,
    named_settings,
    read_settings,
    run_experiment,
)

if TYPE_CHECKING:
    from torch import Tensor

    from trainer.data.batches import Batch
    from trainer.data.images import ImageData
    from trainer.data.text.token_rows import TextData
    from trainer.models.model_with_loss import Learner
    from trainer.tasks import Split


OF_A_RUN = ("dataset_path",)
"""Settings that may be given with a run directory: places on this machine."""


@dataclass(frozen=True)
class LoadedData:
    """The data set of these settings.

    Attributes:
        config: the settings as resolved.
        splits: with `train`, `validation` and `test`. Images have `pixels(indices)`, uint8 [sample, channel, height,
            width] as stored, and `labels`, int64 [sample]. Text has `rows(indices)`: int64 [row, 2, token] (ids and
            positions within the document) and int64 [row, token], the next token or -100 if it is not learnt.
    """

    config: Config
    splits: ImageData | TextData

    @property
    def class_names(self) -> list[str]:
        """Of images, in the order of the labels; empty for text."""
        return [] if self.config.is_text else self.splits.class_names  # type: ignore[union-attr]

    def batches(self, first_step: int = 1, device: str = "cpu") -> Iterator[Batch]:
        """Yield the batches of a run in one process, from this step to its last one: in its order, augmented,
        normalised.

        Raises:
            ConfigError, DataMissing: data that does not fit.
        """
        from stratlab_spec.schedule import build_schedule
        from trainer.data.batches import Share
        from trainer.tasks import open_task

        task = open_task(self.config, Share(0, 1), device)
        task.start(first_step - 1)
        for step in range(first_step, build_schedule(self.config, task.train_samples).steps + 1):
            yield task.next_batch(step)

    def evaluation_batches(
        self, split: Split = "test", device: str = "cpu"
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield (inputs, labels) of a whole split in its order, `micro_batch_size` at a time, normalised, not
        augmented.

        The label -100 fills up the last one, and marks text that is not learnt.
        """
        from trainer.data.batches import Share, evaluation_batches, text_evaluation_batches

        part, alone = getattr(self.splits, split), Share(0, 1)
        if self.config.is_text:
            return text_evaluation_batches(part, self.config.micro_batch_size, alone, device)
        from trainer.tasks.normalization import find_preprocessing

        return evaluation_batches(part, self.config, alone, device, find_preprocessing(self.config))


@named_settings()
def load_data(
    run: str | Path | None = None, *, config: str | Path | None = None, **settings: Scalar
) -> LoadedData:
    """Return the three splits of a data set, as a rank opens them with the same settings.

    Args:
        run: a run directory with the settings to use; only `dataset_path` may be given in addition.
        config: a file of settings, or of a chart's values; `settings` override it.
        settings: by their names, as of `run_experiment`.

    Raises:
        ConfigError: settings that are wrong, or do not fit the data.
        DataMissing: no such data set.
    """
    from stratlab_spec.models.model_specs import default_image_size
    from trainer.data import open_data
    from trainer.data.text.token_rows import open_text

    asked = _read(run, None, config, settings)
    if asked.is_text:
        return LoadedData(asked, open_text(asked))
    from trainer.tasks.normalization import find_preprocessing

    edge = asked.image_size or find_preprocessing(asked).image_size or default_image_size(asked)
    return LoadedData(asked, open_data(asked, edge))


@named_settings()
def load_model(
    run: str | Path | None = None,
    *,
    weights: str = "final",
    config: str | Path | None = None,
    **settings: Scalar,
) -> Learner:
    """Return a model on the CPU, ready to be called: inputs -> logits.

    With `run` it has the weights of that run, in evaluation mode. Otherwise it has the weights from which a run with
    these settings starts, in training mode. An image model takes float [batch, channel, height, width], a language
    model int64 [batch, 2, token], ids and positions, as `LoadedData.batches` gives them.

    Args:
        run: a run directory with exported weights. A run leaves them if its `checkpoint_every` was above 0, or if it
            lasted longer than its `checkpoint_minutes`.
        weights: of the run: `final`, `best`, or a folder in Hugging Face format.
        config, settings: as of `load_data`.

    Raises:
        ConfigError: settings that are wrong, no run directory, or unknown `weights`.
        DataMissing: no weights, or no data, which sets the number of classes.
    """
    asked = _read(run, str(weights), config, settings)
    from trainer.data.batches import Share
    from trainer.tasks import open_task

    model = open_task(asked, Share(0, 1), "cpu").build_model(empty=False)
    return model if run is None else model.eval()  # type: ignore[return-value]


def _read(
    run: str | Path | None, weights: str | None, config: str | Path | None, settings: dict[str, Scalar]
) -> Config:
    """Return the settings; build a language model's token cache if it is missing."""
    if run is None:
        found, _ = read_settings(build_options(config, 1, settings))
    elif isinstance(run, str | os.PathLike):
        found = _read_run(Path(run), weights, config, settings)
    else:
        raise ConfigError(f"run={run!r}: expected a run directory [SL-run-no-path]")
    if found.is_text:
        from trainer.prepare.preparation import ensure_cache

        ensure_cache(found, lambda _: None)  # loading a model does not report the cache
    return found


def _read_run(
    run: Path, weights: str | None, config: str | Path | None, settings: dict[str, Scalar]
) -> Config:
    from trainer.data.files import evaluated
    from trainer.evaluation.command import choose_weights, read_config

    more = [*(["config"] if config else []), *(name for name in settings if name not in OF_A_RUN)]
    problems = [
        f"{name}={value!r}: expected a path; leave it out for the run's own [SL-setting-no-path]"
        for name, value in settings.items()
        if not isinstance(value, str | os.PathLike | None)
    ][:1]
    if more:
        problems = [
            f"{', '.join(more)}: not with a run directory, which has its own settings; expected {', '.join(OF_A_RUN)} "
            "[SL-setting-beside-run]"
        ]
    if problems:
        raise ConfigError(problems)
    found = read_config(run).model_copy(update={name: str(value or "") for name, value in settings.items()})
    return found if weights is None else evaluated(found, choose_weights(run, weights))


__all__ = [
    "ConfigError",
    "DataMissing",
    "ExperimentFailed",
    "LoadedData",
    "deepspeed_config",
    "load_data",
    "load_model",
    "run_experiment",
]
