"""Questions and answers in the format of MetaMathQA."""

from __future__ import annotations

import json
from pathlib import Path


def write_metamathqa(folder: Path, rows: int = 1200) -> None:
    """As on the hub: one JSON file, a list of objects with `type`, `query`, `original_question`, `response`."""
    from trainer.data.text.text_source import generate_arithmetic

    folder.mkdir(parents=True)
    (folder / "MetaMathQA-395K.json").write_text(json.dumps(generate_arithmetic()[:rows]))
