"""What the loop needs to go on, beside the engine's tensors: state.json of a checkpoint."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trainer.record.run_directory import write_json
from trainer.settings.config import Config, ConfigError

FILE = "state.json"
COUNTS = ("step", "attempt", "world_size", "samples", "skipped_steps")


@dataclass(frozen=True)
class TrainingState:
    """The run after `step`. The position in the data and in the schedule follows from the step alone."""

    step: int
    attempt: int
    strategy: str
    world_size: int
    axes: dict[str, int]
    config_sha256: str
    samples: int
    """Handed out so far, over all ranks: step x global batch."""
    train_loss: float
    skipped_steps: int
    train_time_s: float
    """Of all attempts, as far as their steps count."""
    validation: dict[str, float] | None = None
    """step, loss and accuracy_pct or perplexity of the newest validation."""
    best: dict[str, float] | None = None
    """The same of the best checkpoint, this one included."""
    mlflow_run_id: str | None = None
    observed: list[dict[str, Any]] = field(default_factory=list)
    """Bytes and element types per rank, for a run that crashed behind its last step."""

    def write(self, folder: Path) -> None:
        write_json(folder / FILE, dataclasses.asdict(self))

    @classmethod
    def read(cls, folder: Path) -> TrainingState:
        """Fields of a later version are left out.

        Raises:
            ConfigError: it is no state of a run.
        """
        content = json.loads((folder / FILE).read_text())
        wanted = {
            f.name for f in dataclasses.fields(cls) if f.default is f.default_factory is dataclasses.MISSING
        }
        counts = [content.get(name) for name in COUNTS] if isinstance(content, dict) else []
        if not counts or wanted - content.keys() or not all(type(n) is int and n >= 0 for n in counts):
            raise ConfigError(
                [f"{folder / FILE}: is no state of a run: {json.dumps(content)[:200]} [SL-state-not-a-run]"]
            )
        known = {f.name for f in dataclasses.fields(cls)}
        return cls(**{name: value for name, value in content.items() if name in known})


def hash_config(config: Config) -> str:
    """sha256 of the settings."""
    return hashlib.sha256(json.dumps(config.model_dump(), sort_keys=True).encode()).hexdigest()
