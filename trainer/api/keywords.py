"""Settings by keyword -> the options of `python -m trainer`, and the settings that these resolve to."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from trainer.launch.options import PER_NODE, build_environment
from trainer.settings.config import Config

Scalar = str | int | float | bool | None


def build_options(
    config: str | Path | None, processes: int | None, settings: Mapping[str, Scalar]
) -> list[str]:
    """What stands behind `python -m trainer`, without the name of the run."""
    options = ["--config", str(config)] if config else []
    options += ["--processes", str(processes)] if processes is not None else []
    for name, value in settings.items():
        options += ["--set", f"{name}={_as_text(value)}"]
    return options or ["--set", "strategy=single"]


def read_settings(options: list[str]) -> tuple[Config, str]:
    """(the settings of these options and of the environment, processes on this machine as they were typed).

    Raises:
        ConfigError: naming everything that is wrong with them.
    """
    found, _ = build_environment(options, os.environ)
    return Config.from_env(found), found[PER_NODE]


def _as_text(value: Scalar) -> str:
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else str(value)
