"""A data set as rows of token ids, made once for all runs that read it: see docs/text_data.md."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from trainer.data.text.cache import write_cache
from trainer.data.text.text_source import hub_id, is_built_in
from trainer.prepare.origin import Written
from trainer.prepare.request import Request
from trainer.settings.config import Config


def write_tokens(
    request: Request, config: Config, folder: Path, scratch: Path, note: Callable[[str], None]
) -> Written:
    """Tokenises and packs the data set of a run into `folder`.

    Raises:
        ConfigError: columns, a tokenizer or a row length that do not fit.
        DataMissing: no data set or no tokenizer.
        OSError: the volume is full.
    """
    if request.own_process:
        # read once, when the hub's client is imported
        os.environ |= {"HF_HOME": str(scratch / "hub"), "HF_HUB_DISABLE_PROGRESS_BARS": "1"}
    revision = None if config.dataset_path or is_built_in(config) else _find_commit(hub_id(config))
    index = write_cache(config, folder, scratch, note, revision)
    return Written(revision, {name: facts["documents"] for name, facts in index["splits"].items()}, None)


def _find_commit(name: str) -> str | None:
    """What the newest revision of a data set is now; None where the hub is not asked, and a cached copy is used."""
    from huggingface_hub import HfApi

    try:
        return HfApi().repo_info(name, repo_type="dataset").sha
    except Exception:  # offline or unknown: opening it says so in a sentence, where there is no copy either
        return None
