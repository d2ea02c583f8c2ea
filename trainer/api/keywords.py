"""Settings by keyword -> the options of `python -m trainer`, and the settings that these resolve to."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from trainer.failures import DataMissing
from trainer.launch.options import PER_NODE, build_environment, name_by_chart
from trainer.settings.config import Config, ConfigError
from trainer.settings.settings_file import is_passable
from trainer.settings.spelling import OPTIONS, spell

Scalar = str | int | float | bool | None
GIVEN = {OPTIONS: "1"}


@contextmanager
def named_settings() -> Iterator[None]:
    """What is refused is called as it was given: `lr`, not TRAINER_LR."""
    try:
        yield
    except ConfigError as failure:
        raise ConfigError([spell(problem, GIVEN) for problem in failure.problems]) from failure.__cause__
    except DataMissing as failure:
        raise DataMissing(spell(str(failure), GIVEN)) from failure.__cause__


def build_options(
    config: str | Path | None, processes: int | None, settings: Mapping[str, Scalar]
) -> list[str]:
    """What stands behind `python -m trainer`, without the name of the run.

    Raises:
        ConfigError: no process can be given the path of `config`.
    """
    if config and not is_passable(str(config)):
        problem = f"config={str(config)!r}: holds a character that no process can be given [SL-config-path]"
        raise ConfigError([problem])
    options = ["--config", str(config)] if config else []
    options += ["--processes", str(processes)] if processes is not None else []
    for name, value in settings.items():
        options += ["--set", f"{name}={_as_text(value)}"]
    return options or ["--set", "strategy=single"]


def read_settings(
    options: list[str], make_name: Callable[[Mapping[str, str]], str] = name_by_chart
) -> tuple[Config, str]:
    """(the settings of these options and of the environment, processes on this machine as they were typed).

    Args:
        make_name: for a run that was given none.

    Raises:
        ConfigError: naming everything that is wrong with them.
    """
    found, _ = build_environment(options, os.environ, make_name)
    return Config.from_env(found), found[PER_NODE]


def _as_text(value: Scalar) -> str:
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else str(value)
