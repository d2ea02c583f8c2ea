"""What other programs call a setting that has another name here, out of the trainer (`make schema`)."""

from __future__ import annotations

import json
import re
from pathlib import Path

ELSEWHERE: dict[str, str] = {
    name: re.sub(r"TRAINER_([A-Z0-9_]+)", lambda found: f"run.config.{found[1].lower()}", told)
    for name, told in json.loads(Path(__file__).with_name("names_elsewhere.json").read_text()).items()
}
"""Name -> what to do instead, in one sentence: `it is called run.config.lr`."""
