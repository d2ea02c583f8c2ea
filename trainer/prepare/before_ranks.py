"""The launcher's part: before ranks start, the token cache of their run is there."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from trainer.data.text.rows import open_text
from trainer.prepare.request import token_request
from trainer.prepare.work import prepare
from trainer.settings.config import Config


def ensure_cache(config: Config, say: Callable[[str], None]) -> int:
    """Makes the token cache unless it is there, or waits for the pod that is at it; rows of its train split.

    Where it is there, neither transformers nor the data set is opened. Imports torch only if transformers does (5.17).

    Raises:
        ConfigError: columns, a tokenizer or a row length that do not fit.
        DataMissing: no data set, no tokenizer, or a damaged cache.
        OSError: the volume is full.
    """
    request = token_request(config, own_process=False)
    Path(config.results).mkdir(parents=True, exist_ok=True)
    prepare(request, say)
    return len(open_text(config).train)
