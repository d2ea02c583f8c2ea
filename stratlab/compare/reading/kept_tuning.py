"""How the strategies of a comparison were tuned, as the sweep has kept it beside their runs, and which runs have it."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from stratlab.number import format_fact
from stratlab.run_directory.record import RunRecord
from stratlab.user_error import UserError

FILE = "tuning.json"
TUNED = "tuned"
NOT_IN_MLFLOW = f"not known: {FILE} lies beside the runs on the results volume, not in MLflow"
PARTS = ("metric", "searches", "steps", "repeats", "tuning")


def read_tuning(folder: Path) -> dict[str, Any] | None:
    """The record in the folder of a comparison (its fields: stratlab/sweep/tuning/tuning_record.py), or None.

    Raises:
        UserError: there is a file of this name that is something else.
    """
    file = folder / FILE
    if not file.is_file():
        return None
    try:
        return parse_tuning(file.read_text())
    except (OSError, ValueError) as failure:
        raise UserError(
            f"{file}: not the record of a tuning ({failure}); move it away [SL-tuning-file]"
        ) from failure


def parse_tuning(text: str) -> dict[str, Any]:
    """The record out of JSON.

    Raises:
        ValueError: it is something else.
    """
    content = json.loads(text)
    missing = [name for name in PARTS if not isinstance(content, dict) or name not in content]
    if missing:
        raise ValueError(f"{', '.join(missing)} is missing")
    return dict(content)


def keep_tuning(folder: Path, record: Mapping[str, Any]) -> None:
    """Puts the record beside the runs, whole or not at all."""
    temporary = folder / f".{FILE}.tmp"
    temporary.write_text(json.dumps(record, indent=1) + "\n")
    os.replace(temporary, folder / FILE)


def apply_tuning(runs: Sequence[RunRecord], record: Mapping[str, Any] | None) -> list[RunRecord]:
    """The records with `tuning`: "tuned", or why it is not."""
    found = {name: each for each in (record or {}).get("searches", []) for name in each["runs"]}
    return [dataclasses.replace(run, tuning=_tell(run, found.get(run.name))) for run in runs]


def _tell(run: RunRecord, search: Mapping[str, Any] | None) -> str:
    """A run whose knobs are not those that were chosen is not what was tuned; nor is one that has a value which was
    tried and not chosen."""
    if search is None:
        return run.tuning
    if search["why_not"]:
        return f"not tuned: {search['why_not']}"
    settings = run.config.get("config") or {}
    other = [
        f"{name} is {format_fact(settings.get(name))}, not {format_fact(value)}"
        for name, value in search["chosen"].items()
        if str(settings.get(name)) != str(value)
    ]
    for name, values in _turned_down(search).items():
        if str(settings.get(name)) in values:
            other.append(f"{name} is {format_fact(settings[name])}, which was tried and not chosen")
    return f"not as tuned: {', '.join(other)}" if other else TUNED


def _turned_down(search: Mapping[str, Any]) -> dict[str, set[str]]:
    """knob that stays as it comes -> the values of it that were tried."""
    found: dict[str, set[str]] = {}
    for each in search["tried"]:
        for name, value in each["knobs"].items():
            if name not in search["chosen"]:
                found.setdefault(name, set()).add(str(value))
    return found
