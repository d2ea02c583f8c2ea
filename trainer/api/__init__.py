"""The trainer from Python, for scripts and notebooks: what its commands do, and nothing beside it.

    from trainer.api import deepspeed_config, load_data, load_model, run_experiment

    folder = run_experiment(strategy="ddp", model="cnn", image_size=16, epochs=2, processes=2)
    model = load_model(folder)

Settings are given by their names, as to `--set`. torch is imported by `load_model` and by what it gives, not here.
"""

from trainer.api.deepspeed_stages import deepspeed_config
from trainer.api.experiment import ExperimentFailed, run_experiment
from trainer.api.loading import LoadedData, load_data, load_model
from trainer.failures import DataMissing
from trainer.settings.config import ConfigError

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
