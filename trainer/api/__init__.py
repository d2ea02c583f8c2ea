"""The trainer's commands from Python, for scripts and notebooks.

    from trainer.api import deepspeed_config, load_data, load_model, run_experiment

    folder = run_experiment(strategy="ddp", model="cnn", image_size=16, epochs=2, processes=2)
    model = load_model(folder)

Settings have the same names as for `--set`. `load_model` imports torch; this module does not.
"""

from stratlab_spec.exit_codes import DataMissing
from stratlab_spec.settings.config import ConfigError
from trainer.api.experiment import ExperimentFailed, deepspeed_config, run_experiment
from trainer.api.loading import LoadedData, load_data, load_model

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
