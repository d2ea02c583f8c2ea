"""The launcher's part: before ranks start, the token cache of their run is there."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from trainer.data.text.cache import cache_folder
from trainer.data.text.fidelity import refuse_altered
from trainer.data.text.rows import open_text, read_index
from trainer.prepare.request import token_request
from trainer.prepare.work import prepare
from trainer.settings.config import Config


def ensure_cache(config: Config, say: Callable[[str], None]) -> int:
    """Makes the token cache unless it is there, or waits for the pod that is at it; rows of its train split.

    Where it is there, neither transformers nor the data set is opened. Imports torch only if transformers does (5.17).

    Raises:
        ConfigError: columns, a tokenizer or a row length that do not fit.
        DataMissing: no data set, no tokenizer, a damaged cache, or a chat template that drops too much.
        OSError: the volume is full.
    """
    request = token_request(config, own_process=False)
    Path(config.results).mkdir(parents=True, exist_ok=True)
    prepare(request, say)
    if index := read_index(cache_folder(config)):
        refuse_altered(config, index["fidelity"])
    return len(open_text(config).train)
