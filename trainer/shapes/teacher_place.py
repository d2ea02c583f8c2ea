"""Where the teacher of a run lies: below the results folder, in a folder of its own, or on the hub. Without torch."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from trainer.failures import DataMissing
from trainer.settings.config import Config, ConfigError
from trainer.settings.fields import HUB_ID, MODELS
from trainer.shapes.decoder_shapes import TEXT_HUB_IDS
from trainer.shapes.model_shapes import PUBLISHED

HOW_WEIGHTS = "one leaves them at its end if it has a checkpoint, as with TRAINER_CHECKPOINT_EVERY above 0"
HUB_TRIES = 2
HUB_PAUSE_S = 1.0
NAMED_RUNS = 5
"""At most so many of a comparison's runs are named."""


def said_teacher(config: Config) -> str:
    """How an error names it."""
    return f"TRAINER_TEACHER={config.teacher!r}"


@contextmanager
def naming_the_teacher(config: Config) -> Iterator[None]:
    """What its files alone tell is refused in its name, not in those of settings that nobody has set."""
    try:
        yield
    except ConfigError as failure:
        raise ConfigError([f"{said_teacher(config)}: {problem}" for problem in failure.problems]) from None
    except DataMissing as failure:
        raise DataMissing(f"{said_teacher(config)}: {failure}") from failure


def expected_teachers(config: Config) -> str:
    """What may stand there."""
    published = ", ".join(TEXT_HUB_IDS if config.is_text else PUBLISHED)
    return (
        f"a finished run (<comparison>/<run> below TRAINER_RESULTS={config.results!r}), a folder in Hugging Face "
        f"format, one of {published}, or a hub id (owner/name)"
    )


def find_teacher_folder(config: Config) -> Path | None:
    """None = a name or a hub id.

    Raises:
        ConfigError: it is neither, or a run that cannot teach.
    """
    given, own = Path(config.teacher), Path(config.results) / config.comparison / config.run
    places = (Path(config.results) / given, given)  # an absolute path stays itself
    for path in places:
        if path.resolve() in (own.resolve(), (own / "model").resolve()):
            raise ConfigError(
                [
                    (
                        f"{said_teacher(config)}: is this run itself; expected another run, a finished one "
                        "[SL-teacher-itself]"
                    )
                ]
            )
        if (path / "model" / "config.json").is_file():
            return path / "model"
        content = read_object(path / "config.json")
        if "resolved" in content:
            raise ConfigError([f"{said_teacher(config)}: {_no_weights(path)}"])
        if content:
            return path
    if config.teacher in MODELS:
        return None
    if problem := _lost_run(config):
        raise ConfigError([f"{said_teacher(config)}: {problem}"])
    if re.fullmatch(HUB_ID, config.teacher):
        return None
    lacks = "holds no config.json" if any(path.is_dir() for path in places) else "no such folder"
    raise ConfigError(
        [f"{said_teacher(config)}: {lacks}, expected {expected_teachers(config)} [SL-teacher-absent]"]
    )


def _no_weights(run: Path) -> str:
    return f"the run in {run} has left no weights; {HOW_WEIGHTS} [SL-teacher-run-no-weights]"


def _lost_run(config: Config) -> str:
    """Why it can only be a run of the results folder, but none that is there; "" = it may be something else."""
    comparison, _, run = config.teacher.partition("/")
    folder = Path(config.results) / comparison
    if Path(config.teacher).is_absolute() or not run or not folder.is_dir():
        return ""
    if (folder / run).is_dir():
        return _no_weights(folder / run)
    found = sorted(path.name for path in folder.iterdir() if path.is_dir())
    named = ", ".join(found[:NAMED_RUNS]) + (", ..." if len(found) > NAMED_RUNS else "")
    return (
        f"no such run below TRAINER_RESULTS={config.results!r}: the comparison {comparison!r} there holds "
        f"{named or 'no run'}; the hub was not asked, as that comparison goes before an owner of that name "
        "[SL-teacher-run-absent]"
    )


def read_object(path: Path) -> dict[str, Any]:
    """A file's JSON object; empty where there is none."""
    try:
        content = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def fetch_teacher_json(config: Config, source: str) -> dict[str, Any]:
    """The config.json of a hub id, from the hub or its cache.

    Raises:
        DataMissing: neither has it; told after a few tries, where the hub's own client goes on for half a minute.
    """
    from huggingface_hub import hf_hub_download, try_to_load_from_cache

    try:
        if not isinstance(try_to_load_from_cache(source, "config.json"), str):
            _ask(source)
        return read_object(Path(hf_hub_download(source, "config.json")))
    except Exception as failure:  # network, disk, no such model: all mean "not to be had"
        raise DataMissing(
            f"no such run below TRAINER_RESULTS={config.results!r} and no such folder, and {source} is neither on the "
            f"hub nor in its cache: {_first_line(failure)} [SL-teacher-unfetched]"
        ) from failure


def _ask(source: str) -> None:
    """Raises what keeps the hub from giving it; a hub that does not answer is asked again."""
    from huggingface_hub import constants, get_hf_file_metadata, hf_hub_url
    from huggingface_hub.errors import HfHubHTTPError

    if constants.HF_HUB_OFFLINE:
        raise ConnectionError("HF_HUB_OFFLINE is set, so the hub was not asked")
    for left in reversed(range(HUB_TRIES)):
        try:
            get_hf_file_metadata(hf_hub_url(source, "config.json"))
            return
        except Exception as failure:
            answered = isinstance(failure, HfHubHTTPError) and failure.response.status_code < 500
            if answered or not left:
                raise
            time.sleep(HUB_PAUSE_S)


def _first_line(failure: Exception) -> str:
    return str(failure).strip().partition("\n")[0] or type(failure).__name__
