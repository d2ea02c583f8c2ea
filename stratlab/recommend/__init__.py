"""Recommend a configuration for a goal, before anything is started: search, choose, and write what starts it.

    model, GPUs, goal ─▶ search_space ─▶ options: memory and speed ─▶ choice ─▶ recommendation_screen (terminal, JSON)
                                                                        └─────▶ start_files (values, lines, sweep)

stratlab.predict answers for each option: its memory, and its speed on a card. `Option` is one configuration.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from stratlab.predict import Prediction
from stratlab.predict.timing import Speed
from stratlab_spec.memory.prediction import Verdict

ROWS, RECOMPUTED, COMPILED = "micro_batch_size", "activation_checkpointing", "compile"

RECOMPUTATIONS = {"blocks": "blocks recomputed", "selective": "selective recomputation"}


@dataclass(frozen=True)
class Option:
    """A configuration with its memory and its speed.

    Attributes:
        speed: or why it is not known.
        chosen: setting that the search chose -> its value.
    """

    prediction: Prediction
    speed: Speed | str
    chosen: Mapping[str, str]

    @property
    def run(self) -> str:
        """Return the strategy with its layout, as `hsdp 4 shards`."""
        return self.prediction.question.name

    @property
    def settings(self) -> str:
        """Return `micro-batch 4, blocks recomputed, compiled`."""
        told = [f"micro-batch {self.chosen[ROWS]}"]
        if self.chosen[RECOMPUTED] != "none":
            told.append(RECOMPUTATIONS.get(self.chosen[RECOMPUTED], self.chosen[RECOMPUTED]))
        told += ["compiled"] * (self.chosen[COMPILED] == "true")
        told += [f"{name}={self.chosen[name]}" for name in ("lora_rank", "offload") if name in self.chosen]
        return ", ".join(told)

    @property
    def full_name(self) -> str:
        """Return `fsdp (micro-batch 4)`."""
        return f"{self.run} ({self.settings})"

    @property
    def strategy(self) -> str:
        return self.prediction.file.strategy

    @property
    def gpus(self) -> int:
        return self.prediction.question.ranks

    @property
    def fits(self) -> bool:
        return self.prediction.verdict is Verdict.FITS

    @property
    def per_s(self) -> float:
        """Return tokens or images per second in the middle of the band; 0 = not known."""
        return self.speed.middle_per_s if isinstance(self.speed, Speed) else 0.0

    @property
    def gpu_hours_per_million(self) -> float:
        """Return the GPU hours for a million tokens or images."""
        return self.gpus / self.per_s / 3600 * 1e6

    def say_needs(self) -> str:
        """Return `18.21 of 24 GiB`, or `<= 18.21 of 24 GiB` for an upper bound."""
        return self.prediction.say_needs()
